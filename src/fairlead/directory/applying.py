"""How a change alters the tables: the same at every server and at every restart, since all it needs is in the change.

`decide` has checked what a change says; here it is only done. Each kind of change has one function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from fairlead.directory import turns
from fairlead.directory.bounds import CLOSED_MAX, FADED_MAX
from fairlead.directory.rows import Broker, Link
from fairlead.directory.rules import Rules
from fairlead.directory.state import AppEntry, BrokerEntry, ClusterEntry, State

Change = dict[str, Any]


def apply_change(state: State, change: Change, rules: Rules) -> None:
    """Do it; `KeyError` or `ValueError`: this is no change of a directory."""
    _KINDS[change["c"]](state, change, rules)


# brokers and clusters


def _broker(state: State, change: Change, rules: Rules) -> None:
    row = msgspec.convert(change["row"], Broker)
    entry = state.brokers.get(row.name)
    if entry is None:
        entry = state.brokers[row.name] = BrokerEntry(row)
    if change["other"]:  # another server, or elsewhere: what was said of the old one is void
        entry.reports.clear()
        entry.suspect = False
        state.suspects.pop(row.name, None)
    if change["taken"]:
        _drop_links(state, row.name, entry, rules)
    entry.row = row
    entry.leased = True
    entry.available = entry.fit and not entry.suspect
    state.touch(entry)
    if (clusters := change["clusters"]) is not None:
        for name in [name for name in entry.clusters if name not in clusters]:
            _leave(state, {name}, row.name, rules)
        for name in clusters:
            if name not in entry.clusters:
                _join(state, name, row.name, None)


def _renewed(state: State, change: Change, rules: Rules) -> None:
    entry = state.brokers[change["broker"]]
    entry.row = msgspec.structs.replace(entry.row, state=change["state"])
    entry.leased = True
    entry.available = entry.fit and not entry.suspect
    state.touch(entry)


def _expired(state: State, change: Change, rules: Rules) -> None:
    entry = state.brokers[change["broker"]]
    entry.leased = False
    if rules.drop_links:
        _drop_links(state, change["broker"], entry, rules)
    state.refresh(entry)


def _removed(state: State, change: Change, rules: Rules) -> None:
    name = change["broker"]
    entry = state.brokers[name]
    _drop_links(state, name, entry, rules)
    if rules.leave_clusters:
        _leave(state, set(entry.clusters), name, rules)
    del state.brokers[name]
    state.suspects.pop(name, None)
    state.brokers_version += 1


def _joined(state: State, change: Change, rules: Rules) -> None:
    _join(state, change["cluster"], change["broker"], change["position"])


def _left(state: State, change: Change, rules: Rules) -> None:
    _leave(state, {change["cluster"]}, change["broker"], rules)


def _set(state: State, change: Change, rules: Rules) -> None:
    name, heuristic, rule = change["cluster"], change["heuristic"], change["rule"]
    if name:
        cluster = state.clusters.get(name) or state.clusters.setdefault(name, ClusterEntry())
        cluster.heuristic, cluster.rule = heuristic, rule
        state.touch_cluster(cluster)
        _drop_if_empty(state, name, cluster)
        return
    state.heuristic, state.rule = heuristic, rule
    for cluster in state.clusters.values():
        state.touch_cluster(cluster)


def _join(state: State, name: str, broker: str, position: int | None) -> None:
    cluster = state.clusters.get(name) or state.clusters.setdefault(name, ClusterEntry())
    if broker in cluster.brokers:
        cluster.brokers.remove(broker)
    cluster.brokers.insert(len(cluster.brokers) if position is None else position, broker)
    state.brokers[broker].clusters[name] = None
    state.touch_cluster(cluster)


def _leave(state: State, names: set[str], broker: str, rules: Rules) -> None:
    """Whose last turn was there goes on with the successor in the order (DIR-44): the one before counts as the last."""
    before: dict[str, str] = {}
    for name in names:
        cluster = state.clusters[name]
        place = cluster.brokers.index(broker)
        before[name] = cluster.brokers[place - 1] if len(cluster.brokers) > 1 else ""
        del cluster.brokers[place]
        del state.brokers[broker].clusters[name]
        state.touch_cluster(cluster)
        _drop_if_empty(state, name, cluster)
    for (name, _), turn in state.turns.items():
        if name in before:
            turn.owed.pop(broker, None)
            if turn.last == broker:
                turn.last = before[name] if rules.keep_place else ""


def _drop_if_empty(state: State, name: str, cluster: ClusterEntry) -> None:
    if not cluster.brokers and cluster.heuristic is None and cluster.rule is None:
        del state.clusters[name]


def _drop_links(state: State, name: str, entry: BrokerEntry, rules: Rules) -> None:
    """All connections and reservations of a broker end; so do dynamic applications that were only there."""
    for app_name, identity in list(entry.links):
        app = state.apps[app_name]
        state.drop_link(app_name, app, identity)
        _go_if_last(state, app_name, app, rules)
        if app_name not in state.apps:  # it may come back with its labels: they are nobody else's until then
            state.faded[app_name] = app.last
            if len(state.faded) > FADED_MAX:
                del state.faded[next(iter(state.faded))]
    for app_name in [one for one, app in state.apps.items() if app.kind == "dynamic" and app.home == name]:
        del state.apps[app_name]
    for key in [key for key, place in state.reservations.items() if place.broker == name]:
        turns.release(state, key)
    state.moving.pop(name, None)


# applications and their connections


def _app(state: State, change: Change, rules: Rules) -> None:
    name = change["app"]
    app = state.apps.get(name)
    if app is None:
        app = state.new_app(name, change["kind"])
    app.kind, app.user, app.home = change["kind"], change["user"], change["home"]
    app.told = None


def _deregistered(state: State, change: Change, rules: Rules) -> None:
    """With connections it stays until their brokers have closed them."""
    name = change["app"]
    app = state.apps[name]
    app.kind, app.home, app.told = "dynamic", "", None
    app.closing = dict.fromkeys(app.links)
    for key in [key for key in state.turns if key[1] == name]:
        del state.turns[key]
    state.keys_count -= len(state.keys.pop(name, ()))
    if not app.links:
        del state.apps[name]


def _opened(state: State, change: Change, rules: Rules) -> None:
    name, link = change["app"], msgspec.convert(change["link"], Link)
    if (reservation := change["reservation"]) and rules.use_reservation:
        place = state.reservations.get((name, reservation))
        if place is not None:
            turns.release(state, (name, reservation))
            if place.broker != link.broker:
                turns.give_back(state, name, place, rules)
        elif change["new"]:
            turns.take(state, name, link.cluster, link.broker, rules)
    _put(state, name, change["kind"], link)
    entry = state.brokers[link.broker]
    entry.reports.clear()
    state.refresh(entry)


def _put(state: State, name: str, kind: Any, link: Link) -> None:
    app = state.apps.get(name)
    if app is None:
        app = state.new_app(name, kind, link.user, link.broker if kind == "static" else "")
    elif app.kind == "dynamic":
        app.home = ""
    if link.identity in app.links:
        app.links[link.identity] = link
        app.told = None
    else:
        state.add_link(name, app, link)


def _closed(state: State, change: Change, rules: Rules) -> None:
    name, identity = change["app"], change["identity"]
    app = state.apps.get(name)
    if app is not None and identity in app.links:
        link = state.drop_link(name, app, identity)
        state.refresh(state.brokers[link.broker])
        _go_if_last(state, name, app, rules)
    if rules.remember_closed:
        state.closed[name, identity] = None
        if len(state.closed) > CLOSED_MAX:
            del state.closed[next(iter(state.closed))]


def _restated(state: State, change: Change, rules: Rules) -> None:
    name = change["broker"]
    entry = state.brokers[name]
    for app_name, kind, plain in change["rows"]:  # those that come first: an application keeps its numbers
        link = msgspec.convert(plain, Link)
        state.closed.pop((app_name, link.identity), None)
        _put(state, app_name, kind, link)
    for app_name, identity in change["gone"]:
        app = state.apps[app_name]
        state.drop_link(app_name, app, identity)
        _go_if_last(state, app_name, app, rules)
    for app_name in change["apps"]:
        del state.apps[app_name]
    state.refresh(entry)


def _key(state: State, change: Change, rules: Rules) -> None:
    """Keys outlive a dynamic registration: who writes to the application next wants the same ones."""
    name = change["app"]
    if (app := state.apps.get(name)) is not None:
        app.told = None
    keys = state.keys.setdefault(name, {})
    state.keys_count -= len(keys)
    keys.pop(change["id"], None)
    if change["key"] is not None:
        keys[change["id"]] = change["key"]
    state.keys_count += len(keys)
    if not keys:
        del state.keys[name]


def _moves(state: State, change: Change, rules: Rules) -> None:
    for name, identities in change["moves"].items():
        state.brokers[name].moves = dict.fromkeys(identities)
        state.moving.pop(name, None)
        state.moving[name] = change["until"]


def _stay(state: State, change: Change, rules: Rules) -> None:
    for name in change["brokers"]:
        state.moving.pop(name, None)
        if name in state.brokers:
            state.brokers[name].moves.clear()


def _go_if_last(state: State, name: str, app: AppEntry, rules: Rules) -> None:
    if not app.links and app.kind == "dynamic" and rules.dynamic_goes:
        del state.apps[name]


_KINDS: Final[Mapping[str, Callable[[State, Change, Rules], None]]] = {
    "broker": _broker,
    "renewed": _renewed,
    "expired": _expired,
    "removed": _removed,
    "joined": _joined,
    "left": _left,
    "set": _set,
    "app": _app,
    "deregistered": _deregistered,
    "opened": _opened,
    "closed": _closed,
    "restated": _restated,
    "key": _key,
    "moves": _moves,
    "stay": _stay,
    "pick": turns.pick,
    "failed": turns.failed,
    "lapsed": turns.lapsed,
    "trusted": turns.trusted,
}
