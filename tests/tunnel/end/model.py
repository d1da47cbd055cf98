"""Two ends over a carrier that does everything a carrier may do, in virtual time; and the laws they must keep.

A `Plan` says what happens, `run` lets it happen and raises `Broken` when a law is. The laws look at packets on the
wire, at what programs wrote and read, and at `status()`: never at how an end works inside.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from math import inf
from random import Random
from typing import NamedTuple

from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.packets import split
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.end.watch import Broken, Watch

__all__ = ["Broken", "Plan", "Side", "World", "run"]

CONNECTION_ID = 0xC0FFEE
STEPS_MAX = 60_000


class Work(NamedTuple):
    """What the program at one end does."""

    writes: int = 20
    chunk: int = 60
    write_gap_s: float = 0.0
    read_chunk: int = 100
    read_gap_s: float = 0.01
    asleep_until_s: float = 0.0
    closes_at_s: float = inf
    """Not before all is written. When neither end closes, they come to rest, open and silent."""
    aborts_at_s: float = inf
    is_early: bool = False
    """Writes before the tunnel is open."""
    option: int = 0
    """Sets the pull period once, if positive."""


class Plan(NamedTuple):
    seed: int = 1
    version: int = 2
    first_sequence: int = 1
    capacities: tuple[int, int] = (16, 16)
    transmit_max: int = 32
    payload_max: int = 50
    loss: float = 0.0
    duplicate: float = 0.0
    flip: float = 0.0
    delay_s: float = 0.05
    jitter_s: float = 0.0
    bodies: bool = False
    """Packets of one sending share their fate, as in an HTTP request."""
    room: int = 1 << 16
    busy_s: float = 0.0
    """How much a driver takes at once, and how long it is busy with that."""
    silences: tuple[tuple[float, float], ...] = ()
    """From, to: nothing arrives that is sent then."""
    heals_at_s: float = 20.0
    """After this the carrier makes no more mistakes."""
    works: tuple[Work, Work] = (Work(closes_at_s=0.0), Work())

    def rules(self, side: int) -> Rules:
        return Rules(
            capacity=self.capacities[side],
            transmit_max=self.transmit_max,
            payload_max=self.payload_max,
            first_sequence=self.first_sequence,
            linger_s=2000.0,
            give_up_s=300.0,
        )


class Side:
    """One end with its program and its driver."""

    def __init__(self, world: World, index: int) -> None:
        plan = world.plan
        self.world, self.index, self.work = world, index, plan.works[index]
        role = (Role.CLIENT, Role.BROKER)[index]
        known = plan.capacities[0] if index else 0
        self.end = End(plan.rules(index), role, CONNECTION_ID, 0.0, version=plan.version, peer_window=known)
        self.random = Random(f"{plan.seed}/{index}")
        self.watch = Watch(plan.rules(index), role, least_rtt_s=2 * plan.delay_s, peer_window=known)
        self.written = bytearray()
        self.read = bytearray()
        self.unwritten = [
            self.random.randbytes(1 + self.random.randrange(self.work.chunk)) for _ in range(self.work.writes)
        ]
        self.next_write_at = 0.0
        self.next_read_at = self.work.asleep_until_s
        self.busy_until = 0.0
        self.has_aborted = False
        self.has_set_option = self.work.option <= 0
        self.sent = 0
        self.flips = 0

    @property
    def other(self) -> Side:
        return self.world.sides[1 - self.index]

    def is_over(self) -> bool:
        return self.end.state in (State.CLOSED, State.ABORTED)

    def may_write(self) -> bool:
        return self.end.state is State.OPEN or (self.work.is_early and self.end.state is State.OPENING)

    def wakes_at(self) -> float:
        """When the program wants to do something next."""
        soonest = inf
        if self.unwritten and self.may_write() and self.end.room():
            soonest = min(soonest, self.next_write_at)
        elif not self.unwritten and self.end.state is State.OPEN:
            soonest = min(soonest, self.work.closes_at_s)
        if self.end.readable():
            soonest = min(soonest, self.next_read_at)
        if not self.is_over():
            soonest = min(soonest, self.work.aborts_at_s)
        if self.end.has_packets(self.world.now_s):
            soonest = min(soonest, self.busy_until)
        return soonest

    def act(self) -> None:
        """The program's turn, then the driver's."""
        now_s, end = self.world.now_s, self.end
        if now_s >= self.work.aborts_at_s and not self.is_over():
            self.has_aborted = True
            self._keeping_readable(lambda: end.abort(1, "the plan says so", now_s))
        if end.state is State.OPEN and not self.has_set_option:
            self.has_set_option = True
            end.set_option(Option.PULL_PERIOD, self.work.option, now_s)
        self._write(now_s)
        if end.state is State.OPEN and not self.unwritten and now_s >= self.work.closes_at_s:
            end.close(now_s)
        if end.readable() and now_s >= self.next_read_at:
            self._read(now_s)
        self._send(now_s)

    def on_body(self, body: bytes) -> None:
        """What the carrier brings."""
        found = split(body, PAYLOAD_LIMIT)
        self.end.on_damaged(found.damaged)
        self.watch.arrived(found.packets, self.world.now_s)
        self._keeping_readable(lambda: self.end.on_packets(found.packets, self.world.now_s))
        self.watch.state(self.end, self.world.now_s)

    def on_time(self) -> None:
        self._keeping_readable(lambda: self.end.on_time(self.world.now_s))
        if self.end.next_at() <= self.world.now_s:
            raise Broken("a timer is due and on_time does nothing about it")

    def _write(self, now_s: float) -> None:
        while self.may_write() and self.unwritten and now_s >= self.next_write_at:
            data = self.unwritten[0]
            room = self.end.room()
            taken = self.end.write(data, now_s)
            if taken != min(room, len(data)):
                raise Broken("write does not take what room() says")
            self.written += data[:taken]
            if taken == len(data):
                self.unwritten.pop(0)
                self.next_write_at = now_s + self.work.write_gap_s
            else:
                self.unwritten[0] = data[taken:]
                return

    def _read(self, now_s: float) -> None:
        before = self.end.status(now_s)
        data = self.end.read(self.random.randint(1, self.work.read_chunk), now_s)
        if len(data) != before.readable_bytes - self.end.readable():
            raise Broken("readable() is not what can be read")
        self.read += data
        self.next_read_at = now_s + self.work.read_gap_s
        self.watch.consumed(self.end, len(data), now_s, before=before)
        if not self.other.written.startswith(self.read[-len(data) :], len(self.read) - len(data)):
            raise Broken("other bytes were read than were written")

    def _send(self, now_s: float) -> None:
        if now_s < self.busy_until:
            return
        room = self.random.randint(1, self.world.plan.room)
        expected = self.end.has_packets(now_s)
        packets = self.end.take_packets(room, now_s)
        if bool(packets) != expected:
            raise Broken("has_packets and take_packets disagree")
        if len(packets) > 2 and sum(map(len, packets)) > room:
            raise Broken("more was handed out than the driver takes")
        if packets:
            self.sent += len(packets)
            self.busy_until = now_s + self.world.plan.busy_s
            is_all_read = len(self.read) == len(self.other.written)
            for raw in packets:
                self.watch.sent(raw, now_s, is_all_read=is_all_read)
            self.world.carry(self, packets)
        self.watch.state(self.end, now_s)
        self.watch.ack_is_in_time(self.end, now_s, is_driver_free=now_s >= self.busy_until)

    def _keeping_readable(self, step: Callable[[], None]) -> None:
        before = self.end.readable()
        step()
        if self.end.readable() < before:
            raise Broken("data that came in order can no longer be read (TUN-98)")


PAYLOAD_LIMIT = 2048


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now_s = 0.0
        self.random = Random(plan.seed)
        self.sides = (Side(self, 0), Side(self, 1))
        self._under_way: list[tuple[float, int, Side, bytes, bool]] = []
        self._order = count()
        self.steps = 0

    def carry(self, sender: Side, packets: list[bytes]) -> None:
        plan, random = self.plan, self.random
        is_faulty = self.now_s < plan.heals_at_s
        bodies = [b"".join(packets)] if plan.bodies else packets
        for body in bodies:
            if any(begin <= self.now_s < end for begin, end in plan.silences) and is_faulty:
                continue
            if is_faulty and random.random() < plan.loss:
                continue
            copies = 2 if is_faulty and random.random() < plan.duplicate else 1
            for _ in range(copies):
                is_damaged = is_faulty and plan.version == 2 and random.random() < plan.flip
                arriving = flipped(body, random) if is_damaged else body
                delay_s = plan.delay_s + (random.random() * plan.jitter_s if is_faulty else 0.0)
                coming = self.now_s + delay_s, next(self._order), sender.other, arriving, is_damaged
                heapq.heappush(self._under_way, coming)

    def step(self) -> bool:
        """Go to the next thing that happens; False when nothing ever will."""
        soonest = min(
            self._under_way[0][0] if self._under_way else inf,
            *(side.end.next_at() for side in self.sides),
            *(side.wakes_at() for side in self.sides),
        )
        if soonest == inf:
            return False
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Broken(f"they go on for ever: {self.describe()}")
        self.now_s = max(self.now_s, soonest)
        while self._under_way and self._under_way[0][0] <= self.now_s:
            _, _, side, body, is_damaged = heapq.heappop(self._under_way)
            side.flips += is_damaged
            side.on_body(body)
        for side in self.sides:
            side.on_time()
            side.act()
        return True

    def run_until_still(self) -> None:
        while not all(side.end.is_done() and not side.end.readable() for side in self.sides) and self.step():
            pass

    def describe(self) -> str:
        return f"{self.plan}: " + "; ".join(str(side.end.status(self.now_s)) for side in self.sides)


def flipped(body: bytes, random: Random) -> bytes:
    """One bit is wrong, not in the size of the first packet."""
    at = random.choice([position for position in range(len(body)) if not 4 <= position < 8])
    damaged = bytearray(body)
    damaged[at] ^= 1 << random.randrange(8)
    return bytes(damaged)


def run(plan: Plan) -> World:
    """Raises `Broken` when a law is."""
    world = World(plan)
    world.run_until_still()
    is_abort_planned = any(work.aborts_at_s < inf for work in plan.works)
    is_close_planned = any(work.closes_at_s < inf for work in plan.works)
    for side in world.sides:
        _check_end(side, world, is_abort_planned)
        if is_close_planned or is_abort_planned:
            if not side.is_over():
                raise Broken(f"nothing happens any more, and it has not ended: {world.describe()}")
            if not side.end.is_done():
                raise Broken(f"it has ended and is remembered for ever: {world.describe()}")
            if any(other.has_aborted for other in world.sides) and side.end.reason and side.end.reason.code != 1:
                raise Broken(f"an end was not told of the abort (TUN-99): {world.describe()}")
        elif side.end.state is not State.OPEN or side.unwritten or side.read != side.other.written:
            raise Broken(f"nothing happens any more, and not all has come: {world.describe()}")
    return world


def _check_end(side: Side, world: World, is_abort_planned: bool) -> None:
    end = side.end
    if end.state is State.ABORTED and not is_abort_planned:
        raise Broken(f"aborted without a cause: {world.describe()}")
    if end.state is State.ABORTED and not end.reason:
        raise Broken("aborted without a reason (TUN-98)")
    if end.is_eof() and side.read != side.other.written:
        raise Broken(f"an end of stream before all was read (TUN-5): {world.describe()}")
    if end.state is State.CLOSED and not end.is_eof():
        raise Broken(f"closed without an end of stream: {world.describe()}")
    damaged = end.status(world.now_s).damaged
    if not world.plan.bodies and damaged != side.flips:
        raise Broken(f"{side.flips} packets were damaged, not {damaged} (TUN-20)")
