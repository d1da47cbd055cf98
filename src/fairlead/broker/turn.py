"""The router's turn: read references, decide, write instructions, commit, publish. Plain twin of `_turn.pyx`.

Managers are visited one after the other, each until its round-complete mark (SRV-97), so connections share the router
alike however they are spread. Everything a turn does lies beyond what others can see until its commit record is
written; a router that dies in the middle has done nothing.
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Any, NamedTuple

from fairlead.broker import commit, parties, records
from fairlead.broker.commit import Commit, Positions
from fairlead.broker.decisions import Decisions
from fairlead.broker.instructions import Decision, Instruction
from fairlead.runtime.counters import RouterCounter
from fairlead.store import layout
from fairlead.store.ring import Consumer, Producer

_UP = struct.Struct(layout.UP_FORMAT)
_DOWN = struct.Struct(layout.DOWN_FORMAT)
_WAKE = (1).to_bytes(8, "little")
LOG_SPARE_BYTES = 1 << 18  # a turn ends early when its area has less room than this

made_of = parties  # where the classes of this twin's records come from


class Rule(NamedTuple):
    """How the router takes turns among managers, and from which mark on it wakes a manager that wants room."""

    round_complete: bool = True  # else the simple rule: `simple_messages` a visit (SRV-98)
    simple_messages: int = 1
    resume_below: int = 100


class Turn:
    """The hot loop over all rings, and the only writer of the routing segment."""

    def __init__(
        self,
        ups: list[Consumer],
        downs: list[Producer],
        segment: Any,
        decisions: Decisions,
        wake_fds: list[int],
        rule: Rule,
        counters: Any,
    ) -> None:
        self._ups = ups
        self._downs = downs
        self._segment = memoryview(segment).cast("B")
        self._area_bytes = struct.unpack_from("<Q", self._segment, layout.ROUTING_AREA_BYTES)[0]
        self._decisions = decisions
        self._routing = decisions.routing
        self._wake_fds = wake_fds
        self._rule = rule
        self._counters = counters
        self._at = 0  # the manager whose ring is visited next
        self._blocked = 0  # bit per up ring whose next entry waits for room in a down ring
        self._changed = False
        self.sequence = self.flips = self.log_end = 0
        self.log_limit = 0  # bytes of the area that have memory
        self._entries, self._messages = counters[RouterCounter.ENTRIES], counters[RouterCounter.MESSAGES_ROUTED]
        self._deliveries, self._deletes = counters[RouterCounter.DELIVERIES], counters[RouterCounter.DELETES]
        self._refused = counters[RouterCounter.REFUSED]

    # -- beginning and end

    def start(self, found: Commit | None) -> None:
        """Take up the rings where the newest commit left them; everything beyond never happened."""
        if found is not None:
            self.sequence, self.flips, self.log_end = found.sequence, found.flips, found.log_end
            self._routing.next_request = max(self._routing.next_request, found.next_request)
            for up, down, positions in zip(self._ups, self._downs, found.managers, strict=True):
                up.rollback(positions.up_head, positions.up_popped)
                down.rollback(positions.down_tail, positions.down_counted)
                self._wake(self._downs.index(down))
        self.commit()

    def commit(self) -> None:
        """Write the record that makes this turn true, then let the others see it."""
        self.write_record()
        self.publish()

    def write_record(self) -> None:
        self.sequence += 1
        positions = tuple(
            Positions(up.cursor, up.counted, down.tail, down.counted)
            for up, down in zip(self._ups, self._downs, strict=True)
        )
        commit.write(
            self._segment,
            Commit(self.sequence, self.flips, self.log_end, self._routing.next_request, positions),
        )

    def publish(self) -> None:
        for manager, (up, down) in enumerate(zip(self._ups, self._downs, strict=True)):
            sleeps = down.publish()
            wants = up.publish(self._rule.resume_below)
            if sleeps or wants:
                self._wake(manager)
        self._changed = False

    def _wake(self, manager: int) -> None:
        os.write(self._wake_fds[manager], _WAKE)

    # -- the log

    def area(self) -> memoryview:
        """The log area in use."""
        start = layout.ROUTING_AREAS + (self.flips & 1) * self._area_bytes
        return self._segment[start : start + self._area_bytes]

    def log_room(self) -> int:
        return self.log_limit - self.log_end

    def append(self, kind: int, payload: bytes) -> None:
        record = records.encode(kind, payload)
        self.area()[self.log_end : self.log_end + len(record)] = record
        self.log_end += len(record)

    def flip(self, limit: int) -> None:
        """Write the whole state to the other area, which has `limit` bytes of memory, and go on there."""
        state = b"".join(records.encode(kind, payload) for kind, payload in self._routing.dump())
        self.flips += 1
        self.log_limit = limit
        self.area()[: len(state)] = state
        self.log_end = len(state)
        self.commit()

    # -- a turn

    def serve(
        self,
        epoll_fd: int,
        wake_fd: int,
        budget: int,
        until_ns: int,
        tick_ms: int,
        log_end_max: int,
        log_room_min: int,
    ) -> int:
        """Turns, and sleep between them, until `until_ns`, a full log, or something else than a wake-up.

        The answer: 1 when nobody woke us for `tick_ms` (`awake` is the caller's then), else 0.
        """
        epoll = select.epoll.fromfd(os.dup(epoll_fd))
        try:
            while True:
                now_ns = time.monotonic_ns()
                done = self.run(budget, now_ns)
                self._count(now_ns)
                if now_ns >= until_ns:
                    return 0
                if done:
                    if self.log_end > log_end_max or self.log_room() < log_room_min:
                        return 0
                    continue
                events = epoll.poll(tick_ms / 1000) if self.sleep() else None
                if events == []:
                    return 1  # still asleep for the managers: what is found now, nobody woke us for
                self.awake()
                for fd, _ in events or ():
                    if fd != wake_fd:
                        return 0
                    os.eventfd_read(wake_fd)
        finally:
            epoll.close()

    def _count(self, now_ns: int) -> None:
        words = self._counters
        words[RouterCounter.ENTRIES], words[RouterCounter.MESSAGES_ROUTED] = self._entries, self._messages
        words[RouterCounter.DELIVERIES], words[RouterCounter.DELETES] = self._deliveries, self._deletes
        words[RouterCounter.REFUSED], words[RouterCounter.COMMITS] = self._refused, self.sequence
        words[RouterCounter.REQUESTS_OPEN] = len(self._routing.asks)
        words[RouterCounter.LOOP_PROGRESS] += 1
        words[RouterCounter.LAST_TURN_NS] = now_ns

    def run(self, budget: int, now_ns: int) -> int:
        """Deal with up to `budget` entries and commit. Returns how many; 0: nothing can be done now."""
        done = 0
        self._blocked = 0
        idle = 0
        while done < budget and idle < len(self._ups):
            manager = self._at
            visited, finished = self._visit(manager, budget - done, now_ns)
            done += visited
            idle = 0 if visited else idle + 1
            if finished:
                self._at = (self._at + 1) % len(self._ups)
            if self.log_room() < LOG_SPARE_BYTES:
                break
            if visited and self._ups[manager].owes(self._rule.resume_below):
                break  # that manager waits for room: let it fill up while the others are visited, not after
        if self._changed or done:
            self.commit()
        self._entries += done
        return done

    def _visit(self, manager: int, budget: int, now_ns: int) -> tuple[int, bool]:
        """Read one manager's ring to its round-complete mark: (entries, is the visit over)."""
        up, done = self._ups[manager], 0
        while done < budget and self.log_room() >= LOG_SPARE_BYTES:
            entry = up.next()
            if entry is None:
                return done, True
            kind, flags, payload = entry
            decision = self._decide(manager, kind, payload, now_ns)
            if decision is not None:
                if not self._fits(decision.instructions):
                    self._blocked |= 1 << manager
                    return done, True
                self._carry_out(decision)
                if decision.again:
                    return done + 1, True  # the entry stays: more is to be done for it
            up.advance()
            done += 1
            if self._rule.round_complete:
                if flags & layout.FLAG_ROUND or kind == layout.UP_ROUND:
                    return done, True
            elif done >= self._rule.simple_messages:
                return done, True
        return done, False

    def _decide(self, manager: int, kind: int, payload: bytes, now_ns: int) -> Decision | None:
        if kind == layout.UP_ROUND:
            return None
        uid, handle, index, body_length, content_length, _ = _UP.unpack_from(payload)
        content = payload[_UP.size : _UP.size + content_length]
        source = self._routing.by_conn.get(uid)
        try:
            return self._decision(manager, kind, source, (uid, handle, index, body_length, content), now_ns)
        except Exception:
            return self._decisions.on_failure(manager, kind, source, handle, content)

    def _decision(
        self, manager: int, kind: int, source: Any, entry: tuple[int, int, int, int, bytes], now_ns: int
    ) -> Decision | None:
        uid, handle, index, body_length, content = entry
        decisions = self._decisions
        if kind == layout.UP_MESSAGE:
            self._messages += 1
            return decisions.on_message(manager, source, handle, body_length, content, now_ns)
        if kind == layout.UP_ATTACH:
            return None if source is not None else decisions.on_attach(manager, uid, index, content)
        if source is None:
            return None  # it is gone already
        if kind == layout.UP_CONTROL:
            return decisions.on_control(source, content)
        if kind == layout.UP_RESPONSE:
            return decisions.on_response(source, content)
        if kind == layout.UP_GONE:
            return decisions.on_gone(source)
        if kind == layout.UP_UNDELIVERED:
            return decisions.on_undelivered(content)
        return None

    def _fits(self, instructions: list[Instruction]) -> bool:
        """Is there room for all of them? If not, the managers concerned are asked to wake us."""
        need: dict[int, list[int]] = {}
        for instruction in instructions:
            size = layout.DOWN_RECIPIENTS + len(instruction.recipients) + len(instruction.content) + 8
            need.setdefault(instruction.manager, []).append(size)
        fits = True
        for manager, sizes in need.items():
            if not self._has_room(self._downs[manager], sizes):
                self._downs[manager].want()
                if not self._has_room(self._downs[manager], sizes):
                    fits = False
                else:
                    self._downs[manager].unwant()
        return fits

    @staticmethod
    def _has_room(down: Producer, sizes: list[int]) -> bool:
        if down.entries_max and down.waiting() + len(sizes) > max(down.entries_max, len(sizes)):
            return False
        return down.room() >= sum(sizes) + max(sizes)  # the end of the ring may have to be skipped

    def carry_out(self, decision: Decision) -> bool:
        """For decisions that no entry asked for (the clock): False when there was no room, nothing was done then."""
        if not self._fits(decision.instructions):
            return False
        self._carry_out(decision)
        return True

    def _carry_out(self, decision: Decision) -> None:
        for kind, payload in decision.records:
            self._routing.apply(kind, payload)
            self.append(kind, payload)
        for instruction in decision.instructions:
            self._write(instruction)
        self._refused += decision.refused
        self._changed = True

    def _write(self, i: Instruction) -> None:
        count = len(i.recipients) // 8
        self._deliveries += count if i.kind == layout.DOWN_DELIVER else 0
        self._deletes += i.kind == layout.DOWN_DELETE
        payload = _DOWN.pack(i.handle, i.touch, i.limit, 0, count, len(i.content), i.body_length)
        pushed = self._downs[i.manager].push(i.kind, layout.FLAG_COUNTED, payload + i.recipients + i.content)
        assert pushed, "room was looked for before"

    # -- sleeping

    def sleep(self) -> bool:
        """True: no ring that could be served has anything, and whoever writes will wake us."""
        quiet = True
        for manager, up in enumerate(self._ups):
            if not self._blocked >> manager & 1:
                quiet = up.sleep() and quiet
        return quiet

    def awake(self) -> None:
        for up in self._ups:
            up.awake()
