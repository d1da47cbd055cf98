"""What went through a destination since this message manager began to serve it: plain numbers that only grow.

They are added to once per run of messages, never per message, and are not in the journal: after a restart, or where
another member takes over, they begin at zero, as counters may.
"""

from __future__ import annotations

from typing import Final

FIELDS: Final = ("acknowledged", "dead", "delivered", "expired", "redelivered", "stored")


class Books:
    """One destination's, or several put together. `stored` is filled in by whoever adds up: a destination numbers its
    messages anyhow."""

    __slots__ = FIELDS

    def __init__(self) -> None:
        self.stored = 0
        self.delivered = 0
        self.redelivered = 0  # of these: not for the first time
        self.acknowledged = 0
        self.expired = 0
        self.dead = 0  # moved to a dead message queue

    def add(self, other: Books, stored: int = 0) -> None:
        self.stored += other.stored + stored
        self.delivered += other.delivered
        self.redelivered += other.redelivered
        self.acknowledged += other.acknowledged
        self.expired += other.expired
        self.dead += other.dead

    def facts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in FIELDS}
