"""Ends that are wrong in one place each: what the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from fairlead.tunnel import packets
from fairlead.tunnel.end import End, State, end, transmit
from fairlead.tunnel.end.acks import Acks
from fairlead.tunnel.end.outbox import Outbox
from fairlead.tunnel.end.receive import Receive
from fairlead.tunnel.end.timing import LEVELS, Timing
from fairlead.tunnel.end.transmit import Sent, Transmit
from fairlead.tunnel.packets import Kind, Packet, encode
from fairlead.tunnel.serial import MASK, near, on_wire
from tests.tunnel.end.model import Plan

__all__ = ["PLANTS"]

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: dict[str, tuple[Plant, Callable[[Plan], float]]] = {}
"""Each with what makes a tunnel likely to show it; the likeliest are tried first, to save time."""


def plant(likely: Callable[[Plan], float] | None = None) -> Callable[[Plant], Plant]:
    def register(function: Plant) -> Plant:
        PLANTS[function.__name__] = function, likely or (lambda plan: plan.loss)
        return function

    return register


def has_abort(plan: Plan) -> float:
    return plan.loss if any(work.aborts_at_s < inf for work in plan.works) else -1.0


@plant()
def ack_not_counted(patch: pytest.MonkeyPatch) -> None:
    right = Transmit.on_ack
    patch.setattr(
        Transmit, "on_ack", lambda self, number, window, now_s: number % 5 != 3 and right(self, number, window, now_s)
    )


@plant()
def ack_numbered_too_high(patch: pytest.MonkeyPatch) -> None:
    def release(self: Transmit, number: int, now_s: float) -> None:
        right(self, min(number + 1, self.number), now_s)

    right = Transmit._release
    patch.setattr(Transmit, "_release", release)


@plant()
def edge_going_back(patch: pytest.MonkeyPatch) -> None:
    def on_ack(self: Transmit, sequence: int, window: int, now_s: float) -> bool:
        was_progress = right(self, sequence, window, now_s)
        self.edge = max(self.number, near(sequence, self.acked) + window)
        return was_progress

    right = Transmit.on_ack
    patch.setattr(Transmit, "on_ack", on_ack)


@plant()
def sending_beyond_the_edge(patch: pytest.MonkeyPatch) -> None:
    def take(self: Transmit, out: list[bytes], limit: int, now_s: float) -> None:
        self.edge += 1
        right(self, out, limit, now_s)
        self.edge -= 1

    right = Transmit.take
    patch.setattr(Transmit, "take", take)


@plant()
def close_overtaking_data(patch: pytest.MonkeyPatch) -> None:
    def take(self: Outbox, limit: int) -> tuple[Kind, bytes]:
        if self.is_closing and not self.options:
            self.is_closing = False
            return Kind.CONN_CLOSE, b""
        return right(self, limit)

    right = Outbox.take
    patch.setattr(Outbox, "take", take)


@plant()
def duplicate_delivered(patch: pytest.MonkeyPatch) -> None:
    def on_sequenced(self: Receive, kind: int, sequence: int, payload: bytes, now_s: float) -> bool:
        if sequence == on_wire(self.received) and kind == Kind.DATA:
            self._ready.append(payload)
            self.readable += len(payload)
        return right(self, kind, sequence, payload, now_s)

    right = Receive.on_sequenced
    patch.setattr(Receive, "on_sequenced", on_sequenced)


@plant()
def duplicate_not_acknowledged_again(patch: pytest.MonkeyPatch) -> None:
    def on_sequenced(self: Receive, kind: int, sequence: int, payload: bytes, now_s: float) -> bool:
        if (self.received - sequence) & MASK < 1 << 31:
            return False
        return right(self, kind, sequence, payload, now_s)

    right = Receive.on_sequenced
    patch.setattr(Receive, "on_sequenced", on_sequenced)


@plant()
def gap_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    def on_sequenced(self: Receive, kind: int, sequence: int, payload: bytes, now_s: float) -> bool:
        if (sequence - self.received) & MASK == 2:
            self.received += 1
        return right(self, kind, sequence, payload, now_s)

    right = Receive.on_sequenced
    patch.setattr(Receive, "on_sequenced", on_sequenced)


@plant()
def more_taken_than_there_is_room(patch: pytest.MonkeyPatch) -> None:
    def on_sequenced(self: Receive, kind: int, sequence: int, payload: bytes, now_s: float) -> bool:
        self.capacity += 3
        try:
            return right(self, kind, sequence, payload, now_s)
        finally:
            self.capacity -= 3

    right = Receive.on_sequenced
    window: Any = Receive.window
    patch.setattr(Receive, "on_sequenced", on_sequenced)
    patch.setattr(Receive, "window", property(lambda self: max(0, window.fget(self))))


@plant()
def no_probe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transmit, "watch_window", lambda self, now_s: None)


@plant()
def probe_lost_when_the_window_opens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transmit, "_settle_probe", lambda self: setattr(self, "_probe", None))


@plant()
def new_number_for_each_resend(patch: pytest.MonkeyPatch) -> None:
    def send(self: Transmit, sent: Sent, now_s: float) -> bytes:
        raw = right(self, sent, now_s)
        if sent.times < 2:
            return raw
        payload = raw[packets.HEADER_BYTES[self.version] :]
        return encode(Kind.DATA, self.connection_id, on_wire(self.number + 1), 0, payload, self.version)

    right = Transmit._send
    patch.setattr(Transmit, "_send", send)


@plant(lambda plan: plan.jitter_s + plan.delay_s)
def round_trip_of_resent_packets(patch: pytest.MonkeyPatch) -> None:
    """Karn's rule is not kept: the time since the last sending is taken."""

    def release(self: Transmit, number: int, now_s: float) -> None:
        for sent in self.unacked:
            if sent.number <= number:
                sent.times = 1
        right(self, number, now_s)

    right = Transmit._release
    patch.setattr(Transmit, "_release", release)


@plant()
def interval_not_doubled(patch: pytest.MonkeyPatch) -> None:
    def work_out(self: Timing) -> None:
        right(self)
        self.intervals_s = self.intervals_s[:1] * LEVELS

    right = Timing._work_out
    patch.setattr(Timing, "_work_out", work_out)


@plant()
def never_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transmit, "_queue", lambda self, sent: None)


@plant()
def close_acknowledged_before_all_is_read(patch: pytest.MonkeyPatch) -> None:
    def advance(self: Receive) -> None:
        right(self)
        if self.is_close_held():
            self._close()

    right = Receive._advance
    patch.setattr(Receive, "_advance", advance)


@plant()
def last_ack_not_repeated(patch: pytest.MonkeyPatch) -> None:
    def on_packet(self: End, packet: Packet, now_s: float) -> None:
        if self.state is not State.CLOSED:
            right(self, packet, now_s)

    right = End._on_packet
    patch.setattr(End, "_on_packet", on_packet)


@plant()
def other_end_s_close_not_answered_by_ours(patch: pytest.MonkeyPatch) -> None:
    def settle(self: End, now_s: float) -> None:
        if self.state is not State.OPEN:
            right(self, now_s)

    right = End._settle
    patch.setattr(End, "_settle", settle)


@plant()
def plain_comparison_of_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transmit, "near", lambda wire, known: wire)


@plant(lambda plan: plan.flip if plan.version == 2 else 0.0)
def checksum_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packets, "_is_right", lambda header, payload: True)


@plant()
def window_in_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receive, "window", property(lambda self: max(0, self.capacity - self.readable)))


@plant()
def packets_beyond_a_gap_subtracted(patch: pytest.MonkeyPatch) -> None:
    right: Any = Receive.window
    patch.setattr(Receive, "window", property(lambda self: max(0, right.fget(self) - len(self._held))))


@plant()
def room_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acks, "consumed", lambda self, edge, received, capacity: None)


@plant()
def ack_too_late(patch: pytest.MonkeyPatch) -> None:
    def soon(self: Acks, now_s: float) -> None:
        right(self, now_s + 0.1)

    right = Acks.soon
    patch.setattr(Acks, "soon", soon)


@plant(has_abort)
def abort_losing_readable_data(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Receive) -> None:
        self._held.clear()
        self._ready.clear()
        self.readable = 0

    patch.setattr(Receive, "forget_gaps", forget)


@plant(has_abort)
def later_packets_not_answered_by_an_abort(patch: pytest.MonkeyPatch) -> None:
    def on_packet(self: End, packet: Packet, now_s: float) -> None:
        if self.state is not State.ABORTED:
            right(self, packet, now_s)

    right = End._on_packet
    patch.setattr(End, "_on_packet", on_packet)


@plant(lambda plan: -plan.works[0].writes - has_abort(plan))
def opening_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    def on_packet(self: End, packet: Packet, now_s: float) -> None:
        was_due = self._acks.is_due
        right(self, packet, now_s)
        if packet.kind == Kind.CONN_INIT_ACK:
            self._acks.is_due = was_due

    right = End._on_packet
    patch.setattr(End, "_on_packet", on_packet)


@plant()
def data_before_it_is_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(end, "CARRYING", (State.OPENING, State.OPEN, State.CLOSING))


@plant()
def zero_window_taken_for_silence(patch: pytest.MonkeyPatch) -> None:
    def on_ack(self: End, packet: Packet, now_s: float) -> None:
        since = self._silent_since
        right(self, packet, now_s)
        if packet.window == 0:
            self._silent_since = since

    right = End._on_ack
    patch.setattr(End, "_on_ack", on_ack)


@plant()
def timer_that_stays_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acks, "on_time", lambda self, now_s: None)


@plant()
def buffer_without_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transmit, "room", lambda self: 1 << 30)


@plant()
def ack_of_an_ack(patch: pytest.MonkeyPatch) -> None:
    """They never come to rest."""

    def on_ack(self: End, packet: Packet, now_s: float) -> None:
        right(self, packet, now_s)
        self._acks.at_once()

    right = End._on_ack
    patch.setattr(End, "_on_ack", on_ack)
