"""Messages addressed to this client itself (SEND): the IPC mode.

Until the application first asks for its inbox only the newest few are kept, so that nobody can fill the
memory of a program that does not use this mode.
"""

from __future__ import annotations

from fairlead.client.aio.mailbox import Mailbox
from fairlead.message import Message

__all__ = ["Inbox"]

UNOPENED_MAX = 1024


class Inbox(Mailbox[Message]):
    """`dropped` counts what came in vain before the inbox was opened."""

    is_open = False
    dropped = 0

    def open(self) -> None:
        """The application reads it from now on."""
        self.is_open = True
        self._enlist()

    def deliver(self, run: list[Message]) -> None:
        self.put(run)
        if not self.is_open:
            while len(self.queue) > UNOPENED_MAX:
                self.queue.popleft()
                self.dropped += 1
