"""One tunnel, as the gateway knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct, error

from fairlead.tunnel.gateway.buffers import ToClient
from fairlead.tunnel.gateway.flow import Flow, reaches
from fairlead.tunnel.packets import Packet
from fairlead.tunnel.rules import HOLD_S, Option, silence_limit_s

__all__ = ["OPTION_MAX_S", "Tunnel"]

OPTION = Struct(">ii")
OPTION_MAX_S = 86_400
"""A day: neither end can make the gateway wait longer for a client that is gone."""


@dataclass(slots=True, eq=False)
class Tunnel:
    """`verifier` is empty where there is no token: in version 1. `address` is empty for adopted ones."""

    server: str
    connection_id: int
    version: int
    verifier: bytes
    address: str
    buffer: ToClient
    up: Flow
    """From the client to the broker."""
    down: Flow
    opened_s: float
    seen_s: float
    """When the client last showed life: a pull, or anything over a stream."""
    inactivity_s: float
    pull_period_s: float = 0.0
    hold_s: float = HOLD_S
    is_set_up: bool = False
    """CONN_INIT_ACK has passed; before it clients send no data (TUN-59)."""
    held: int | None = None
    """The key of the pull that waits, until `held_until_s`."""
    held_until_s: float = 0.0
    stream: int | None = None
    ack_out: int | None = None
    """The newest ACK that was handed to the client, and the one before."""
    ack_out_before: int | None = None
    done_s: float | None = None
    """When both closes were acknowledged and the client had its last ACK: only the last ACKs are repeated then."""
    damaged: int = 0
    dropped: int = 0
    _options: dict[bool, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Both ends have closed, and read everything: nothing is missing but perhaps the client's last ACK."""
        return self.up.is_over and self.down.is_over

    @property
    def client_knows(self) -> bool:
        """The ACK of its close was handed out."""
        return reaches(self.ack_out, self.up.close)

    @property
    def carrier(self) -> str:
        return "websocket" if self.stream is not None else "push/pull"

    def silence_limit_s(self) -> float:
        return silence_limit_s(self.inactivity_s, self.pull_period_s, self.hold_s)

    def handed_out(self, ack: Packet | None) -> None:
        if ack is not None and ack.sequence != self.ack_out:
            self.ack_out_before, self.ack_out = self.ack_out, ack.sequence

    def on_option(self, packet: Packet, *, from_client: bool) -> bool:
        """The gateway listens in (TUN-87). An option that comes again after a later one changes nothing."""
        try:
            kind, value = OPTION.unpack(packet.payload)
        except error:
            return False
        last = self._options.get(from_client)
        if last is not None and not reaches(packet.sequence, last):
            return False
        self._options[from_client] = packet.sequence
        value = min(value, OPTION_MAX_S)
        if kind == Option.PULL_PERIOD:
            self.pull_period_s = float(max(value, 0))
        elif kind == Option.INACTIVITY and value > 0:
            self.inactivity_s = float(value)
        elif kind == Option.HOLD:
            self.hold_s = float(max(value, 0))
        return True
