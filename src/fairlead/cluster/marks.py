"""High and low marks of a destination: when its producers are told to wait, and when to go on (CLU-103, CLU-105).

Told are the sessions that have a producer here or ever sent something. What they sent before they heard of it is still
taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Producer


class FlowMarks:
    """Whether one destination takes more."""

    __slots__ = ("_home", "_producers", "blocked")

    def __init__(self, home: Destination) -> None:
        self._home = home
        self._producers: dict[Producer, None] | None = None
        self.blocked = False

    def meet(self, producer: Producer) -> None:
        """Somebody who is likely to send here."""
        if self._producers is None:
            self._producers = {}
        self._producers[producer] = None

    def check(self) -> None:
        """Depth or limits changed."""
        home = self._home
        limits = home.parameters
        if not self.blocked:
            if (
                0 < limits.max_messages <= home.depth
                or 0 < limits.max_bytes <= home.bytes
                or 0 < limits.subscriber_buffer <= home.slowest()
            ):
                self.blocked = True
                self._tell()
        elif (
            (not limits.max_messages or home.depth < limits.max_messages * limits.low_water)
            and (not limits.max_bytes or home.bytes < limits.max_bytes * limits.low_water)
            and (not limits.subscriber_buffer or home.slowest() < limits.subscriber_buffer * limits.low_water)
        ):
            self.blocked = False
            self._tell()

    def _tell(self) -> None:
        event = "blocked" if self.blocked else "unblocked"
        for producer in list(self._producers or ()):
            if producer.session.line is None:
                del self._producers[producer]  # type: ignore[union-attr]
            elif producer.told_blocked is not self.blocked:
                producer.told_blocked = self.blocked
                facts = {"destination": self._home.name, "producer": producer.handle}
                self._home.port.notice(producer.session, event=event, **facts)
