"""Who may send how much: messages are counted, and credit for them is spent or given back, never negative.

The receiver grants a window at the beginning and gives back what was consumed, in portions, since a CREDIT
frame per message would cost as much as the messages. What it still holds unread is not given back: that
bounds its memory. While it waits for an answer that may be stuck behind unread messages it stretches the
window, so that a program which asks a question inside its reading loop does not wait for itself; as the
server keeps at most 100,000 messages for a client, a stretch of more than that reaches any answer.
"""

from __future__ import annotations

__all__ = ["ReceiverCredit", "SenderCredit"]

STRETCH = 131_072
PORTIONS = 4


class ReceiverCredit:
    """The side that grants; a window of 0 means no limit."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.open = window
        """How many messages the peer may still send."""

    def on_messages(self, count: int) -> None:
        """So many messages arrived."""
        if self.window:
            self.open = max(self.open - count, 0)

    @property
    def is_worth_asking(self) -> bool:
        """Could there be a portion to give back? (Cheap: `held` need not be counted yet.)"""
        return self.window > 0 and self.window - self.open >= self.portion

    @property
    def is_used_up(self) -> bool:
        """Is the peer not allowed to send anything at the moment?"""
        return self.open == 0 and self.window > 0

    @property
    def portion(self) -> int:
        return max(self.window // PORTIONS, 1)

    def give_back(self, held: int, *, waiting: bool = False) -> int:
        """How much to grant now, when `held` messages are unread; 0 says: not yet."""
        if not self.window:
            return 0
        room = self.window + (STRETCH if waiting else 0) - held
        grant = min(room, self.window) - self.open
        if grant < self.portion:
            return 0
        self.open += grant
        return grant


class SenderCredit:
    """The side that spends."""

    def __init__(self, window: int) -> None:
        self.unlimited = window == 0
        self.left = window

    def may_send(self, wanted: int) -> int:
        """How many of `wanted` messages may go now."""
        return wanted if self.unlimited else min(wanted, self.left)

    def on_sent(self, count: int) -> None:
        assert count <= self.may_send(count), "messages were sent without credit"
        if not self.unlimited:
            self.left -= count

    def on_credit(self, count: int) -> None:
        self.left += count
