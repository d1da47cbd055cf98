"""Two members of a group without a network: real cores over real journals, and what carries records between them."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fairlead.bus.port import Bytes, Handler
from fairlead.cluster.core import Core
from fairlead.cluster.describe import Describer
from fairlead.cluster.edge.group_log import GroupLog
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.edge.scrub import StateDigest
from fairlead.cluster.options import Options as CoreOptions
from fairlead.cluster.recovery import Checkpoint, Recovery
from fairlead.cluster.replica import Replica
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.options import Options
from fairlead.wire import durable
from tests.cluster.core_rig import Rig, World
from tests.journal.small import Hasty


def options(**changes: Any) -> Options:
    return Options(**{"segment_bytes": 1 << 16, "describe": Describer(), "files": Hasty(), **changes})


def inline(job: Callable[[], Any], then: Callable[[Any], None]) -> None:
    """What a thread would do, here and now."""
    try:
        result: Any = job()
    except Exception as error:
        result = error
    then(result)


class Leader(Rig):
    """A core that writes to a journal on disk."""

    def __init__(self, folder: Path, journal: Journal | None = None) -> None:
        self.folder = folder
        self.options = CoreOptions()
        self.world = World()
        self.now_ms = 1_000_000
        self.real = journal or Journal.open(folder / "journal", options())[0]
        self.core = Core(self.real, self.world, self.options, SideFiles(folder / "large"), now_ms=self.now_ms)
        self.recovery = Recovery(self.core)
        self.log = GroupLog(self.real, applied=0, apply=self._never, on_safe=self.core.on_safe)

    def begin(self) -> None:
        """Serve, from what the core knows."""
        self.log.lead()
        self.recovery.finish()
        self.core.create_well_known()
        self.numbers = itertools.count(1)
        self.link = self.core.link_opened()
        self.frame(0, durable.KIND_COMMAND, body=b'{"do":"hello","manager":0,"generation":1,"pid":1}')
        self.settle()

    def _never(self, *_: Any) -> None:
        raise AssertionError("who leads is told nothing")

    def turn(self, *, sync: bool = False) -> None:
        core = self.core
        core.on_time(self.now_ms)
        core.run()
        if sync:
            self.log.settle(self.real.flush())
            core.run()
        core.finish()
        self._acknowledge()

    def settle(self) -> None:
        for _ in range(6):
            self.turn(sync=True)


class Follower:
    """A core that is told what is safe."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.changes = folder, changes
        self.world = World()
        self.open()

    def open(self) -> None:
        self.journal, found = Journal.open(self.folder / "journal", options(**self.changes))
        large = SideFiles(self.folder / "large")
        self.core = Core(self.journal, self.world, CoreOptions(), large, now_ms=1_000_000)
        self.recovery = Recovery(self.core)
        self.replica = Replica(self.core, self.recovery)
        self.replica.restore(found.blobs(), found.entries(), found.covers)
        found.finish()
        assert not found.damage
        self.safe: list[int] = []
        self.log = GroupLog(
            self.journal, applied=found.covers, apply=self.replica.apply, on_safe=self.safe.append, aside=self.folder
        )

    def restart(self) -> None:
        self.journal.abort()
        self.open()

    def checkpoint(self) -> None:
        sheet = self.journal.checkpoint()
        taking = Checkpoint(self.core, sheet, 1)
        while not taking.step():
            pass
        while not sheet.done:
            assert sheet.error is None
            self.journal.collect()
        core = self.core
        self.journal.reclaim(core.manager.is_live, core.transactions.oldest(), core.stages.needs)


def feed(source: GroupLog, target: GroupLog, most_bytes: int = 20_000) -> None:
    """Everything the target does not have, durable there."""
    while target.last < source.last:
        batch = source.read(target.last + 1, most_bytes)
        if batch is None:
            source.journal.collect()
            continue
        target.take(batch)
    target.journal.flush()


def snapshot(core: Core) -> dict[str, Any]:
    """Everything a checkpoint would say, but for where messages lie."""
    parts: dict[str, Any] = {
        "names": core.names.snapshot(),
        "sessions": core.sessions.snapshot(),
        "transactions": core.transactions.snapshot(),
        "transfers": core.transfers.snapshot(),
        "admin": core.admin.snapshot(),
    }
    for number, one in core.names.destinations.items():
        state = one.snapshot(one.next)
        for own in ("low", "first", "bytes", "kept_bytes"):
            state.pop(own)  # how much was let go of, which each does in its own time
        parts[f"d:{number}"] = state
    return msgspec.json.decode(msgspec.json.encode(parts))  # type: ignore[no-any-return]


def digest(core: Core, journal: Journal) -> dict[str, str]:
    out: list[dict[str, Any]] = []
    StateDigest(core, journal, inline, out.append)
    assert out[0]["began"] == out[0]["ended"] == core.last_index
    assert not any(one.startswith("cannot") for one in out[0]["digests"].values())
    return out[0]["digests"]  # type: ignore[no-any-return]


class Net:
    """A bus in memory; messages between nodes wait until they are carried, and can be lost."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.waiting: deque[tuple[str, str, str, bytes]] = deque()
        self.carried_bytes = 0
        self.most_waiting_bytes = 0
        self.now_s = 0.0

    def carry(self, count: int = 1 << 30) -> int:
        """Until nothing is left, or so many; how many it were."""
        done = 0
        while self.waiting and done < count:
            self.most_waiting_bytes = max(self.most_waiting_bytes, sum(len(one[3]) for one in self.waiting))
            sender, to, port, data = self.waiting.popleft()
            done += 1
            self.carried_bytes += len(data)
            if to in self.nodes and port in self.nodes[to].handlers:
                self.nodes[to].handlers[port](sender, memoryview(data))
        return done

    def lose(self, chance: random.Random | None = None) -> None:
        self.waiting = deque(one for one in self.waiting if chance is not None and chance.random() < 0.5)


class Node:
    """One node's `Bus`, as far as it is asked for here."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.node = net, name
        self.handlers: dict[str, Handler] = {}
        net.nodes[name] = self

    def listen(self, port: str, handler: Handler) -> None:
        self.handlers[port] = handler

    def deaf(self, port: str) -> None:
        self.handlers.pop(port, None)

    def send(self, to: str, port: str, *pieces: Bytes) -> bool:
        if to not in self.net.nodes:
            return False
        self.net.waiting.append((self.node, to, port, b"".join(bytes(one) for one in pieces)))
        return True
