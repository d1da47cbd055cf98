"""Sends a numbered feed, as an exchange would: packets on lines A and B, heartbeats, and a rewind server beside them.

`fairlead feed generate` runs one; the scripted source of the tests is one that hurts its packets on the way.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from fairlead.errors import ConfigError
from fairlead.feeds.edge.sources.rewind_server import Address, Audience, RewindServer, listen_on
from fairlead.feeds.sources import mold
from fairlead.feeds.sources.mold_codec import pack
from fairlead.feeds.sources.runs import Run

__all__ = ["Address", "Audience", "Transmitter"]

BURST_RATE: Final = 400_000.0  # messages a second, when nobody asked for a rate: more would only fill buffers
CHUNK: Final = 2048  # messages made at once
IDLE_S: Final = 0.05
SLICE_S: Final = 0.001


class Transmitter(RewindServer):
    """`make` gives the messages from a sequence on, again whenever it is asked; sending is a thread's work."""

    def __init__(
        self,
        make: Callable[[int, int], Run],
        *,
        session: str = "DAY0000001",
        per_packet: int = 20,
        packet_bytes: int = 1400,
        heartbeat_s: float = 0.1,
        interface: str = "127.0.0.1",
        first: int = 1,
    ) -> None:
        super().__init__(make, session, packet_bytes, heartbeat_s)
        self.sent = first - 1
        self._per_packet = per_packet
        self._until = first - 1
        self._rate = BURST_RATE
        self._paced_from = (0.0, first - 1)  # time and sequence from which the rate counts
        self._changed = threading.Condition(self._lock)
        self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        self._out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        self._last_packet_s = 0.0
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="feed transmitter", daemon=True)

    # -- life

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        with self._lock:
            self._closed = True
        if self._thread.is_alive():
            self.wake()
            self._thread.join()
        self._out.close()
        super().close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what is wanted of it

    def add_audience(self, name: str, lines: Sequence[Address], rewind: Address | None = ("127.0.0.1", 0)) -> Audience:
        """Send to these addresses too, from the next packet on."""
        audience = Audience(name, list(lines))
        if rewind is not None:
            audience.udp, audience.tcp = listen_on(rewind)
        with self._lock:
            self.audiences[name] = audience
        self.wake()
        return audience

    def send(self, count: int, rate: float = BURST_RATE) -> int:
        """Send so many more, not faster than `rate` a second; the sequence of the last one. Returns at once."""
        with self._lock:
            self._pace(rate)
            self._until += count
            until = self._until
        self.wake()
        return until

    def run(self, rate: float) -> None:
        """Send at this rate until `pause` (or until there is nothing more)."""
        with self._lock:
            self._pace(rate)
            self._until = mold.SEQUENCE_MAX
        self.wake()

    def pause(self) -> int:
        """Send no further messages; the sequence of the last one. Heartbeats go on."""
        with self._lock:
            self._until = self.sent
            return self.sent

    def wait_sent(self, sequence: int, timeout_s: float = 60.0) -> None:
        """Until it is on its way."""
        with self._changed:
            good = self._changed.wait_for(lambda: self.sent >= sequence or self._failure, timeout_s)
            if self._failure:
                raise RuntimeError("the transmitter failed") from self._failure
            if not good:
                raise TimeoutError(f"{self.sent} of {sequence} were sent in {timeout_s} s")

    def heartbeats(self, on: bool) -> None:
        with self._lock:
            self._beats = on

    def end_session(self) -> None:
        with self._lock:
            self._heartbeat(is_end=True)

    def _pace(self, rate: float) -> None:
        if rate <= 0:
            raise ConfigError(f"A rate is messages a second, more than 0; not {rate}.")
        self._rate = rate
        self._paced_from = (time.monotonic(), self.sent)

    # -- the thread

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    if self._closed:
                        return
                    is_busy = self._send_due(time.monotonic())
                self.listen_for(SLICE_S if is_busy else min(IDLE_S, self._heartbeat_s / 2))
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _send_due(self, now_s: float) -> bool:
        """Send what the rate allows by now; is there more to send later?"""
        since_s, from_sequence = self._paced_from
        allowed = from_sequence + int((now_s - since_s) * self._rate)
        last = min(self._until, allowed, self.sent + CHUNK)
        if last > self.sent:
            run = self.make(self.sent + 1, last - self.sent)
            if not run.size:
                self._until = self.sent  # the day is over
            else:
                self.transmit(run, now_s)
                self.sent = run.last
                self._changed.notify_all()
        elif self._beats and now_s - self._last_packet_s >= self._heartbeat_s:
            self._heartbeat()
        self.follow(now_s)
        self.on_turn(now_s)
        return self.sent < self._until

    def _heartbeat(self, is_end: bool = False) -> None:
        packet = mold.heartbeat(self.session_bytes(), self.sent + 1, is_end)
        self.counters["heartbeats"] += 1
        self._last_packet_s = time.monotonic()
        for audience in self.audiences.values():
            for line in range(len(audience.lines)):
                self.carry(audience, line, packet)

    def transmit(self, run: Run, now_s: float) -> None:
        """The run to everybody, on every line."""
        packets = pack(self.session_bytes(), run.first, run.lengths, run.data, self._per_packet, self._packet_bytes)
        for packet in packets:
            for audience in self.audiences.values():
                for line in range(len(audience.lines)):
                    self.carry(audience, line, packet)
        self._last_packet_s = now_s

    def on_turn(self, now_s: float) -> None:
        """Once every turn of the thread."""

    def carry(self, audience: Audience, line: int, packet: bytes) -> None:
        """One packet to one line; what the network does not take is lost, as networks do."""
        self.counters["packets"] += 1
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            self._out.sendto(packet, audience.lines[line])
