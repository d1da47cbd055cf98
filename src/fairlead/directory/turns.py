"""How picks alter the tables: the turns of a rotation, reservations, reports of failures (DIR-51, DIR-52, DIR-64)."""

from __future__ import annotations

from typing import Any

from fairlead.directory.bounds import REPORTERS_MAX, ROTATIONS_MAX
from fairlead.directory.rules import Rules
from fairlead.directory.state import Reservation, State, Turn

Change = dict[str, Any]


def pick(state: State, change: Change, rules: Rules) -> None:
    app, cluster, broker = change["app"], change["cluster"], change["broker"]
    key = (app, change["request"])
    if (place := state.reservations.get(key)) is not None:  # the same request, which has failed there
        release(state, key)
        give_back(state, app, place, rules)
    turn_key = (cluster, app if rules.rotation_of_app else "")
    turn = state.turns.pop(turn_key, None) or Turn()
    state.turns[turn_key] = turn
    if len(state.turns) > ROTATIONS_MAX:
        del state.turns[next(iter(state.turns))]
    for name in change["void"]:
        turn.owed.pop(name, None)
    if change["owed"]:
        owe(turn, broker, -1)
    else:
        turn.last = broker
        if rules.give_turns_back:
            for name in change["passed"]:
                owe(turn, name, 1)
    state.reservations[key] = Reservation(cluster, broker, change["until"], change["rotated"])
    entry = state.brokers[broker]
    entry.reserved += rules.count_reserved
    state.count(app, broker, 1)
    state.refresh(entry)
    state.picks += 1
    state.clusters[cluster].picks += 1


def failed(state: State, change: Change, rules: Rules) -> None:
    name = change["broker"]
    state.failures += 1
    key = (change["app"], change["reservation"])
    if (place := state.reservations.get(key)) is not None and place.broker == name:
        release(state, key)
        give_back(state, change["app"], place, rules)
    entry = state.brokers.get(name)
    if entry is None:
        return
    entry.failures += 1
    entry.reason = change["reason"]
    for client in [client for client, at in entry.reports.items() if at <= change["since"]]:
        del entry.reports[client]
    entry.reports.pop(change["client"], None)
    entry.reports[change["client"]] = change["at"]
    if len(entry.reports) > REPORTERS_MAX:
        del entry.reports[next(iter(entry.reports))]
    if change["until"]:
        entry.suspect = True
        state.suspects.pop(name, None)
        state.suspects[name] = change["until"]
    state.refresh(entry)


def lapsed(state: State, change: Change, rules: Rules) -> None:
    for app, request in change["reservations"]:
        if (place := state.reservations.get((app, request))) is not None:
            release(state, (app, request))
            give_back(state, app, place, rules)


def trusted(state: State, change: Change, rules: Rules) -> None:
    for name in change["brokers"]:
        state.suspects.pop(name, None)
        if (entry := state.brokers.get(name)) is not None:
            entry.suspect = False
            entry.reports.clear()
            state.refresh(entry)


def release(state: State, key: tuple[str, str]) -> None:
    place = state.reservations.pop(key)
    entry = state.brokers[place.broker]
    entry.reserved = max(0, entry.reserved - 1)
    state.count(key[0], place.broker, -1)
    state.refresh(entry)


def give_back(state: State, app: str, place: Reservation, rules: Rules) -> None:
    """The pick came to nothing: the broker has one connection less than its turns (DIR-52)."""
    turn = state.turns.get((place.cluster, app)) if place.rotated and rules.give_turns_back else None
    if turn is not None and place.cluster in state.brokers[place.broker].clusters:
        owe(turn, place.broker, 1)


def take(state: State, app: str, cluster: str, broker: str, rules: Rules) -> None:
    """A connection came after all, when its reservation had been given back."""
    turn = state.turns.get((cluster, app)) if rules.give_turns_back else None
    if turn is not None and cluster in state.brokers[broker].clusters:
        owe(turn, broker, -1)


def owe(turn: Turn, broker: str, more: int) -> None:
    turn.owed[broker] = turn.owed.get(broker, 0) + more
    if not turn.owed[broker]:
        del turn.owed[broker]
