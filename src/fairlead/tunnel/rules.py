"""The numbers of a tunnel and their defaults; each end has its own."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fairlead.tunnel.packets import PAYLOAD_MAX

__all__ = ["BODY_MAX", "HOLD_S", "INACTIVITY_S", "LINK_PORT", "OPTION_MAX_S", "Option", "Rules", "silence_limit_s"]

BODY_MAX = 1 << 20
HOLD_S = 25.0
INACTIVITY_S = 60.0
LINK_PORT = 7401
OPTION_MAX_S = 86_400
"""What the other end may ask for at most: a limit that never comes would keep the dead for ever."""


class Option(IntEnum):
    """What CONN_OPTION changes (TUN-86); the values are whole seconds."""

    PULL_PERIOD = 1
    INACTIVITY = 2
    HOLD = 3


class Rules(NamedTuple):
    """How an end behaves. `capacity` never shrinks while a tunnel lives (TUN-75)."""

    capacity: int = 256
    """N: packets the receive buffer takes."""
    transmit_max: int = 512
    """Packets kept until they are acknowledged, sent or not; then writing waits."""
    payload_max: int = PAYLOAD_MAX
    first_sequence: int = 1
    resend_factor: float = 2.0
    resend_plus_s: float = 0.25
    resend_min_s: float = 0.5
    resend_max_s: float = 60.0
    resend_first_s: float = 3.0
    """Before a round trip was measured."""
    ack_packets: int = 8
    ack_after_s: float = 0.02
    give_up_s: float = 300.0
    linger_s: float = 30.0
    idle_s: float = 0.0
    """Close in the orderly way after so long without data; 0: never."""
    pull_period_s: float = 0.0
    hold_s: float = HOLD_S
    inactivity_s: float = INACTIVITY_S

    @property
    def remember_s(self) -> float:
        """How long an ended tunnel's id is known, to repeat the last ACK (TUN-92)."""
        return 2 * self.resend_max_s

    def with_option(self, option: int, value: int) -> Rules:
        """As CONN_OPTION changes them (TUN-86); unknown types change nothing."""
        value = min(value, OPTION_MAX_S)
        if option == Option.PULL_PERIOD:
            return self._replace(pull_period_s=float(value))
        if option == Option.INACTIVITY and value > 0:
            return self._replace(inactivity_s=float(value))
        if option == Option.HOLD:
            return self._replace(hold_s=float(max(value, 0)))
        return self


def silence_limit_s(inactivity_s: float, pull_period_s: float, hold_s: float) -> float:
    """After how long without a pull a client is considered dead: never under three pull periods and a hold (TUN-97)."""
    return max(inactivity_s, 3 * max(pull_period_s, 0.0) + hold_s)
