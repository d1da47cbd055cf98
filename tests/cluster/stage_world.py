"""A message manager with stages beside a model of what it has to show, through crashes at any point."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.cluster.recovery import Checkpoint
from fairlead.wire.entry_codec import encode
from tests.cluster.manager_rig import Client, Manager, MemorySheet, Refused

DESTINATIONS = {"q": "queue", "t": "topic", "k": "queue"}
QUERIES = ("one", "two")
NAMES = ("p0", "p1", "p2")
Key = tuple[str, int, str]


@dataclass
class State:
    """What there is, as somebody with the list of all operations would say."""

    stages: dict[Key, dict[str, int]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    logs: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in DESTINATIONS})

    def drop(self, query: str, batch: int, *, only: bool = False) -> int:
        gone = [key for key in self.stages if key[0] == query and (key[1] == batch if only else key[1] <= batch)]
        for key in gone:
            del self.stages[key]
        return len(gone)


def body(key: Key, destination: str, row: int) -> bytes:
    return f"{key[0]}/{key[1]}/{key[2]}/{destination}/{row}".encode()


def look(destination: str, row: int) -> dict[str, Any]:
    """Some messages are out of the ordinary, so that their records have to be looked into."""
    return {"priority": 3 + row % 6, "ttl_ms": 10_000_000} if destination == "k" else {}


class World:
    """Steps may leave what they did unsafe; `crash` then takes the manager back to what was."""

    STEPS = (
        *("stage", "stage", "stage", "stage", "stage", "publish", "publish", "abandon", "send", "sync", "sync_some"),
        *("crash", "checkpoint", "checkpoint", "checkpoint", "reconnect"),
    )

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.manager = Manager(folder)
        self.state = State()
        setup = self.manager.client("ann")
        session = setup.do("session")
        for name, kind in DESTINATIONS.items():
            setup.do("produce", session=session["session"], destination=name, kind=kind, create=True)
        subscriber = {"messages": 0, "bytes": 0, "durable": "kept"}
        setup.do("consume", session=session["session"], destination="t", kind="topic", **subscriber)
        picky = {**subscriber, "durable": "picky", "selector": "JMSPriority > 6"}
        setup.do("consume", session=session["session"], destination="t", kind="topic", **picky)
        self.snapshots: list[tuple[int, State]] = []
        self.taking: Checkpoint | None = None
        self.sheet = MemorySheet()
        self.sent = 0
        self.manager.is_holding = True
        self._note()
        self._connect()

    # ------------------------------------------------------------------ the machinery

    def _connect(self) -> None:
        self.client: Client = self.manager.client("ann")
        self.handles: dict[tuple[Key, str], int] = {}
        self.session = self._do("session")
        self.producers: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        for name in DESTINATIONS:
            facts = self._do("produce", session=self.session["session"], destination=name)
            self.producers[name] = facts["producer"]

    def _forget_handles(self) -> None:
        """Those of stages that are over lead nowhere, even if a stage of the same name is opened again."""
        self.handles = {which: handle for which, handle in self.handles.items() if which[0] in self.state.stages}

    def settle(self) -> None:
        """Let it work as far as it can without the disk."""
        for _ in range(10_000):
            self.manager.now_ms += 1
            self.manager.turn()
            if not self.manager.core.stages.publisher.is_busy:
                return
        raise AssertionError("a batch is never done")

    def sync(self) -> None:
        self.settle()
        self.manager.core.on_safe(self.manager.core.last_index)
        self.settle()
        self._check_visible()

    def _note(self) -> None:
        self.snapshots.append((self.manager.core.last_index, copy.deepcopy(self.state)))

    def _do(self, do: str, **fields: Any) -> dict[str, Any]:
        number = self.client.ask(do, **fields)
        self.sync()
        answer = self.client.answer(number)
        assert answer is not None, f"no answer to {do}"
        return answer

    def safe_state(self) -> State:
        """Of the last operation all of whose records are safe."""
        return next(state for index, state in reversed(self.snapshots) if index <= self.manager.core.safe)

    def shown(self, name: str) -> list[bytes]:
        home = self.manager.core.find(name)
        assert home is not None
        found: list[bytes] = []
        at: int | None = 0
        while at is not None:
            page = home.browse(at, 1000)
            found += [seen.body for seen in page.messages]
            at = page.next
        return found

    def _check_visible(self) -> None:
        expected = self.safe_state()
        for name in DESTINATIONS:
            assert self.shown(name) == expected.logs[name], name

    def check(self) -> None:
        """Everything, once all of it is safe."""
        self.sync()
        core = self.manager.core
        assert self.state.logs == {name: self.shown(name) for name in DESTINATIONS}
        found = {}
        for key, stage in core.stages.open.items():
            found[key] = {core.destinations[n].name: rows.accepted for n, rows in stage.rows.items()}
        assert found == self.state.stages
        assert {query: sink.batch for query, sink in core.stages.sinks.items()} == self.state.last
        assert core.faults == 0

    # ------------------------------------------------------------------ steps

    def stage(self) -> None:
        """Rows for a stage: the next ones, with some of those before, or with a gap."""
        query = self.rng.choice(QUERIES)
        key = (query, self.state.last.get(query, -1) + self.rng.choice((0, 1, 1, 1, 2)), self.rng.choice(NAMES))
        if key[1] < 0:
            return
        name = self.rng.choice(list(DESTINATIONS))
        if (key, name) not in self.handles or key not in self.state.stages:
            facts = self._do("stage", destination=name, stage=key[2], query=query, batch=key[1])
            self.handles[key, name] = facts["stage"]
            there = self.state.stages.setdefault(key, {})
            assert facts["accepted"] == there.get(name, 0)
            assert facts["published"] == (key[1] <= self.state.last.get(query, -1))
            self._note()
        there = self.state.stages[key]
        accepted = there.get(name, 0)
        first = max(1, accepted + 1 - self.rng.randrange(3) + 5 * (self.rng.random() < 0.1))
        count = self.rng.randrange(1, 6)
        self.client.received.clear()
        rows = range(first, first + count)
        entries = b"".join(encode(body(key, name, row), **look(name, row)) for row in rows)
        self.client.store_raw(self.handles[key, name], first, entries, count, ids=0)
        self.settle()
        refused = self.client.notices("refused")
        if first > accepted + 1:
            assert [one["code"] for one in refused] == ["out-of-order"]
            return
        assert not refused
        if accepted or first + count - 1 > accepted:
            there[name] = max(accepted, first + count - 1)
        self._note()

    def publish(self) -> None:
        """A batch above the last, or one that was published before."""
        query = self.rng.choice(QUERIES)
        last = self.state.last.get(query, -1)
        above = [key[1] for key in self.state.stages if key[0] == query and key[1] > last]
        batch = max(0, last + self.rng.choice((-1, 0, 1, 2)))
        if above and self.rng.random() < 0.8:
            batch = self.rng.choice(above)
        stages = [key for key in self.state.stages if key[:2] == (query, batch)]
        self.rng.shuffle(stages)
        named = [(key[2], dict(self.state.stages[key])) for key in stages]
        wrong = bool(named) and batch > last and self.rng.random() < 0.15
        if wrong:
            named[0][1]["q"] = named[0][1].get("q", 0) + 1
        number = self.client.ask("publish", query=query, batch=batch, stages=named)
        self.settle()
        messages = 0
        if batch > last and not wrong:
            for key in stages:
                for name, count in self.state.stages[key].items():
                    self.state.logs[name] += [body(key, name, row) for row in range(1, count + 1)]
                    messages += count
            self.state.last[query] = batch
        if not wrong:
            self.state.drop(query, batch)
            self._forget_handles()
        self._note()
        if self.rng.random() < 0.6:
            self.sync()
            if wrong:
                try:
                    self.client.answer(number)
                except Refused as refused:
                    assert refused.code == "stage-missing"
                    return
                raise AssertionError("a batch was published that is not there")
            answer = self.client.answer(number)
            assert answer is not None
            assert answer["published"] == ("now" if batch > last else "before")
            assert batch <= last or answer["messages"] == messages

    def abandon(self) -> None:
        query = self.rng.choice(QUERIES)
        batch = max(0, self.state.last.get(query, -1) + self.rng.choice((0, 1, 2)))
        number = self.client.ask("abandon", query=query, batch=batch)
        self.settle()
        dropped = self.state.drop(query, batch, only=True)
        self._forget_handles()
        self._note()
        if self.rng.random() < 0.5:
            self.sync()
            assert self.client.answer(number) == {"dropped": dropped}

    def send(self) -> None:
        """An ordinary message between them."""
        name = self.rng.choice(list(DESTINATIONS))
        self.sent += 1
        self.numbers[name] = self.numbers.get(name, 0) + 1
        text = b"plain %d" % self.sent
        self.client.store(self.producers[name], self.numbers[name], text, ids=self.session["ids"][0] + self.sent)
        self.settle()
        self.state.logs[name].append(text)
        self._note()

    def sync_some(self) -> None:
        """A write reached the disk, a later one did not."""
        core = self.manager.core
        self.settle()
        core.on_safe(self.rng.randint(core.safe, core.last_index))
        self.settle()
        self._check_visible()

    def crash(self) -> None:
        self.settle()
        self.state = copy.deepcopy(self.safe_state())
        self.manager.crash()
        self.manager.is_holding = True
        self.taking = None
        self.snapshots.clear()
        self._note()
        self._connect()
        self.check()

    def checkpoint(self) -> None:
        """A part of one, in between."""
        self.settle()
        if self.taking is None:
            self.sheet = MemorySheet()
            self.taking = Checkpoint(self.manager.core, self.sheet, 1)
        if self.taking.step(most_parts=self.rng.randrange(1, 6)):
            self.sync()  # it counts when all that was written before its end is safe
            self.taking = None
            self.manager.sheet = self.sheet

    def reconnect(self) -> None:
        self.client.gone()
        self._connect()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, self.rng.choice(self.STEPS))()
        self.check()
        self.crash()
