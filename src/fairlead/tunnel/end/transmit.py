"""The sending half: every sequenced packet is kept until it is acknowledged, and sent again when that takes too long.

Nothing above the edge leaves, but for the probe: while the window is zero, the one next packet, again and again
(TUN-65, 75 … 77, 80, 83, 84). Packets wait for their timers in one queue for each number of resends, in which the
oldest is always in front: no timer costs more than a few steps, however many packets are unacknowledged.

In silence every packet is sent again when its time has come. Where ACKs show a hole, what lies behind it has probably
arrived: then only the first packet is, and as R moves and stops again, twice as many as before from the next hole on.
When R stops at one that was sent again already, that was lost too: then this begins anew from there.

When the way is open again after it was not, all that is unacknowledged is sent once more at once (`on_restored`).
"""

from __future__ import annotations

from collections import deque
from math import inf

from fairlead.tunnel.end.outbox import Outbox
from fairlead.tunnel.end.timing import LEVELS, Timing
from fairlead.tunnel.packets import HEADER_BYTES, Kind, encode
from fairlead.tunnel.rules import Rules
from fairlead.tunnel.serial import near, on_wire

__all__ = ["Sent", "Transmit"]

DUPLICATE_ACKS = 3
PROBE_BYTES = 1024
"""A probe is repeated as long as a reader sleeps, so it is a short packet."""


class Sent:
    """A packet that was sent: `times` so often, the last time `at`. Its timer ran out `level` times, and runs again
    from `timed_at`.
    """

    __slots__ = ("at", "is_close", "is_queued", "level", "number", "raw", "timed_at", "times")

    def __init__(self, number: int, raw: bytes, *, is_close: bool) -> None:
        self.number = number
        self.raw = raw
        self.is_close = is_close
        self.is_queued = False
        self.times = 0
        self.level = 0
        self.at = self.timed_at = -inf


class Transmit:
    def __init__(self, rules: Rules, timing: Timing, connection_id: int, version: int, peer_window: int) -> None:
        self.rules = rules
        self.timing = timing
        self.connection_id = connection_id
        self.version = version
        self.outbox = Outbox(rules.payload_max)
        self.number = self.acked = rules.first_sequence - 1
        self.edge = self.acked + peer_window
        self.unacked: deque[Sent] = deque()
        self.is_close_acked = False
        self.resends = 0
        self.probes = 0
        self.dropped = 0
        self._again: deque[Sent] = deque()
        self._timers: list[deque[tuple[float, Sent]]] = [deque() for _ in range(LEVELS)]
        self._probe: Sent | None = None
        self._probe_at = inf
        self._is_probe_due = False
        self._duplicate_acks = 0
        self._recover_until = self.acked
        self._filled_until = self.acked
        self._burst = 1
        self._measured_after = self.acked

    def room(self) -> int:
        """Bytes that still fit: what is kept never makes more than `transmit_max` packets."""
        kept = len(self.unacked) + (self._probe is not None) + len(self.outbox.options)
        return max(0, (self.rules.transmit_max - kept) * self.rules.payload_max - self.outbox.bytes)

    def is_busy(self) -> bool:
        """Is there something an ACK should come for?"""
        return bool(self.unacked) or self._probe is not None or bool(self.outbox)

    def unacknowledged(self) -> int:
        return len(self.unacked) + (self._probe is not None)

    def on_window(self, window: int, now_s: float) -> None:
        """The window told at set-up."""
        self.edge = max(self.edge, self.rules.first_sequence - 1 + window)
        self.watch_window(now_s)

    def on_ack(self, sequence: int, window: int, now_s: float) -> bool:
        """Was it progress: a higher number, a higher edge (TUN-93)? An older ACK takes nothing back (TUN-75)."""
        number = near(sequence, self.acked)
        if number > self.number:
            self.dropped += 1
            return False
        edge = number + window
        if number > self.acked:
            self._release(number, now_s)
        elif edge <= self.edge:
            if number == self.acked and edge == self.edge:
                self._on_duplicate_ack(now_s)
            return False
        if edge > self.edge:
            self.edge = edge
            self._restart_close(now_s)
        if self._probe is not None:
            self._settle_probe()
        self.watch_window(now_s)
        return True

    def watch_window(self, now_s: float) -> None:
        """The probe's clock runs while the window is zero and something waits; call it when either changed."""
        if self.edge <= self.acked and (self._probe is not None or self.outbox):
            if self._probe_at == inf and not self._is_probe_due:
                self._probe_at = now_s + self.timing.interval_s
        else:
            self._probe_at = inf
            self._is_probe_due = False

    def on_restored(self) -> None:
        """The way is open again: what was under way may be lost, and how long the way was shut is no round trip."""
        self._measured_after = self.number
        self._recover_until = self._filled_until = self.acked
        self._duplicate_acks = 0
        for sent in self.unacked:
            sent.level = 0
            self._queue(sent)
        if self._probe_at < inf:
            self._probe_at, self._is_probe_due = inf, True

    def is_held_up(self) -> bool:
        """Was the first packet sent again in vain? (A close may wait for a reader.)"""
        return bool(self.unacked) and self.unacked[0].level > 0 and not self.unacked[0].is_close

    def on_time(self, now_s: float) -> None:
        """Queue what is due to be sent again."""
        for queue, interval_s in zip(self._timers, self.timing.intervals_s, strict=True):
            while queue:
                at, sent = queue[0]
                if self._is_waiting(at, sent):
                    if now_s < at + interval_s:
                        break
                    if self._is_behind_a_hole(sent):
                        sent.timed_at = now_s
                        queue.append((now_s, sent))
                    else:
                        sent.level = min(sent.level + 1, LEVELS - 1)
                        self._queue(sent)
                        if self._is_hole_known():
                            self._begin_recovery()
                queue.popleft()
        if now_s >= self._probe_at:
            self._probe_at = inf
            self._is_probe_due = True

    def next_at(self) -> float:
        soonest = self._probe_at
        for queue, interval_s in zip(self._timers, self.timing.intervals_s, strict=True):
            while queue and not self._is_waiting(*queue[0]):
                queue.popleft()
            if queue:
                soonest = min(soonest, queue[0][0] + interval_s)
        return soonest

    def has_packets(self) -> bool:
        again = self._again
        while again and again[0].number <= self.acked:
            again.popleft()
        return bool(again) or self._is_probe_due or (self.number < self.edge and bool(self.outbox))

    def take(self, out: list[bytes], limit: int, now_s: float) -> None:
        """Append what is to be sent, resends first; more than `limit` bytes only if nothing else is in `out`."""
        again = self._again
        while again:
            sent = again[0]
            if sent.number > self.acked:
                if len(sent.raw) > limit and out:
                    return
                limit -= len(sent.raw)
                out.append(self._send(sent, now_s))
            again.popleft()
        payload_max, header = self.rules.payload_max, HEADER_BYTES[self.version]
        while self.number < self.edge and self.outbox:
            if header + self.outbox.next_size(payload_max) > limit and out:
                return
            sent = self._pack(payload_max)
            self.unacked.append(sent)
            limit -= len(sent.raw)
            out.append(self._send(sent, now_s))
        if self._is_probe_due:
            self._take_probe(out, limit, now_s)

    def clear(self) -> None:
        """The tunnel has ended: nothing is kept, nothing sent."""
        self.outbox.clear()
        self.unacked.clear()
        self._again.clear()
        for queue in self._timers:
            queue.clear()
        self._probe, self._probe_at, self._is_probe_due = None, inf, False

    def _pack(self, limit: int) -> Sent:
        kind, payload = self.outbox.take(limit)
        self.number += 1
        raw = encode(kind, self.connection_id, on_wire(self.number), 0, payload, self.version)
        return Sent(self.number, raw, is_close=kind is Kind.CONN_CLOSE)

    def _send(self, sent: Sent, now_s: float) -> bytes:
        if sent.times:
            self.resends += 1
        sent.is_queued = False
        sent.at = sent.timed_at = now_s
        self._timers[sent.level].append((now_s, sent))
        sent.times += 1
        return sent.raw

    def _queue(self, sent: Sent) -> None:
        if not sent.is_queued:
            sent.is_queued = True
            self._again.append(sent)

    def _is_waiting(self, at: float, sent: Sent) -> bool:
        """Or is this timer a left-over: acknowledged, queued or sent again since?"""
        return sent.number > self.acked and sent.timed_at == at and not sent.is_queued

    def _is_behind_a_hole(self, sent: Sent) -> bool:
        return sent is not self.unacked[0] and self._is_hole_known()

    def _is_hole_known(self) -> bool:
        return self._duplicate_acks > 0 or self.acked < self._recover_until

    def _begin_recovery(self) -> None:
        """From the first packet on; as that is acknowledged, what is missing behind it follows."""
        self._recover_until = self.unacked[-1].number
        self._filled_until = self.acked
        self._burst = 1

    def _release(self, number: int, now_s: float) -> None:
        unacked = self.unacked
        latest, is_first_time = None, True
        while unacked and unacked[0].number <= number:
            latest = unacked.popleft()
            if latest.is_close:
                self.is_close_acked = True
                is_first_time = False  # it waited for the reader, not for the carrier
            elif latest.times > 1:
                is_first_time = False  # which of the sendings was acknowledged, or was waited for, is not known
            latest.raw = b""
        self.acked = number
        self._duplicate_acks = 0
        if latest is not None and latest.times == 1 and not latest.is_close and latest.number > self._measured_after:
            self.timing.measured(now_s - latest.at, is_bound=not is_first_time)
        if unacked and number < self._recover_until:
            if unacked[0].number <= self._filled_until and self._is_missing(unacked[0], now_s):
                self._begin_recovery()
            self._burst = min(2 * self._burst, len(unacked))  # whole bodies may be lost, of many packets
            self._fill(now_s)

    def _on_duplicate_ack(self, now_s: float) -> None:
        """Packets arrive behind one that does not: it is sent again before its time."""
        self._duplicate_acks += 1
        if self._duplicate_acks >= DUPLICATE_ACKS and self.unacked and self._is_missing(self.unacked[0], now_s):
            self._begin_recovery()
            self._fill(now_s)

    def _fill(self, now_s: float) -> None:
        """The first that is missing, and so many more from where the last filling ended."""
        first = self.unacked[0].number
        begin = max(first, self._filled_until + 1)
        end = min(begin + self._burst, self._recover_until + 1)
        for number in (first, *range(begin, end)):
            sent = self.unacked[number - first]
            if self._is_missing(sent, now_s):
                self._queue(sent)
        self._filled_until = max(self._filled_until, end - 1)

    def _is_missing(self, sent: Sent, now_s: float) -> bool:
        """Has an ACK had the time to come, and is it not about to be sent again? A close may wait for a reader."""
        if sent.is_close or sent.is_queued:
            return False
        return sent.times == 1 if self.timing.rtt_s is None else now_s - sent.at >= self.timing.rtt_s

    def _restart_close(self, now_s: float) -> None:
        """A close that the other end's reader makes way for is answered: its interval begins anew."""
        first = self.unacked[0] if self.unacked else None
        if first is not None and first.is_close and first.times and not first.is_queued:
            first.level = 0
            first.timed_at = now_s
            self._timers[0].append((now_s, first))

    def _settle_probe(self) -> None:
        """It was taken, or it may be: then it is a packet like others, sent once more."""
        probe = self._probe
        assert probe is not None
        if probe.number <= self.acked:
            self.is_close_acked = self.is_close_acked or probe.is_close
            self._probe = None
        elif probe.number <= self.edge:
            self.unacked.appendleft(probe)
            self._probe = None
            self._queue(probe)

    def _take_probe(self, out: list[bytes], limit: int, now_s: float) -> None:
        probe = self._probe
        size = HEADER_BYTES[self.version] + PROBE_BYTES if probe is None else len(probe.raw)
        if size > limit and out:
            return
        if probe is None:
            probe = self._probe = self._pack(min(PROBE_BYTES, self.rules.payload_max))
        self._is_probe_due = False
        self._probe_at = now_s + self.timing.interval_s
        probe.times += 1
        probe.at = now_s
        self.probes += 1
        out.append(probe.raw)
