"""The laws of one end, kept by looking at its packets: an account of its own beside that of the machine."""

from __future__ import annotations

from math import inf

from fairlead.tunnel.end import End, EndStatus, Role, State
from fairlead.tunnel.packets import Kind, Packet, split
from fairlead.tunnel.rules import Rules

__all__ = ["Broken", "Watch"]

CIRCLE = 1 << 32
SEQUENCED = (Kind.DATA, Kind.CONN_OPTION, Kind.CONN_CLOSE)


class Broken(AssertionError):
    """A law of the tunnel is."""


def nearest(wire: int, known: int) -> int:
    """Of all numbers that look like `wire` the one nearest to `known`: the slow way."""
    turn = known - known % CIRCLE
    return min((turn + wire + CIRCLE * by for by in (-1, 0, 1)), key=lambda number: abs(number - known))


class Watch:
    def __init__(self, rules: Rules, role: Role, *, least_rtt_s: float, peer_window: int) -> None:
        self.least_rtt_s = least_rtt_s
        self.rules = rules
        self.role = role
        zero = rules.first_sequence - 1
        # what this end sends
        self.raws: dict[int, bytes] = {}
        self.kinds: dict[int, int] = {}
        self.last_sent_at: dict[int, tuple[int, int, float]] = {}
        self.highest_sent = zero
        self.edge_told = zero + peer_window  # by the other end, as far as it arrived here
        self.acked = zero
        self.is_open = False
        self.last_ack_at = -inf
        self.edge_seen = zero
        # what this end receives
        self.arrived_packets: dict[int, Packet] = {}
        self.gapless = zero
        self.bytes_before: dict[int, int] = {zero: 0}
        self.bytes_read = 0
        self.consumed_up_to = zero
        self.edge_promised = zero + rules.capacity
        self.ack_owed_since = inf
        self.ack_number = zero

    # -- its own packets --------------------------------------------------------------------------------------------

    def sent(self, raw: bytes, now_s: float, *, is_all_read: bool) -> None:
        (packet,) = split(raw).packets
        if packet.kind in SEQUENCED:
            self._sent_sequenced(packet, raw, now_s)
        elif packet.kind == Kind.ACK:
            self._sent_ack(packet, is_all_read)
        if packet.window and (packet.kind in SEQUENCED or packet.kind == Kind.CONN_ABORT):
            raise Broken("a window in a packet that has none (TUN-19)")
        if packet.kind not in SEQUENCED and packet.kind != Kind.ACK and packet.sequence:
            raise Broken("a number on a packet that takes none (TUN-17)")

    def _sent_sequenced(self, packet: Packet, raw: bytes, now_s: float) -> None:
        if not self.is_open:
            raise Broken("sent before the tunnel was open (TUN-59)")
        number = nearest(packet.sequence, self.highest_sent)
        if number > self.highest_sent + 1:
            raise Broken("a number was left out (TUN-17)")
        if number == self.highest_sent + 1:
            self.highest_sent = number
            if self.kinds.get(number - 1) == Kind.CONN_CLOSE:
                raise Broken("something follows the close")
            is_probe = self.edge_told == self.acked and number == self.acked + 1
            if number > self.edge_told and not is_probe:
                raise Broken(f"{number} is above the edge {self.edge_told} (TUN-80)")
            self.raws[number], self.kinds[number] = raw, packet.kind
            self.last_sent_at[number] = 0 if is_probe and number > self.edge_told else 1, 0, now_s
            return
        if self.raws[number] != raw:
            raise Broken(f"{number} was sent again with other content (TUN-17)")
        if number <= self.acked:
            raise Broken(f"{number} was sent again though it was acknowledged (TUN-34, 75)")
        self._check_interval(number, packet.kind, now_s)

    def _check_interval(self, number: int, kind: int, now_s: float) -> None:
        """Resends in silence are ever longer apart (TUN-77). ACKs that came since may tell that a packet is missing, a
        close starts anew when it is answered, and a probe may go at any time the window opens.
        """
        times, silent, last_at = self.last_sent_at[number]
        if not times:
            self.last_sent_at[number] = 0 if number > self.edge_told else 1, 0, now_s
            return
        if self.last_ack_at < last_at + self.least_rtt_s and kind != Kind.CONN_CLOSE:
            least_s = min(self.rules.resend_min_s * 2**silent, self.rules.resend_max_s)
            if (times > 1 or silent) and now_s - last_at < least_s - 1e-6:
                raise Broken(f"{number} was sent for the {times + 1}th time after {now_s - last_at} s (TUN-77)")
            silent += 1
        self.last_sent_at[number] = times + 1, silent, now_s

    def _sent_ack(self, packet: Packet, is_all_read: bool) -> None:
        number = nearest(packet.sequence, self.gapless)
        if number > self.gapless:
            raise Broken(f"{number} was acknowledged, and {self.gapless + 1} has not come (TUN-69)")
        is_close = self.arrived_packets[number].kind == Kind.CONN_CLOSE if number in self.arrived_packets else False
        if is_close and not is_all_read:
            raise Broken("the close was acknowledged before all was read (TUN-89)")
        following = self.arrived_packets.get(number + 1)
        if number < self.gapless and following is not None and following.kind != Kind.CONN_CLOSE:
            raise Broken(f"acknowledged {number} where {self.gapless} have come (TUN-69)")
        if number < self.ack_number:
            raise Broken("an acknowledged number went back")
        self.ack_number = number
        self._count_consumed(number)
        in_buffer = sum(1 for n in range(self.consumed_up_to + 1, number + 1) if not self._is_consumed(n))
        if packet.window != self.rules.capacity - in_buffer:
            raise Broken(
                f"a window of {packet.window} with {in_buffer} of {self.rules.capacity} in the buffer (TUN-80)"
            )
        if number + packet.window < self.edge_promised:
            raise Broken("the edge went back (TUN-75)")
        self.edge_promised = number + packet.window
        self.ack_owed_since = inf

    def state(self, end: End, now_s: float) -> None:
        status = end.status(now_s)
        if end.state in (State.OPEN, State.CLOSING):
            edge = nearest(status.edge, self.edge_seen)
            if edge < self.edge_seen:
                raise Broken("an old ACK took the edge back (TUN-75)")
            if edge > self.edge_told:
                raise Broken("an edge that nobody told")
            self.edge_seen = edge
            if nearest(status.acknowledged, self.acked) != self.acked:
                raise Broken(f"an ACK was not counted, or an old one was: {status.acknowledged}, not {self.acked}")
        if status.unacknowledged * self.rules.payload_max + status.waiting_bytes > (
            (self.rules.transmit_max + 3) * self.rules.payload_max
        ):
            raise Broken("more is kept than the transmit buffer takes (TUN-65)")
        in_order = self.gapless - self.consumed_up_to
        if in_order > self.rules.capacity + 1:
            raise Broken("more was taken than the receive buffer holds (TUN-66)")
        if status.rtt_s is not None and status.rtt_s < self.least_rtt_s - 1e-9:
            raise Broken(f"a round trip of {status.rtt_s} s, and none is under {self.least_rtt_s} s (TUN-76)")

    # -- packets that come ------------------------------------------------------------------------------------------

    def arrived(self, packets: list[Packet], now_s: float) -> None:
        for packet in packets:
            if packet.kind in SEQUENCED:
                self._arrived_sequenced(packet, now_s)
            elif packet.kind == Kind.ACK:
                self.is_open = True
                self.last_ack_at = now_s
                number = nearest(packet.sequence, self.acked)
                self.acked = max(self.acked, number)
                self.edge_told = max(self.edge_told, number + packet.window)
            elif packet.kind in (Kind.CONN_INIT, Kind.CONN_INIT_ACK):
                self.is_open = self.is_open or packet.kind == Kind.CONN_INIT_ACK
                self.edge_told = max(self.edge_told, self.rules.first_sequence - 1 + packet.window)

    def _arrived_sequenced(self, packet: Packet, now_s: float) -> None:
        self.is_open = self.is_open or self.role is Role.BROKER
        number = nearest(packet.sequence, self.gapless)
        if number <= self.gapless or number in self.arrived_packets or not self.is_open:
            return
        self._count_consumed(self.gapless)
        in_buffer = sum(1 for n in range(self.consumed_up_to + 1, self.gapless + 1) if not self._is_consumed(n))
        if number > self.gapless + self.rules.capacity - in_buffer:
            return
        self.arrived_packets[number] = packet
        while (following := self.arrived_packets.get(self.gapless + 1)) is not None:
            before = self.bytes_before[self.gapless]
            self.gapless += 1
            self.bytes_before[self.gapless] = before + (len(following.payload) if following.kind == Kind.DATA else 0)
        if packet.kind == Kind.DATA:
            self.ack_owed_since = min(self.ack_owed_since, now_s)

    def consumed(self, end: End, size: int, now_s: float, *, before: EndStatus) -> None:
        """The program read; was there no room before, an ACK says so unasked (TUN-82)."""
        self.bytes_read += size
        self._count_consumed(self.gapless)
        status = end.status(now_s)
        if status.consumed == before.consumed:
            return
        received = nearest(status.received, self.gapless)
        gained = received + status.window - self.edge_promised
        is_worth_telling = gained > 0 and (self.edge_promised <= received or 4 * gained >= self.rules.capacity)
        if is_worth_telling and end.state in (State.OPEN, State.CLOSING) and not end.has_packets(now_s):
            raise Broken("there is room again, and no ACK says so (TUN-82)")

    def ack_is_in_time(self, end: End, now_s: float, *, is_driver_free: bool) -> None:
        if end.state is State.ABORTED:
            return
        if is_driver_free and now_s > self.ack_owed_since + self.rules.ack_after_s + 1e-6:
            raise Broken("a packet was not acknowledged in time (TUN-71)")

    def _is_consumed(self, number: int) -> bool:
        return self.arrived_packets[number].kind != Kind.DATA or self.bytes_before[number] <= self.bytes_read

    def _count_consumed(self, up_to: int) -> None:
        while self.consumed_up_to < up_to and self._is_consumed(self.consumed_up_to + 1):
            self.consumed_up_to += 1
