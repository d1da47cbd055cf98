"""How frames leave: gathered into blocks, held while the fault switch says so, written as the network takes them."""

from __future__ import annotations

import select
from typing import Final

from fairlead.bus.config import BusConfig
from fairlead.bus.edge.wire import Wire
from fairlead.bus.faults import REPEAT_S, Bucket
from fairlead.bus.frames import BLOCK_BYTES

HELD_S: Final = 0.002  # how soon to look again at what the fault switch holds


class Outflow:
    """One flush is one block, one seal and mostly one system call per line, however many frames were put."""

    def __init__(self, config: BusConfig, epoll: select.epoll, wires: dict[int, Wire], figures: dict[str, int]) -> None:
        self.now_s = 0.0
        self._config = config
        self._epoll = epoll
        self._wires = wires
        self._figures = figures
        self._dirty: set[Wire] = set()
        self._buckets = {bus.name: Bucket() for bus in config.buses}
        self._faults_seen = -1

    def put(self, wire: Wire, pieces: list[bytes], size: int) -> None:
        """A frame, to go with the next flush, or earlier if there is much of it."""
        wire.put(pieces, size)
        self._dirty.add(wire)
        if wire.pending_bytes >= BLOCK_BYTES:
            self.flush_wire(wire)

    def forget(self, wire: Wire) -> None:
        self._dirty.discard(wire)

    def flush(self) -> None:
        while self._dirty:
            self.flush_wire(self._dirty.pop())

    def flush_wire(self, wire: Wire) -> None:
        if wire.is_closed:
            return
        if wire.pending:
            block, size = wire.seal_block()
            if self._config.faults is None or wire.hello is None:
                wire.enqueue(block, size)
            else:
                self._hold(wire, block, size)
        if wire.held:
            self._release(wire)
        if wire.queue and not wire.events & select.EPOLLOUT:
            self.write(wire)

    def write(self, wire: Wire) -> None:
        """As much as the network takes; the rest when it takes more."""
        try:
            written = wire.write()
        except OSError:
            # What the other end said last is still to be read; the reset comes from there.
            wire.queue.clear()
            wire.queue_bytes = 0
            written = 0
        if written:
            wire.wrote_s = self.now_s
            self._figures["bytes_out"] += written
        self._interest(wire)

    def _interest(self, wire: Wire) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if wire.wants_write or wire.connecting else 0)
        faults = self._config.faults
        if faults is not None and wire.is_up and faults.is_cut(wire.node, self._config.node, wire.bus):
            events = 0
        if events != wire.events and not wire.is_closed:
            wire.events = events
            self._epoll.modify(wire.fd, events)

    # Faults

    @property
    def is_holding(self) -> bool:
        return self._config.faults is not None and any(wire.held for wire in self._wires.values())

    def release_due(self) -> None:
        """What the fault switch has held long enough."""
        self.heed_faults()
        for wire in list(self._wires.values()):
            if wire.held:
                self.flush_wire(wire)

    def heed_faults(self) -> None:
        """The switch was turned: lines that are cut are not read."""
        faults = self._config.faults
        if faults is not None and faults.version != self._faults_seen:
            self._faults_seen = faults.version
            for wire in self._wires.values():
                self._interest(wire)

    def _hold(self, wire: Wire, block: list[bytes], size: int) -> None:
        faults = self._config.faults
        assert faults is not None
        between = (self._config.node, wire.node, wire.bus)
        due_s = self.now_s + faults.delay_s(*between) + (REPEAT_S if faults.is_dropped(*between) else 0.0)
        if wire.held:
            due_s = max(due_s, wire.held[-1][0])
        wire.held.append((due_s, block, size))
        wire.held_bytes += size

    def _release(self, wire: Wire) -> None:
        faults = self._config.faults
        assert faults is not None
        rate, bucket = faults.rate(wire.bus), self._buckets[wire.bus]
        while wire.held and wire.held[0][0] <= self.now_s:
            if faults.is_cut(self._config.node, wire.node, wire.bus):
                return
            if rate and bucket.room(rate, self.now_s) <= 0:
                return
            _, block, size = wire.held.popleft()
            wire.held_bytes -= size
            wire.enqueue(block, size)
            if rate:
                bucket.spend(size)
