"""Which broker of a cluster gets the next connection of an application (DIR-45, DIR-48 … DIR-53, DIR-64).

Rotation gives every broker its turn in the order of the cluster. A turn that came to nothing (the pick failed, lapsed,
or the request left this broker out) is owed: who is free to choose it takes it first, the one with fewest turns had. So
the numbers of connections stay even although some requests cannot go everywhere (DIR-52). A connection that comes when
its turn was given back already is one turn too many. Who is not available when passed has no turn, and gets none back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from fairlead.directory.bounds import EXCLUDE_MAX, RESERVATIONS_MAX, check_name, check_room, check_text
from fairlead.directory.desk import Decision, Desk, allow
from fairlead.directory.operations import PickBroker, ReportFailure
from fairlead.directory.rows import Rule
from fairlead.directory.state import BrokerEntry, State, Turn
from fairlead.errors import BadParameter, NoneAvailable, UnknownCluster

_NEW = Turn()


class Choice(NamedTuple):
    broker: str
    owed: bool = False  # it had a turn left: the rotation stays where it is
    passed: tuple[str, ...] = ()  # had a turn that was not used: left out by the request, or had one too many before


def choose(
    state: State, members: list[str], turn: Turn, app: str, exclude: Collection[str], secure: bool, rule: Rule
) -> Choice | None:
    """The broker whose turn it is; None: none can take the connection."""
    brokers = state.brokers
    start = members.index(turn.last) + 1 if turn.last in members else 0
    order = members[start:] + members[:start] if 0 < start < len(members) else members
    passed: list[str] = []
    if rule == "rotation" and not turn.owed:
        for name in order:
            entry = brokers[name]
            if entry.available and (entry.row.secure_port if secure else entry.row.port):
                if name not in exclude:
                    return Choice(name, False, tuple(passed))
                passed.append(name)
    able = [name for name in order if name not in exclude and _takes(brokers[name], secure)]
    trusted = [name for name in able if not brokers[name].suspect]
    able = trusted or able  # all of them are cooling down: then that is ignored
    if not able:
        return None
    if rule == "least_connections":
        loads = state.loads.get(app, {})
        return Choice(min(able, key=lambda name: loads.get(name, 0)))
    owed = turn.owed
    behind = set(members[:start])  # have had their turn in this round
    chosen = min(able, key=lambda name: (name in behind) - owed.get(name, 0))
    if owed.get(chosen, 0) > 0:
        return Choice(chosen, True)
    before = [
        name for name in order[: order.index(chosen)] if brokers[name].available and _takes(brokers[name], secure)
    ]
    return Choice(chosen, False, tuple(name for name in before if name in exclude or owed.get(name, 0) < 0))


def _takes(entry: BrokerEntry, secure: bool) -> bool:
    return entry.fit and bool(entry.row.secure_port if secure else entry.row.port)


def pick(desk: Desk, asked: PickBroker, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, app=asked.app)
    state, rules = desk.state, desk.rules
    cluster = state.clusters.get(asked.cluster)
    if cluster is None or not cluster.brokers:
        raise UnknownCluster(f"There is no cluster {asked.cluster[:60]!r} in the directory, or it has no brokers.")
    key = (asked.app, asked.request)
    place = state.reservations.get(key)
    if (
        place is not None
        and place.cluster == asked.cluster
        and place.broker not in asked.exclude
        and rules.same_request
    ):
        broker = place.broker
        return desk.decided([], broker=state.told_broker(broker), reservation=asked.request)
    if place is None:
        check_name("an application", asked.app)
        check_text("request", asked.request, needed=True)
        check_room("reservations", len(state.reservations), RESERVATIONS_MAX)
    if len(asked.exclude) > EXCLUDE_MAX:
        raise BadParameter(f"No more than {EXCLUDE_MAX} brokers can be left out.")
    rule: Rule = asked.rule or cluster.rule or state.rule or desk.settings.rule
    turn = state.turns.get((asked.cluster, asked.app if rules.rotation_of_app else ""), _NEW)
    chosen = choose(state, cluster.brokers, turn, asked.app, asked.exclude, asked.secure, rule)
    if chosen is None:
        raise NoneAvailable(_why(state, asked))
    broker = chosen.broker
    change = {
        "c": "pick",
        "r": state.revision + 1,
        "app": asked.app,
        "cluster": asked.cluster,
        "broker": broker,
        "request": asked.request,
        "until": now_ms + round(desk.settings.reserve_s * 1000),
        "rotated": rule == "rotation",
        "owed": chosen.owed,
        "passed": chosen.passed,
        "void": [name for name in turn.owed if not state.brokers[name].available] if turn.owed else (),
    }
    return Decision(
        [change],
        lambda: {"broker": state.told_broker(broker), "reservation": asked.request, "revision": state.revision},
    )


def _why(state: State, asked: PickBroker) -> str:
    """For each broker why it cannot be picked; of the first few."""
    reasons = []
    members = state.clusters[asked.cluster].brokers
    for name in members[:20]:
        entry = state.brokers[name]
        if name in asked.exclude:
            reason = "left out by the request"
        elif not entry.leased:
            reason = "gives no sign of life"
        elif entry.row.state != "up":
            reason = entry.row.state
        elif not entry.fit:
            reason = f"full ({len(entry.links)} connections, {entry.reserved} reserved, limit {entry.row.limit})"
        else:
            reason = f"has no {'secure' if asked.secure else 'plain'} port"
        reasons.append(f"{name}: {reason}")
    more = f"; and {len(members) - 20} more" if len(members) > 20 else ""
    return f"No broker of cluster {asked.cluster!r} is available: {'; '.join(reasons)}{more}."


def report_failure(desk: Desk, said: ReportFailure, now_ms: int, may: Collection[str]) -> Decision:
    """Two clients that could not connect within `suspect_s` make everybody skip the broker as long."""
    allow(may, app=said.app)
    state = desk.state
    check_text("client", said.client, needed=True)
    check_text("reservation", said.reservation)
    check_name("an application", said.app)
    entry = state.brokers.get(said.broker)
    place = state.reservations.get((said.app, said.reservation))
    released = place is not None and place.broker == said.broker
    suspect_ms = round(desk.settings.suspect_s * 1000)
    since = now_ms - suspect_ms
    if entry is None or (said.reservation and not released and entry.reports.get(said.client, since) > since):
        return desk.decided([])  # nobody to blame, or said again
    others = any(at > since and client != said.client for client, at in entry.reports.items())
    suspect = (others or not desk.rules.two_reporters) and not entry.suspect
    change = desk.change(
        "failed",
        at=now_ms,
        since=since,
        app=said.app,
        broker=said.broker,
        client=said.client,
        reason="".join(one if one.isprintable() else "?" for one in said.reason[:200]),
        reservation=said.reservation,
        until=now_ms + suspect_ms if suspect else 0,
    )
    return desk.decided([change])
