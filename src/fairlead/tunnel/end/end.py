"""One end of a tunnel. It is told what happened and when, and is asked for what to send (docs/tunnel.md).

Client and broker differ in how they open and in nothing else. All limits on waiting are here: opening (TUN-59 … 61),
giving up (79), idling (88), lingering (90, 93), remembering the id for a lost last ACK (92).
"""

from __future__ import annotations

from math import inf

from fairlead.tunnel.end.receive import Receive
from fairlead.tunnel.end.status import EndStatus, Role, State
from fairlead.tunnel.end.timing import Timing
from fairlead.tunnel.end.transmit import Transmit
from fairlead.tunnel.packets import HEADER_BYTES, SEQUENCED, Abort, AbortCode, Kind, Packet, encode
from fairlead.tunnel.rules import Option, Rules
from fairlead.tunnel.serial import on_wire

__all__ = ["End"]

ALIVE = (State.OPENING, State.OPEN, State.CLOSING)
CARRYING = (State.OPEN, State.CLOSING)
INT32 = 1 << 31
LONG_SILENCE = 4
"""Intervals without an ACK after which one says that the way is open again."""


class End:
    def __init__(
        self, rules: Rules, role: Role, connection_id: int, now_s: float, *, version: int = 2, peer_window: int = 0
    ) -> None:
        self.rules = rules
        self.role = role
        self.connection_id = connection_id
        self.version = version
        self.state = State.OPENING
        self.reason: Abort | None = None
        self._timing = Timing(rules)
        self._receive = Receive(rules)
        self._acks = self._receive.acks
        self._transmit = Transmit(rules, self._timing, connection_id, version, peer_window)
        self._opened_at = now_s
        self._silent_since = self._progress_at = self._data_at = now_s
        self._forget_at = inf
        self._is_forgotten = False
        self._damaged = self._dropped = 0
        # The client's first CONN_INIT has got it the id, so it waits for the answer; the broker answers.
        self._is_hello_due = role is Role.BROKER
        self._hello_at = now_s + self._timing.interval_s if role is Role.CLIENT else inf
        self._is_abort_due = False

    # -- what came ------------------------------------------------------------------------------------------------

    def on_packets(self, packets: list[Packet], now_s: float) -> None:
        """In whatever order and number; their checksums are right."""
        connection_id, version = self.connection_id, self.version
        for packet in packets:
            if packet.connection_id != connection_id or packet.version != version:
                self._dropped += 1
            elif packet.kind == Kind.DATA and self.state is State.OPEN:
                self._on_sequenced(packet, now_s)
            else:
                self._on_packet(packet, now_s)

    def on_damaged(self, count: int) -> None:
        """The driver left out so many; resending repairs it."""
        self._damaged += count

    def on_restored(self, now_s: float) -> None:
        """The carrier says that the way is open again: both ends learn at once how far the other one is."""
        if self.state is State.OPENING:
            self._is_hello_due, self._hello_at = True, inf
        elif self.state in CARRYING:
            self._acks.at_once()
            self._transmit.on_restored()

    def on_gone(self, code: int, text: str, now_s: float) -> None:
        """The carrier says that the tunnel has ended: nobody is left to send CONN_ABORT to."""
        if self.state in ALIVE:
            self._end_by(Abort(code, text))

    def _on_packet(self, packet: Packet, now_s: float) -> None:
        kind = packet.kind
        if self.state is State.ABORTED:
            # Later packets are answered by CONN_ABORT (TUN-99), which is itself not answered.
            self._is_abort_due = self._is_abort_due or kind < Kind.CONN_ABORT
        elif kind == Kind.CONN_ABORT:
            if self.state is not State.CLOSED:
                self._end_by(Abort.of(packet.payload))
        elif self.state is State.CLOSED:
            if kind in SEQUENCED:
                self._receive.on_sequenced(kind, packet.sequence, packet.payload, now_s)
        elif kind == Kind.CONN_INIT and self.role is Role.BROKER:
            self._transmit.on_window(packet.window, now_s)
            self._is_hello_due, self._hello_at = True, inf
        elif kind == Kind.CONN_INIT_ACK and self.role is Role.CLIENT:
            self._transmit.on_window(packet.window, now_s)
            self._open(now_s)
            self._acks.at_once()
        elif kind in SEQUENCED or kind == Kind.ACK:
            if self.state is State.OPENING:
                if self.role is Role.CLIENT:
                    self._dropped += 1
                    return
                self._open(now_s)  # whatever the client sends, it knows its id (TUN-60)
            if kind == Kind.ACK:
                self._on_ack(packet, now_s)
            else:
                self._on_sequenced(packet, now_s)
        else:
            self._dropped += 1

    def _open(self, now_s: float) -> None:
        if self.state is State.OPENING:
            self.state = State.OPEN
            self._is_hello_due, self._hello_at = False, inf
            self._silent_since = self._data_at = now_s

    def _on_ack(self, packet: Packet, now_s: float) -> None:
        silent_s, self._silent_since = now_s - self._silent_since, now_s
        if silent_s >= LONG_SILENCE * self._timing.interval_s and self._transmit.is_held_up():
            self._transmit.on_restored()  # the way was shut beyond what this end's carrier knows of
        if self._transmit.on_ack(packet.sequence, packet.window, now_s):
            self._progress_at = now_s
            self._settle(now_s)

    def _on_sequenced(self, packet: Packet, now_s: float) -> None:
        if not self._receive.on_sequenced(packet.kind, packet.sequence, packet.payload, now_s):
            return
        self._progress_at = now_s
        if packet.kind == Kind.DATA:
            self._data_at = now_s
        for option, value in self._receive.options:
            self._apply(option, value)
        self._receive.options.clear()
        self._settle(now_s)

    # -- the program ----------------------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview, now_s: float) -> int:
        """Bytes taken; fewer than given when the buffer is full, none after a close or an abort."""
        size = min(self.room(), len(data))
        if not size:
            return 0
        self._data_at = now_s
        self._begin_sending(now_s)
        self._transmit.outbox.write(data if size == len(data) else memoryview(data)[:size])
        self._transmit.watch_window(now_s)
        return size

    def room(self) -> int:
        """Bytes `write` would take."""
        return self._transmit.room() if self.state in (State.OPENING, State.OPEN) else 0

    def read(self, limit: int, now_s: float) -> bytes:
        """b"" when nothing is there. What is read is consumed: a packet with its last byte."""
        before = self._receive.consumed
        data = self._receive.read(limit, now_s)
        if self._receive.consumed != before:
            self._progress_at = now_s
            self._settle(now_s)
        return data

    def readable(self) -> int:
        return self._receive.readable

    def is_eof(self) -> bool:
        """Was all read, and did the other end close in the orderly way?"""
        return self._receive.is_closed

    def close(self, now_s: float) -> None:
        """After what was written. Reading goes on until the other end has closed too."""
        if self.state is State.OPENING:
            self.abort(AbortCode.PROGRAM, "closed before it was open", now_s)
        elif self.state is State.OPEN:
            self._begin_close(now_s)

    def abort(self, code: int, text: str, now_s: float) -> None:
        """At once; what was written and is not acknowledged may be lost. What came in order stays readable."""
        if self.state in ALIVE:
            self._end_by(Abort(code, text))
            self._is_abort_due = True

    def set_option(self, option: Option, value: int, now_s: float) -> None:
        """Here at once, at the other end when CONN_OPTION comes there."""
        if not -INT32 <= value < INT32:
            raise ValueError(f"{value} does not fit into an option")
        if self.state in (State.OPENING, State.OPEN):
            self._begin_sending(now_s)
            self._transmit.outbox.options[int(option)] = value
            self._transmit.watch_window(now_s)
            self._apply(option, value)

    # -- what goes ------------------------------------------------------------------------------------------------

    def take_packets(self, limit_bytes: int, now_s: float) -> list[bytes]:
        """To send now, oldest first; more than `limit_bytes` only if one packet, with an ACK before it, is longer."""
        out: list[bytes] = []
        if limit_bytes <= 0:
            return out
        self.on_time(now_s)
        if self._is_abort_due:
            assert self.reason is not None
            self._is_abort_due = False
            out.append(encode(Kind.CONN_ABORT, self.connection_id, payload=self.reason.payload(), version=self.version))
        elif self._is_hello_due:
            out.append(self._hello())
            self._is_hello_due = False
            self._hello_at = now_s + self._timing.interval_s if self.state is State.OPENING else inf
        if self.state in CARRYING:
            self._transmit.take(out, limit_bytes - HEADER_BYTES[self.version], now_s)  # an ACK may go with them
        if self._acks.is_due or (out and self._acks.is_worth_sending()):
            self._take_ack(out)
        return out

    def has_packets(self, now_s: float) -> bool:
        """Would `take_packets` give any?"""
        self.on_time(now_s)
        if self._is_abort_due or self._is_hello_due or self._is_ack_due():
            return True
        return self.state in CARRYING and self._transmit.has_packets()

    def _hello(self) -> bytes:
        kind = Kind.CONN_INIT if self.role is Role.CLIENT else Kind.CONN_INIT_ACK
        return encode(kind, self.connection_id, 0, self._receive.capacity, version=self.version)

    def _is_ack_due(self) -> bool:
        return self._acks.is_due and self.state in (State.OPEN, State.CLOSING, State.CLOSED)

    def _take_ack(self, out: list[bytes]) -> None:
        """The newest R and window, before everything else: an ACK frees the other end."""
        if self.state in (State.OPENING, State.ABORTED):
            return
        receive = self._receive
        number = on_wire(receive.received)
        out.insert(0, encode(Kind.ACK, self.connection_id, number, receive.window, version=self.version))
        self._acks.taken(receive.edge)

    # -- time -----------------------------------------------------------------------------------------------------

    def on_time(self, now_s: float) -> None:
        state = self.state
        if state is State.OPENING:
            if now_s >= self._hello_at:
                self._is_hello_due, self._hello_at = True, inf
        elif state in CARRYING:
            self._acks.on_time(now_s)
            self._transmit.on_time(now_s)
        if now_s < self._limit_at():
            return
        if state is State.CLOSED:
            self._forget_at, self._is_forgotten = inf, True
        elif state is State.OPEN and now_s >= self._idle_at():
            self._begin_close(now_s)
        elif now_s >= self._give_up_at():
            self.abort(AbortCode.SILENCE, "no acknowledgement came", now_s)
        else:
            self.abort(AbortCode.LINGER, "the close did not finish", now_s)

    def next_at(self) -> float:
        """When `on_time` is due; inf: never."""
        soonest = self._limit_at()
        if self.state is State.OPENING:
            return min(soonest, self._hello_at)
        if self.state in CARRYING:
            return min(soonest, self._acks.due_at, self._transmit.next_at())
        return soonest

    def _limit_at(self) -> float:
        """When waiting has an end: for an answer, for progress, for data, for forgetting."""
        if self.state is State.OPEN:
            return min(self._give_up_at(), self._idle_at())
        if self.state is State.CLOSING:
            return min(self._give_up_at(), self._progress_at + self._timing.patience_s(self.rules.linger_s))
        if self.state is State.OPENING:
            return self._give_up_at()
        return self._forget_at

    def _give_up_at(self) -> float:
        if self.state is State.OPENING or self._transmit.is_busy():
            return self._silent_since + self._timing.patience_s(self.rules.give_up_s)
        return inf

    def _idle_at(self) -> float:
        return self._data_at + self.rules.idle_s if self.rules.idle_s > 0 else inf

    # -- the end of it --------------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Nothing to send or remember any more: free it. What was not read yet can still be read from it."""
        if self.state is State.ABORTED:
            return not self._is_abort_due
        return self._is_forgotten

    def _begin_sending(self, now_s: float) -> None:
        if not self._transmit.is_busy():
            self._silent_since = now_s

    def _begin_close(self, now_s: float) -> None:
        self._begin_sending(now_s)
        self.state = State.CLOSING
        self._progress_at = now_s
        self._transmit.outbox.is_closing = True
        self._transmit.watch_window(now_s)

    def _settle(self, now_s: float) -> None:
        """The other end's close is followed by ours (TUN-90); when both are through, the tunnel is closed."""
        if self.state is State.OPEN and self._receive.is_closed:
            self._begin_close(now_s)
        elif self.state is State.CLOSING and self._receive.is_closed and self._transmit.is_close_acked:
            self.state = State.CLOSED
            self._transmit.clear()
            self._forget_at = now_s + self.rules.remember_s

    def _end_by(self, reason: Abort) -> None:
        self.state = State.ABORTED
        self.reason = reason
        self._is_hello_due = False
        self._transmit.clear()
        self._receive.forget_gaps()

    def _apply(self, option: int, value: int) -> None:
        self.rules = self.rules.with_option(option, value)
        self._timing.set_rules(self.rules)

    def status(self, now_s: float) -> EndStatus:
        receive, transmit = self._receive, self._transmit
        return EndStatus(
            connection_id=self.connection_id,
            version=self.version,
            role=self.role,
            state=self.state,
            reason=self.reason,
            received=on_wire(receive.received),
            consumed=on_wire(receive.consumed),
            window=receive.window,
            edge=on_wire(transmit.edge),
            acknowledged=on_wire(transmit.acked),
            unacknowledged=transmit.unacknowledged(),
            waiting_bytes=transmit.outbox.bytes,
            readable_bytes=receive.readable,
            resends=transmit.resends,
            probes=transmit.probes,
            duplicates=receive.duplicates,
            damaged=self._damaged,
            dropped=self._dropped + receive.dropped + transmit.dropped,
            rtt_s=self._timing.rtt_s,
            interval_s=self._timing.interval_s,
            pull_period_s=self.rules.pull_period_s,
            age_s=now_s - self._opened_at,
            silent_s=now_s - self._silent_since if transmit.is_busy() else 0.0,
        )
