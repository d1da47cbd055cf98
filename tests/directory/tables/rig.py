"""Tables with a clock, a log and a backup: what is decided is written, applied, and applied again elsewhere."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from fairlead.directory.operations import OPERATIONS, read
from fairlead.directory.rules import ALL_RULES, Rules
from fairlead.directory.tables import Tables, TableSettings

ADMIN = ("_DIRECTORY",)


class Rig:
    """`rig.say("pick_broker", app=…)` at the primary; others apply what went through JSON."""

    def __init__(self, *, rules: Rules = ALL_RULES, **settings: Any) -> None:
        self.settings = TableSettings(**settings)
        self.rules = rules
        self.now_ms = 1_000_000
        self.log: list[dict[str, Any]] = []
        self._backup = Tables(self.settings, rules=rules)
        self.tables = Tables(self.settings, rules=rules)
        self.tables.begin(self.now_ms)
        self.requests = 0

    def say(self, op: str, *, may: Collection[str] = ADMIN, **arguments: Any) -> dict[str, Any]:
        self.time()
        asked = read(op, json.loads(json.dumps(arguments)))
        if not OPERATIONS[op].writes:
            return self.tables.ask(op, asked, self.now_ms)
        decision = self.tables.decide(op, asked, self.now_ms, may=may)
        self.write(decision.changes)
        answer = decision.answer()
        assert json.loads(json.dumps(answer))["revision"] == self.tables.revision
        return answer

    def time(self, more_s: float = 0) -> None:
        """Let time pass; whatever ends with it is noticed when it ends."""
        then_ms = self.now_ms + round(more_s * 1000)
        while (due := self.tables.next_ms) is not None and due <= then_ms:
            self.now_ms = max(self.now_ms, due)
            self.write(self.tables.tick(self.now_ms))
        self.now_ms = then_ms

    def write(self, changes: list[dict[str, Any]]) -> None:
        for change in changes:
            self.log.append(json.loads(json.dumps(change)))
            assert self.tables.apply(change)

    def replayed(self) -> Tables:
        """Another server that applies the log; it has been there from the beginning."""
        for change in self.log[self._backup.revision :]:
            self._backup.apply(change)
        return self._backup

    def fail_over(self) -> None:
        """Another server leads from here."""
        self.tables = self.replayed()
        self.tables.begin(self.now_ms)
        self._backup = Tables(self.settings, rules=self.rules)

    # the usual

    def broker(self, name: str, *clusters: str, **row: Any) -> None:
        row = {"name": name, "ip": "127.0.0.1", "port": 7000 + sum(name.encode()), "identity": f"id-{name}", **row}
        self.say("put_broker", broker=row, clusters=list(clusters))

    def renew(self, *names: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for name in names:
            answer = self.say("renew", name=name, identity=f"id-{name}", **more)
        return answer

    def pick(self, app: str = "AX", cluster: str = "c", request: str = "", **more: Any) -> tuple[str, str]:
        """Which broker, and the reservation."""
        self.requests += 1
        answer = self.say("pick_broker", app=app, cluster=cluster, request=request or f"q{self.requests}", **more)
        return answer["broker"]["name"], answer["reservation"]

    def open(self, broker: str, identity: str, app: str = "AX", *, reservation: str = "", **more: Any) -> str:
        kind = more.pop("kind", "dynamic")
        link = {"identity": identity, "broker": broker, "cluster": "c", **more}
        return str(self.say("connection_opened", app=app, link=link, kind=kind, reservation=reservation)["label"])

    def connect(self, app: str = "AX", cluster: str = "c", **more: Any) -> tuple[str, str]:
        """Picked and opened: broker and label."""
        broker, reservation = self.pick(app, cluster, **more)
        return broker, self.open(broker, f"i{self.requests}", app, reservation=reservation, cluster=cluster)

    def close(self, broker: str, identity: str, app: str = "AX") -> dict[str, Any]:
        return self.say("connection_closed", app=app, identity=identity, broker=broker)

    def app(self, name: str = "AX") -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.say("lookup_app", app=name)["app"]
        return found

    def rows(self, name: str = "AX") -> dict[str, str]:
        """Label: broker."""
        app = self.app(name)
        return {link["label"]: link["broker"] for link in app.get("links", ())} if app else {}

    def brokers(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.say("list_brokers")["brokers"]}

    def available(self) -> str:
        return "".join(name for name, row in self.brokers().items() if row.get("available"))


def abc(**settings: Any) -> Rig:
    """Cluster c = A, B, C."""
    rig = Rig(**settings)
    for name in "ABC":
        rig.broker(name, "c")
    return rig
