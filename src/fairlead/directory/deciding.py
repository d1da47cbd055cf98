"""What is decided about brokers and clusters: their rows, leases, memberships and settings (DIR-31 … DIR-34)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fairlead.directory.bounds import (
    BROKERS_MAX,
    CLUSTERS_MAX,
    CLUSTERS_OF_BROKER_MAX,
    MEMBERS_MAX,
    check_broker,
    check_name,
    check_room,
)
from fairlead.directory.desk import MOVE_MS, Change, Decision, Desk, allow
from fairlead.directory.digest import digest_of
from fairlead.directory.operations import (
    JoinCluster,
    LeaveCluster,
    PutBroker,
    Rebalance,
    RemoveBroker,
    Renew,
    SetCluster,
)
from fairlead.directory.rows import Broker
from fairlead.directory.state import BrokerEntry
from fairlead.errors import BadParameter, NameTaken, UnknownCluster


def put_broker(desk: Desk, said: PutBroker, now_ms: int, may: Collection[str]) -> Decision:
    row = _plain(said.broker)
    allow(may, broker=row.name)
    check_broker(row)
    entry = desk.state.brokers.get(row.name)
    if entry is None:
        check_room("brokers", len(desk.state.brokers), BROKERS_MAX)
    taken = entry is not None and not _is_same(entry.row, row)
    if taken and entry is not None and entry.leased and desk.rules.guard_names:
        raise NameTaken(
            f"Another broker has the name {row.name!r} and is alive at {entry.row.ip} port "
            f"{entry.row.port or entry.row.secure_port}; choose another name, or stop that one."
        )
    clusters = None if said.clusters is None else tuple(dict.fromkeys(said.clusters))
    _check_joining(desk, row.name, clusters or ())
    desk.leases.renew(row.name, now_ms)
    answer = {"lease_s": desk.settings.lease_s}
    joined = entry is not None and (clusters is None or set(clusters) == entry.clusters.keys())
    if entry is not None and entry.leased and entry.row == row and joined:
        return desk.decided([], **answer)
    change = desk.change(
        "broker",
        row=msgspec.to_builtins(row),
        clusters=None if clusters is None else list(clusters),
        other=entry is not None and (taken or _address(entry.row) != _address(row)),
        taken=taken,
    )
    return desk.decided([change], **answer)


def renew(desk: Desk, said: Renew, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, broker=said.name)
    entry = desk.state.brokers.get(said.name)
    if entry is None or entry.row.identity != said.identity:
        return desk.decided([], known=False, links="", move=[], close=[], lease_s=desk.settings.lease_s)
    changes = renewal(desk, said.name, entry, now_ms, state=said.state)
    apps = desk.state.apps
    close = [identity for app, identity in entry.links if identity in apps[app].closing]
    return desk.decided(
        changes,
        known=True,
        links=digest_of(len(entry.links), entry.sum),
        move=list(entry.moves),
        close=close,
        lease_s=desk.settings.lease_s,
    )


def renewal(desk: Desk, name: str, entry: BrokerEntry, now_ms: int, *, state: str = "") -> list[Change]:
    """Its lease begins anew; a change only if that says something new."""
    desk.leases.renew(name, now_ms)
    state = state or entry.row.state
    if entry.leased and entry.row.state == state:
        return []
    return [desk.change("renewed", broker=name, state=state)]


def remove_broker(desk: Desk, said: RemoveBroker, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, broker=said.name)
    desk.leases.forget(said.name)
    if said.name not in desk.state.brokers:
        return desk.decided([], removed=False)
    return desk.decided([desk.change("removed", broker=said.name)], removed=True)


def join_cluster(desk: Desk, said: JoinCluster, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, broker=said.broker)
    desk.broker(said.broker)
    if said.position is not None and said.position < 0:
        raise BadParameter("Positions in a cluster count from 0.")
    _check_joining(desk, said.broker, (said.cluster,))
    cluster = desk.state.clusters.get(said.cluster)
    position = None if said.position is None else min(said.position, MEMBERS_MAX)
    if cluster is not None and said.broker in cluster.brokers:
        others = len(cluster.brokers) - 1
        here = cluster.brokers.index(said.broker)
        if position is None or min(position, others) == here:
            return desk.decided([])
    change = desk.change("joined", cluster=said.cluster, broker=said.broker, position=position)
    return desk.decided([change])


def leave_cluster(desk: Desk, said: LeaveCluster, now_ms: int, may: Collection[str]) -> Decision:
    allow(may, broker=said.broker)
    cluster = desk.state.clusters.get(said.cluster)
    if cluster is None or said.broker not in cluster.brokers:
        return desk.decided([], left=False)
    return desk.decided([desk.change("left", cluster=said.cluster, broker=said.broker)], left=True)


def set_cluster(desk: Desk, said: SetCluster, now_ms: int, may: Collection[str]) -> Decision:
    """What is not said stays as it is; `default` takes back what was said."""
    allow(may)
    state = desk.state
    cluster = state.clusters.get(said.cluster)
    if said.cluster and cluster is None:
        check_name("a cluster", said.cluster)
        check_room("clusters", len(state.clusters), CLUSTERS_MAX)
    place = cluster if said.cluster else state
    before = (None, None) if place is None else (place.heuristic, place.rule)
    after = tuple(
        old if new is None else None if new == "default" else new
        for new, old in zip((said.heuristic, said.rule), before, strict=True)
    )
    if after == before:
        return desk.decided([])
    return desk.decided([desk.change("set", cluster=said.cluster, heuristic=after[0], rule=after[1])])


def rebalance(desk: Desk, said: Rebalance, now_ms: int, may: Collection[str]) -> Decision:
    """Of each broker with more than its share of the cluster's connections, the newest are asked to go.

    Who cannot take connections has no share: rebalancing empties a broker that is draining.
    """
    allow(may)
    state = desk.state
    cluster = state.clusters.get(said.cluster)
    if cluster is None or not cluster.brokers:
        raise UnknownCluster(f"There is no cluster {said.cluster[:60]!r} in the directory, or it has no brokers.")
    held = {
        name: [
            identity
            for app, identity in state.brokers[name].links
            if state.apps[app].links[identity].cluster == said.cluster
        ]
        for name in cluster.brokers
    }
    takers = [name for name in cluster.brokers if state.brokers[name].leased and state.brokers[name].row.state == "up"]
    moves = {}
    if takers:
        share = -(-sum(map(len, held.values())) // len(takers))
        for name, identities in held.items():
            if moving := identities[share if name in takers else 0 :]:
                moves[name] = moving[::-1]
    changes = [desk.change("moves", moves=moves, until=now_ms + MOVE_MS)] if moves else []
    return desk.decided(changes, moves={name: len(identities) for name, identities in moves.items()})


def _plain(row: Broker) -> Broker:
    """Without what the directory works out itself."""
    return msgspec.structs.replace(row, available=False, missing=False, clusters=(), connections=0, reserved=0)


def _is_same(old: Broker, new: Broker) -> bool:
    """The same server (DIR-33)? Where neither says who it is, its address does."""
    if old.identity or new.identity:
        return old.identity == new.identity
    return _address(old) == _address(new)


def _address(row: Broker) -> tuple[str, int, int]:
    return row.ip, row.port, row.secure_port


def _check_joining(desk: Desk, broker: str, clusters: Collection[str]) -> None:
    if len(clusters) > CLUSTERS_OF_BROKER_MAX:
        raise BadParameter(f"A broker can be in {CLUSTERS_OF_BROKER_MAX} clusters at most.")
    entry = desk.state.brokers.get(broker)
    new = [name for name in clusters if entry is None or name not in entry.clusters]
    if new and len(clusters) == 1 and entry is not None:
        check_room(f"clusters of broker {broker}", len(entry.clusters), CLUSTERS_OF_BROKER_MAX)
    for number, name in enumerate(new):
        check_name("a cluster", name)
        cluster = desk.state.clusters.get(name)
        if cluster is None:
            check_room("clusters", len(desk.state.clusters) + number, CLUSTERS_MAX)
        else:
            check_room(f"brokers in cluster {name}", len(cluster.brokers), MEMBERS_MAX)
