"""What the directory's servers keep alike: the three tables, rotations, reservations, reports (DIR-9 … DIR-13).

Only `applying.py` changes it. Nothing in it depends on a clock: what ends with time (leases, reservations, cool-downs)
ends by a change of its own, so that what a server answers is worked out when something changes, not when it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fairlead.directory.digest import row_sum
from fairlead.directory.rows import AppKind, Application, Broker, Cluster, Heuristic, Link, Rule


@dataclass(slots=True)
class BrokerEntry:
    row: Broker  # as the broker said it
    leased: bool = True  # its lease has not ended
    links: dict[tuple[str, str], None] = field(default_factory=dict)  # application, identity; the oldest is the first
    reserved: int = 0
    clusters: dict[str, None] = field(default_factory=dict)
    reports: dict[str, int] = field(default_factory=dict)  # client that could not connect: when
    suspect: bool = False  # skipped for a cool-down (DIR-64)
    failures: int = 0
    reason: str = ""  # of the last failure
    sum: int = 0  # of the digests of its links
    moves: dict[str, None] = field(default_factory=dict)  # identities that should go elsewhere
    available: bool = False
    told: dict[str, Any] | None = None  # the row as answers show it

    @property
    def fit(self) -> bool:
        """Is it available, apart from the cool-down?"""
        row = self.row
        return self.leased and row.state == "up" and len(self.links) + self.reserved < row.limit


@dataclass(slots=True)
class ClusterEntry:
    brokers: list[str] = field(default_factory=list)
    heuristic: Heuristic | None = None
    rule: Rule | None = None
    revision: int = 0  # of the last change that `get_cluster` would show
    picks: int = 0
    told: dict[str, Any] | None = None


@dataclass(slots=True)
class AppEntry:
    kind: AppKind
    user: str = ""
    home: str = ""  # static: where its messages wait; dynamic: where it registered and has no connection yet
    last: int = 0
    links: dict[str, Link] = field(default_factory=dict)
    closing: dict[str, None] = field(default_factory=dict)  # identities whose brokers are told to close them
    told: dict[str, Any] | None = None
    told_with: int = -1  # `brokers_version` of that


@dataclass(slots=True)
class Turn:
    """The place of an application in the rotation of a cluster: the broker used last, turns left (or too many)."""

    last: str = ""
    owed: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Reservation:
    cluster: str
    broker: str
    until_ms: int
    rotated: bool  # picked by rotation: if it comes to nothing, the broker has a turn left


@dataclass(slots=True)
class State:
    revision: int = 0
    brokers: dict[str, BrokerEntry] = field(default_factory=dict)
    clusters: dict[str, ClusterEntry] = field(default_factory=dict)
    apps: dict[str, AppEntry] = field(default_factory=dict)
    turns: dict[tuple[str, str], Turn] = field(default_factory=dict)  # cluster, application; used longest ago: first
    reservations: dict[tuple[str, str], Reservation] = field(default_factory=dict)  # application, request
    closed: dict[tuple[str, str], None] = field(default_factory=dict)  # application, identity
    faded: dict[str, int] = field(default_factory=dict)  # application that went with a broker's lease: its last number
    keys: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)  # application: id: published key
    suspects: dict[str, int] = field(default_factory=dict)  # broker: until when
    moving: dict[str, int] = field(default_factory=dict)  # broker with `moves`: until when
    heuristic: Heuristic | None = None  # of clusters that say nothing; None: as configured
    rule: Rule | None = None
    picks: int = 0
    failures: int = 0
    # worked out from the above
    loads: dict[str, dict[str, int]] = field(default_factory=dict)  # application: broker: connections and reservations
    links: int = 0
    keys_count: int = 0
    brokers_version: int = 0  # raised when a row in answers changes

    def refresh(self, entry: BrokerEntry) -> None:
        """Its counts, lease, state or cool-down may have changed: is it available now (DIR-50)?"""
        available = entry.fit and not entry.suspect
        if available is not entry.available:
            entry.available = available
            self.touch(entry)

    def touch(self, entry: BrokerEntry) -> None:
        """The row that answers show has changed."""
        entry.told = None
        self.brokers_version += 1
        for name in entry.clusters:
            self.touch_cluster(self.clusters[name])

    def touch_cluster(self, cluster: ClusterEntry) -> None:
        cluster.told = None
        cluster.revision = self.revision

    def count(self, app: str, broker: str, more: int) -> None:
        loads = self.loads.setdefault(app, {})
        loads[broker] = loads.get(broker, 0) + more
        if not loads[broker]:
            del loads[broker]
            if not loads:
                del self.loads[app]

    def add_link(self, name: str, app: AppEntry, link: Link) -> None:
        entry = self.brokers[link.broker]
        app.links[link.identity] = link
        app.told = None
        app.last = max(app.last, label_number(name, link.label))
        entry.links[name, link.identity] = None
        entry.sum += row_sum(name, link.identity, link.label)
        self.links += 1
        self.count(name, link.broker, 1)

    def new_app(self, name: str, kind: AppKind, user: str = "", home: str = "") -> AppEntry:
        app = self.apps[name] = AppEntry(kind, user, home, self.faded.pop(name, 0))
        return app

    def last_number(self, name: str) -> int:
        app = self.apps.get(name)
        return app.last if app is not None else self.faded.get(name, 0)

    def drop_link(self, name: str, app: AppEntry, identity: str) -> Link:
        link = app.links.pop(identity)
        app.closing.pop(identity, None)
        app.told = None
        entry = self.brokers[link.broker]
        del entry.links[name, identity]
        entry.moves.pop(identity, None)
        entry.sum -= row_sum(name, identity, link.label)
        self.links -= 1
        self.count(name, link.broker, -1)
        return link

    def snapshot(self) -> dict[str, Any]:
        """All of it in plain values, for JSON; where order means something it is a list."""
        return {
            "revision": self.revision,
            "brokers": [
                [
                    msgspec.structs.asdict(entry.row),
                    entry.leased,
                    list(map(list, entry.links)),
                    list(entry.clusters),
                    list(map(list, entry.reports.items())),
                    [entry.failures, entry.reason],
                    list(entry.moves),
                ]
                for entry in self.brokers.values()
            ],
            "clusters": [
                [name, cluster.brokers[:], cluster.heuristic, cluster.rule, cluster.revision, cluster.picks]
                for name, cluster in self.clusters.items()
            ],
            "apps": [
                [
                    name,
                    app.kind,
                    app.user,
                    app.home,
                    app.last,
                    list(map(msgspec.structs.asdict, app.links.values())),
                    list(app.closing),
                ]
                for name, app in self.apps.items()
            ],
            "turns": [[*key, turn.last, list(map(list, turn.owed.items()))] for key, turn in self.turns.items()],
            "reservations": [
                [*key, place.cluster, place.broker, place.until_ms, place.rotated]
                for key, place in self.reservations.items()
            ],
            "closed": list(map(list, self.closed)),
            "faded": list(map(list, self.faded.items())),
            "keys": [[app, [[key_id, dict(key)] for key_id, key in keys.items()]] for app, keys in self.keys.items()],
            "suspects": list(map(list, self.suspects.items())),
            "moving": list(map(list, self.moving.items())),
            "settings": [self.heuristic, self.rule],
            "counts": [self.picks, self.failures],
        }

    @classmethod
    def restored(cls, kept: dict[str, Any]) -> State:
        state = cls(revision=kept["revision"])
        for row, leased, links, clusters, reports, (failures, reason), moves in kept["brokers"]:
            broker = msgspec.convert(row, Broker)
            state.brokers[broker.name] = BrokerEntry(
                row=broker,
                leased=leased,
                links=dict.fromkeys((app, identity) for app, identity in links),
                clusters=dict.fromkeys(clusters),
                reports=dict(reports),
                failures=failures,
                reason=reason,
                moves=dict.fromkeys(moves),
            )
        for name, brokers, heuristic, rule, revision, picks in kept["clusters"]:
            state.clusters[name] = ClusterEntry(list(brokers), heuristic, rule, revision, picks)
        for name, kind, user, home, last, links, closing in kept["apps"]:
            app = AppEntry(kind, user, home, last, closing=dict.fromkeys(closing))
            state.apps[name] = app
            for plain in links:
                state.add_link(name, app, msgspec.convert(plain, Link))
        for cluster, name, broker_name, owed in kept["turns"]:
            state.turns[cluster, name] = Turn(broker_name, dict(owed))
        for name, request, cluster, broker_name, until_ms, rotated in kept["reservations"]:
            state.reservations[name, request] = Reservation(cluster, broker_name, until_ms, rotated)
            state.brokers[broker_name].reserved += 1
            state.count(name, broker_name, 1)
        state.closed = dict.fromkeys((app, identity) for app, identity in kept["closed"])
        state.faded = dict(kept["faded"])
        state.keys = {app: {key_id: dict(key) for key_id, key in keys} for app, keys in kept["keys"]}
        state.keys_count = sum(map(len, state.keys.values()))
        state.suspects = dict(kept["suspects"])
        state.moving = dict(kept["moving"])
        state.heuristic, state.rule = kept["settings"]
        state.picks, state.failures = kept["counts"]
        for name, entry in state.brokers.items():
            entry.suspect = name in state.suspects
            entry.available = entry.fit and not entry.suspect
        return state

    # rows as answers show them

    def told_broker(self, name: str) -> dict[str, Any]:
        """The row without counts, so that it changes only when a client must know."""
        entry = self.brokers.get(name)
        if entry is None:
            row = Broker(name=name, ip="", port=0, missing=True)
            return _plain(row)
        if entry.told is None:
            entry.told = _plain(msgspec.structs.replace(entry.row, available=entry.available))
        return entry.told

    def full_broker(self, name: str) -> dict[str, Any]:
        entry = self.brokers[name]
        row = msgspec.structs.replace(
            entry.row,
            available=entry.available,
            clusters=tuple(entry.clusters),
            connections=len(entry.links),
            reserved=entry.reserved,
        )
        return _plain(row)

    def told_cluster(self, name: str) -> dict[str, Any]:
        cluster = self.clusters[name]
        row = Cluster(name=name, brokers=tuple(cluster.brokers), heuristic=cluster.heuristic, rule=cluster.rule)
        return msgspec.to_builtins(row)  # type: ignore[no-any-return]

    def told_app(self, name: str) -> dict[str, Any]:
        """What `lookup_app` says: the application with its rows, and the brokers in them (DIR-19)."""
        app = self.apps[name]
        if app.told is None or app.told_with != self.brokers_version:
            static = app.kind == "static"
            row = Application(
                name=name,
                kind=app.kind,
                user=app.user,
                broker=app.home if static else "",
                broker_missing=static and app.home not in self.brokers,
                last=app.last,
                links=tuple(app.links.values()),
                keys=tuple(self.keys.get(name, {}).values()),
            )
            names = dict.fromkeys(link.broker for link in app.links.values())
            if static:
                names[app.home] = None
            app.told = {"app": msgspec.to_builtins(row), "brokers": [self.told_broker(broker) for broker in names]}
            app.told_with = self.brokers_version
        return app.told


_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(Broker)}


def _plain(row: Broker) -> dict[str, Any]:
    """Without what is as usual, by value: the same at every server, wherever its copy of the row came from."""
    return {name: value for name, value in msgspec.structs.asdict(row).items() if value != _DEFAULTS[name]}


def label_number(app: str, label: str) -> int:
    """The number in a label of this application; 0: it is none."""
    head, _, tail = label.rpartition("-")
    number = int(tail) if head == app and tail.isascii() and tail.isdigit() and len(tail) < 14 else 0
    return number if label == f"{app}-{number}" else 0
