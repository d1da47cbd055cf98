"""Rounds of load with something killed in each, and books that must balance at the end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import fairlead.sync
from fairlead.client.bulk import BulkConnection
from fairlead.errors import FairleadError, Unavailable
from fairlead.pipeline.arrow import mask_of, record_batch
from fairlead.testing import Server
from tests.pipeline.crashing import flows as flow_table
from tests.pipeline.crashing.books import Books
from tests.pipeline.crashing.driver import Driver
from tests.pipeline.crashing.flows import CURSOR, FLOWS, SEEN, Flow
from tests.pipeline.crashing.load import Party, Producer, Rival
from tests.processes.durable.books import Faults
from tests.processes.durable.crash import EventsSeen, free_port

MM: Final = "message-manager"
HURTS: Final = {
    "driver": "kill -9 of Spark, driver and all, at any moment",
    "planned": "the same when a batch has been planned",
    "published": "the same when a batch has just been published",
    "worker": "kill -9 of a Python worker",
    "manager": "kill -9 of the message manager",
    "connections": "kill -9 of a connection manager",
    "broker": "the whole server is stopped, and started again",
    "crash": "kill -9 of the whole server, which is started again",
}
SETTINGS: Final[dict[str, Any]] = {"limits.frozen_s": 600}
BALANCED_S: Final = 240.0
WORKING_S: Final = 90.0  # until a batch is seen that something can happen to
DEAD_S: Final = 90.0
"""So long nothing may come out of the pipeline at the end, with something left to come."""


@dataclass
class Report:
    """How a run ended."""

    seed: int
    rounds: int = 0
    hurts: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    failures: list[str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)

    def lines(self) -> list[str]:
        return [
            f"seed {self.seed}, {self.rounds} rounds, {self.starts} starts of Spark",
            *(f"  {HURTS[name]}: {count}" for name, count in sorted(self.hurts.items())),
            *(f"  {name}: {count:,}" for name, count in sorted(self.counts.items())),
            f"  queries that failed and were started again: {len(self.failures)}",
            *(f"    {count} × {text}" for text, count in Counter(self.failures).most_common(5)),
            *(f"  FAULT {text}" for text in self.faults.found),
            "  everything was there once, in order" if not self.faults.found else "  NOT exactly once",
        ]


class Crashing:
    """One server, one Spark, two flows."""

    def __init__(self, server: Server, work: Path, seed: int, flows: Sequence[str], plant: str = "") -> None:
        self.server = server
        self.work = work
        self.chance = random.Random(seed)
        self.flows = [FLOWS[name] for name in flows]
        self.books = {flow.name: Books(flow.name) for flow in self.flows}
        self.report = Report(seed)
        self.driver = Driver(server.url, work, flows=flows, plant=plant)
        self.bulk = BulkConnection(server.url, name="looking", patience_s=60.0)
        self._events = EventsSeen(server.data)
        self._make()
        self.producers = [
            Producer(server.url, flow, self.books[flow.name], random.Random(f"{seed}/{flow.name}"))
            for flow in self.flows
        ]
        self.rivals = [Rival(server.url, flow, self.books[flow.name]) for flow in self.flows if flow.name == "queue"]

    def _make(self) -> None:
        with fairlead.sync.connect(self.server.url, name="making") as connection:
            for flow in self.flows:
                for name, kind in ((flow.source, flow.name), (flow.sink, flow.sink_kind)):
                    keep = {"retain_messages": -1} if kind == "topic" else {}
                    connection.admin.execute("create", destination=name, kind=kind, parameters=keep)

    @property
    def parties(self) -> list[Party]:
        return [*self.producers, *self.rivals]

    # A run.

    def run(self, rounds: int, hurts: Sequence[str], say: Callable[[str], None] = lambda text: None) -> Report:
        try:
            self.driver.start()
            for party in self.parties:
                party.start()
            self.driver.until("ready")
            self.load(True)
            for number in range(rounds):
                hurt = hurts[number] if len(hurts) >= rounds else self.chance.choice(list(hurts))
                self.until_working()
                self.hurt(hurt)
                self.report.rounds += 1
                say(f"round {number}: {hurt}")
            self.until_working()
            self.balance()
        except (AssertionError, RuntimeError, FairleadError) as error:
            self.report.faults.add("it did not go on", f"{type(error).__name__}: {error}"[-3000:])
        finally:
            self.close()
        return self.report

    def load(self, on: bool) -> None:
        for producer in self.producers:
            (producer.go.set if on else producer.go.clear)()
        if not on:
            for producer in self.producers:
                assert producer.resting.wait(60), "a producer does not come to rest"

    def until_working(self) -> None:
        """Something new came out of each flow."""
        deadline_s = time.monotonic() + DEAD_S
        before = {flow.name: self.beyond(flow) for flow in self.flows}
        while any(self.beyond(flow) == before[flow.name] for flow in self.flows):
            assert time.monotonic() < deadline_s, f"nothing comes any more:\n{self.driver.log()}"
            time.sleep(0.02)

    def beyond(self, flow: Flow) -> int:
        return self.bulk.positions(flow.sink).destinations[0].next

    # What is done to it.

    def hurt(self, what: str) -> None:
        self.report.hurts[what] += 1
        match what:
            case "driver" | "planned" | "published":
                if what == "driver":
                    time.sleep(self.chance.uniform(0.0, 1.5))
                else:
                    self.until_one_is(what, self.chance.choice(self.flows))
                self.driver.kill()
                self.load(False)  # else there is more to do after each start than was done before it
                self.driver.start()
                self.driver.until("ready")
                self.load(True)
            case "worker":
                deadline_s = time.monotonic() + WORKING_S
                time.sleep(self.chance.uniform(0.0, 0.5))
                while not self.driver.kill_worker(self.chance):
                    assert time.monotonic() < deadline_s, "there is no Python worker"
                    time.sleep(0.01)
            case "manager" | "connections":
                time.sleep(self.chance.uniform(0.0, 0.5))
                pids = self._pids(MM if what == "manager" else "manager")
                if pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.chance.choice(pids), signal.SIGKILL)
            case "broker" | "crash":
                time.sleep(self.chance.uniform(0.0, 0.5))
                (self.server.stop if what == "broker" else self.server.kill_everything)()
                time.sleep(self.chance.uniform(0.0, 1.0))
                self.server.start()
            case _:
                raise ValueError(what)

    def until_one_is(self, what: str, flow: Flow) -> None:
        """A batch has just been planned: its offsets are in the checkpoint; or published: it can be seen."""
        look: Callable[[], int]
        if what == "published":
            look = lambda: self.beyond(flow)  # noqa: E731
        else:
            offsets = flow_table.checkpoint(self.work, flow) / "offsets"
            look = lambda: max((int(one.name) for one in offsets.glob("[0-9]*")), default=-1)  # noqa: E731
        before, deadline_s = look(), time.monotonic() + WORKING_S
        while look() == before:
            assert time.monotonic() < deadline_s, f"no batch of {flow.name} is {what}:\n{self.driver.log()}"
            time.sleep(0.001)

    def _pids(self, role: str) -> list[int]:
        try:
            return self.server.pids(role)
        except (Unavailable, OSError):
            return []

    # The end.

    def balance(self) -> None:
        """Everything comes to rest: all that was sent is where it belongs, and no queue holds anything back."""
        self.load(False)
        for rival in self.rivals:
            rival.close()
        for party in self.parties:
            if party.error is not None:
                self.report.faults.add("a client ended", repr(party.error))
        for flow in self.flows:
            self._await_all(flow)
            self.books[flow.name].check(self.arrived(flow), self.report.faults)
        if not self.report.faults.found:
            self._check_nothing_is_held()
        self._events.look(self.report.faults)

    def _await_all(self, flow: Flow) -> None:
        """Until all is there, or nothing has come for long."""
        books = self.books[flow.name]
        seen, since_s, until_s = -1, time.monotonic(), time.monotonic() + BALANCED_S
        while books.missing(arrived := self.arrived(flow)):
            now_s = time.monotonic()
            if len(arrived) != seen:
                seen, since_s = len(arrived), now_s
            if now_s > until_s or now_s - since_s > DEAD_S:
                return
            time.sleep(0.1)

    def arrived(self, flow: Flow) -> list[int]:
        """Numbers in the sink, in its order."""
        there = self.bulk.positions(flow.sink).destinations[0]
        found: list[int] = []
        names = ["body"]
        for columns in self.bulk.scan(flow.sink, there.first, there.next, columns=mask_of(names)):
            for body in record_batch(columns, flow.sink, names).column("body"):
                number, seen, rest = body.as_py().partition(SEEN)
                assert (seen, rest) == (SEEN, b""), body
                found.append(int(number))
        return found

    def _check_nothing_is_held(self) -> None:
        """Spark says that a batch is done when it plans the next: one more message, and all before it are gone."""
        for flow in self.flows:
            if flow.name != "queue":
                continue
            books = self.books[flow.name]
            number = max(books.keys) + 1
            with fairlead.sync.connect(self.server.url, name="last") as connection:
                books.keys[number] = "last"
                connection.queue(flow.source, create=False).send(b"%d" % number, key="last")
                books.confirmed.add(number)
            self._await_all(flow)
            until_s = time.monotonic() + DEAD_S
            while True:
                cursor = self.bulk.cursor_open(flow.source, CURSOR)
                there = self.bulk.positions(flow.source).destinations[0]
                if cursor.reserved - cursor.at <= 1 and there.next - there.low <= 1:
                    break
                if time.monotonic() > until_s:
                    self.report.faults.add("held back", f"{flow.name}: {cursor}, {there}")
                    break
                time.sleep(0.1)
            books.check(self.arrived(flow), self.report.faults)

    def close(self) -> None:
        for party in self.parties:
            if party.is_alive():
                party.close()
        self.driver.kill()
        self.bulk.close()
        report = self.report
        report.starts = self.driver.starts
        report.failures = self.driver.failures()
        for name, books in self.books.items():
            report.counts[f"{name}: sent"] = len(books.confirmed)
            if books.taken:
                report.counts[f"{name}: taken by another consumer"] = len(books.taken)


@contextlib.contextmanager
def world(seed: int, flows: Sequence[str] = tuple(FLOWS), plant: str = "") -> Iterator[Crashing]:
    """A server on a port that stays the same, and a place for checkpoints."""
    with tempfile.TemporaryDirectory(prefix="fairlead-crashing-", ignore_cleanup_errors=True) as place:
        data, work = Path(place, "data"), Path(place, "work")
        data.mkdir()
        work.mkdir()
        with Server(managers=2, listen=f"127.0.0.1:{free_port()}", data=data, **SETTINGS) as server:
            yield Crashing(server, work, seed, flows, plant)
