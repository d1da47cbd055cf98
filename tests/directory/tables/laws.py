"""What holds of the tables whatever is said to them: a machine that says all sorts of things, beside a small model."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.directory.rules import ALL_RULES, Rules
from fairlead.directory.tables import Tables
from fairlead.errors import FairleadError, NameTaken, NoneAvailable, UnknownBroker, UnknownCluster

from .rig import Rig

BROKERS = ("A", "B", "C", "D")
CLUSTERS = ("c", "d")
APPS = ("AX", "AY")
IDENTITIES = tuple(f"i{number}" for number in range(4))
brokers = st.sampled_from(BROKERS)
clusters = st.sampled_from(CLUSTERS)
apps = st.sampled_from(APPS)
identities = st.sampled_from(IDENTITIES)
clients = st.sampled_from(("client-1", "client-2"))


class Directory(RuleBasedStateMachine):
    switches: ClassVar[Rules] = ALL_RULES

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(rules=self.switches, lease_s=15, reserve_s=10, suspect_s=10)
        self.alive: dict[str, str] = {}  # broker: identity of who holds its name and renews
        self.rows: dict[tuple[str, str], str] = {}  # application, identity: broker
        self.labels: dict[tuple[str, str], str] = {}
        self.numbers: dict[str, int] = {}  # application: highest number of a label given
        self.over: set[tuple[str, str]] = set()  # closed for good
        self.static: set[str] = set()
        self.reports: dict[str, dict[str, int]] = {}
        self.told: dict[str, dict[str, Any]] = {}
        for name in BROKERS[:3]:
            self.put(name, "one", ["c"], 2)

    # brokers

    @rule(
        name=brokers,
        who=st.sampled_from(("one", "two")),
        where=st.lists(clusters, unique=True),
        limit=st.integers(1, 4),
    )
    def put(self, name: str, who: str, where: list[str], limit: int) -> None:
        taken = self.alive.get(name, who) != who
        try:
            self.rig.broker(name, *where, identity=who, limit=limit)
        except NameTaken:
            assert taken
            return
        assert not taken, "the name of a living broker was given away (DIR-33)"
        if name not in self.alive:
            self.drop(name)
        self.alive[name] = who

    @rule(name=brokers, state=st.sampled_from(("up", "up", "full", "draining")))
    def renew(self, name: str, state: str) -> None:
        known = name in self.rig.brokers()
        identity = self.rig.brokers()[name]["identity"] if known else "one"
        answer = self.rig.say("renew", name=name, identity=identity, state=state)
        assert answer["known"] == known
        if known:
            self.alive[name] = identity

    @rule(name=brokers)
    def remove(self, name: str) -> None:
        self.rig.say("remove_broker", name=name)
        self.alive.pop(name, None)
        self.drop(name)

    @rule(name=brokers, cluster=clusters, position=st.none() | st.integers(0, 3))
    def join(self, name: str, cluster: str, position: int | None) -> None:
        try:
            self.rig.say("join_cluster", cluster=cluster, broker=name, position=position)
        except UnknownBroker:
            assert name not in self.rig.brokers()

    @rule(name=brokers, cluster=clusters, app=apps, used=st.booleans(), picks=st.integers(0, 3))
    def leave(self, name: str, cluster: str, app: str, used: bool, picks: int) -> None:
        for _ in range(picks):
            with suppress(NoneAvailable, UnknownCluster):
                self.rig.pick(app, cluster)
        order, last = self.order(cluster), self.last(app, cluster)
        name = last if used and last else name
        self.rig.say("leave_cluster", cluster=cluster, broker=name)
        if name in order and len(order) > 1 and last == name:
            successor = order[(order.index(name) + 1) % len(order)]
            left, last = self.order(cluster), self.last(app, cluster)
            assert left[(left.index(last) + 1) % len(left) if last in left else 0] == successor, "DIR-44"

    # connections

    @rule(name=brokers, app=apps, identity=identities, client=clients)
    def opened(self, name: str, app: str, identity: str, client: str) -> None:
        key = (app, identity)
        try:
            label = self.rig.open(name, identity, app, client=client)
        except FairleadError:
            assert name not in self.alive or self.rows.get(key, name) != name
            return
        if key in self.rows:
            assert label == self.labels[key], "two reports are one row (DIR-16)"
        elif key in self.over:
            assert label == "", "closed before opened (DIR-17)"
        else:
            self.gave(key, label)
            self.rows[key] = name

    @rule(app=apps, identity=identities, name=brokers)
    def closed(self, app: str, identity: str, name: str) -> None:
        key = (app, identity)
        here = self.rows.get(key)
        self.rig.close(here or name, identity, app)
        self.over.add(key)
        if here is not None:
            del self.rows[key]
            self.forget(app)

    @rule(name=brokers, app=apps, said=st.sets(identities, max_size=3), labelled=st.booleans())
    def restate(self, name: str, app: str, said: set[str], labelled: bool) -> None:
        if name not in self.rig.brokers():
            return
        links = []
        for identity in sorted(said):
            label = self.labels.get((app, identity), "") if labelled else ""
            links.append([app, "dynamic", {"identity": identity, "broker": name, "label": label}])
        who = self.rig.brokers()[name]["identity"]
        used = {self.labels[key] for key in self.rows if key[0] == app}
        labels = self.rig.say("restate", name=name, identity=who, links=links)["labels"]
        self.alive[name] = who
        for identity in sorted(said):
            key = (app, identity)
            if self.rows.get(key, name) != name:
                continue
            self.over.discard(key)
            old = self.labels.get(key, "")
            if key in self.rows or (labelled and old and old not in used):
                assert labels[identity] == old, "a connection keeps its label (DIR-21)"
                used.add(old)
            self.labels[key] = labels[identity]
            self.numbers[app] = max(self.numbers.get(app, 0), int(labels[identity].rpartition("-")[2]))
            self.rows[key] = name
        gone = [key for key, at in self.rows.items() if at == name and (key[0] != app or key[1] not in said)]
        for key in gone:
            del self.rows[key]
        for one in APPS:
            self.forget(one)

    @rule(app=apps, name=brokers, kind=st.sampled_from(("static", "dynamic")))
    def register(self, app: str, name: str, kind: str) -> None:
        if name not in self.rig.brokers() or (kind == "dynamic" and not any(key[0] == app for key in self.rows)):
            return
        self.rig.say("register_app", app=app, kind=kind, broker=name)
        (self.static.add if kind == "static" else self.static.discard)(app)

    # picks

    @rule(app=apps, cluster=clusters, exclude=st.sets(brokers, max_size=2), request=st.integers(0, 5))
    def pick(self, app: str, cluster: str, exclude: set[str], request: int) -> None:
        held = {place["reservation"]: place for place in self.rig.say("status")["reservations"] if place["app"] == app}
        before = held.get(f"r{request}")
        free = self.free()
        try:
            broker, _ = self.rig.pick(app, cluster, f"r{request}", exclude=sorted(exclude))
        except (NoneAvailable, UnknownCluster):
            return
        assert broker not in exclude
        assert self.rig.pick(app, cluster, f"r{request}", exclude=sorted(exclude))[0] == broker
        if before is not None and before["cluster"] == cluster and before["broker"] not in exclude:
            assert broker == before["broker"], "a request said again is the same pick"
        else:
            assert free[broker] > 0, "capacity counts all connections and reservations (DIR-50, DIR-51)"
            assert broker in self.alive, "a broker without a lease was picked (DIR-22)"
            assert broker in self.order(cluster)

    @rule(app=apps, request=st.integers(0, 5), identity=identities)
    def use(self, app: str, request: int, identity: str) -> None:
        """Open what was picked: places at the broker taken by it stay as many (DIR-51)."""
        places = {
            place["reservation"]: place for place in self.rig.say("status")["reservations"] if place["app"] == app
        }
        key = (app, identity)
        if (place := places.get(f"r{request}")) is None or key in self.rows or key in self.over:
            return
        free = self.free()
        self.gave(key, self.rig.open(place["broker"], identity, app, reservation=place["reservation"]))
        self.rows[key] = place["broker"]
        assert self.free() == free, "the row takes the place of the reservation"

    @rule(app=apps, name=brokers, client=clients, request=st.integers(0, 5))
    def failed(self, app: str, name: str, client: str, request: int) -> None:
        known = name in self.rig.brokers()
        suspects = self.rig.say("status")["suspects"]
        self.rig.say("report_failure", app=app, broker=name, client=client, reason="", reservation=f"r{request}")
        if known:
            reports = self.reports.setdefault(name, {})
            reports[client] = self.rig.now_ms
            if name in self.rig.say("status")["suspects"] and name not in suspects:
                assert len(reports) > 1, "one client alone cannot have a broker skipped (DIR-64)"

    # time, servers

    @rule(seconds=st.sampled_from((1, 5, 10)))
    def time(self, seconds: int) -> None:
        leases = self.rig.say("status")["leases"]
        self.rig.time(seconds)
        for name in [name for name in self.alive if leases[name] <= seconds]:
            del self.alive[name]
            self.drop(name, faded=True)

    @rule()
    def fail_over(self) -> None:
        self.rig.fail_over()

    @precondition(lambda self: self.rig.log)
    @rule(data=st.data())
    def said_again(self, data: st.DataObject) -> None:
        """A change that was applied comes once more, as after a restart from a checkpoint."""
        change = self.rig.log[data.draw(st.integers(0, len(self.rig.log) - 1))]
        kept = self.rig.tables.snapshot()
        assert not self.rig.tables.apply(change)
        assert self.rig.tables.snapshot() == kept

    # laws

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        for app in APPS:
            found = self.rig.app(app)
            links = {link["identity"]: link for link in found.get("links", ())} if found else {}
            assert {(app, identity): link["broker"] for identity, link in links.items()} == {
                key: broker for key, broker in self.rows.items() if key[0] == app
            }
            assert all(link["label"] == self.labels[app, identity] for identity, link in links.items())
            assert len({link["label"] for link in links.values()}) == len(links), "no label twice (DIR-13)"
            assert (found is not None) == (bool(links) or app in self.static), "DIR-27, DIR-28"
            assert found is None or (found["kind"] == "static") == (app in self.static)

    @invariant()
    def tables_refer_to_what_there_is(self) -> None:
        rows = self.rig.brokers()
        for cluster in self.rig.say("list_clusters")["clusters"]:
            for name in cluster.get("brokers", ()):
                assert name in rows, "a cluster lists only brokers that have a row (DIR-18)"
                assert cluster["name"] in rows[name]["clusters"]
        for broker in self.rows.values():
            assert broker in rows
            assert broker in self.alive, "connections end with the lease (DIR-22)"
        held = Counter(self.rows.values())
        assert all(row.get("connections", 0) == held[name] for name, row in rows.items())

    @invariant()
    def unchanged_means_unchanged(self) -> None:
        for name in CLUSTERS:
            before = self.told.get(name)
            try:
                answer = self.rig.say("get_cluster", cluster=name)
            except UnknownCluster:
                self.told.pop(name, None)
                continue
            if before is not None:
                again = self.rig.say("get_cluster", cluster=name, newer_than=before["revision"])
                if again.get("unchanged"):
                    assert {**before, "revision": 0} == {**answer, "revision": 0}
            assert all(row.get("available", False) <= (row["name"] in self.alive) for row in answer["brokers"])
            self.told[name] = answer

    @invariant()
    def servers_are_alike(self) -> None:
        kept = self.rig.tables.snapshot()
        assert self.rig.replayed().snapshot() == kept

    def teardown(self) -> None:
        kept = self.rig.tables.snapshot()
        other = Tables(self.rig.settings, rules=self.switches)
        other.restore(json.loads(json.dumps(kept)))
        assert other.snapshot() == kept

    # the model

    def gave(self, key: tuple[str, str], label: str) -> None:
        """A new label: the next number (DIR-13)."""
        app = key[0]
        number = self.numbers.get(app, 0) + 1
        assert label == f"{app}-{number}", "labels rise by one"
        self.numbers[app] = number
        self.labels[key] = label

    def drop(self, broker: str, *, faded: bool = False) -> None:
        for key in [key for key, at in self.rows.items() if at == broker]:
            del self.rows[key]

    def forget(self, app: str) -> None:
        """A dynamic application whose last connection was closed begins anew."""
        faded = {name for name, _ in self.rig.tables.snapshot()["faded"]}
        if app not in self.static and not any(key[0] == app for key in self.rows) and app not in faded:
            self.numbers.pop(app, None)

    def order(self, cluster: str) -> list[str]:
        found = [row for row in self.rig.say("list_clusters")["clusters"] if row["name"] == cluster]
        return list(found[0].get("brokers", ())) if found else []

    def last(self, app: str, cluster: str) -> str:
        """The broker its rotation used last."""
        turns = self.rig.say("status")["rotations"]
        return next((turn["last"] for turn in turns if (turn["app"], turn["cluster"]) == (app, cluster)), "")

    def free(self) -> dict[str, int]:
        """Places left by the model's own count of rows, and the reservations told."""
        taken = Counter(self.rows.values())
        taken.update(place["broker"] for place in self.rig.say("status")["reservations"])
        return {name: row.get("limit", 2000) - taken[name] for name, row in self.rig.brokers().items()}
