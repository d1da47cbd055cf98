"""What the programs at both ends of a simulated tunnel do."""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

from fairlead.tunnel.end import End
from fairlead.tunnel.rules import Rules
from tests.tunnel.gateway.watch import Violation

if TYPE_CHECKING:
    from tests.tunnel.gateway.simulation import Simulation

RULES = Rules(capacity=16, transmit_max=32, payload_max=500, linger_s=250.0)
BODY_BYTES = 6000
HEAD = 4
"""A client's first bytes say which it is, and the broker answers with the stream made for it."""


def stream_of(number: int, way: str, size: int) -> bytes:
    return number.to_bytes(HEAD, "big") + Random(f"{number} {way}").randbytes(size)


class Program:
    """Writes one stream, reads another byte for byte, and closes then."""

    def __init__(self, simulation: Simulation, end: End, out: bytes | None, expected: bytes | None) -> None:
        self.simulation = simulation
        self.end = end
        self.out = out
        self.expected = expected
        self.written = 0
        self.read = 0
        self.head = b""
        self.is_sleepy = simulation.random.random() < 0.3
        self._wake_s = -inf

    def turn(self) -> None:
        now_s, end = self.simulation.now_s, self.end
        if self.out is not None and self.written < len(self.out):
            self.written += end.write(self.out[self.written : self.written + 3000], now_s)
        if self.out is not None and self.written == len(self.out) and self.read == len(self.expected or b""):
            end.close(now_s)  # a close ends both ways (TUN-90)
        if self.is_sleepy and now_s < self._wake_s:
            return
        data = end.read(self.simulation.random.randint(1, 4000), now_s)
        if not data:
            return
        self._wake_s = now_s + self.simulation.random.uniform(0, 0.5)
        if self.expected is None:
            self.head += data
        elif self.expected[self.read : self.read + len(data)] != data:
            raise Violation(f"tunnel {end.connection_id}: wrong bytes at {self.read}")
        self.read += len(data)

    @property
    def is_complete(self) -> bool:
        return self.expected is not None and self.read == len(self.expected) and self.end.is_eof()
