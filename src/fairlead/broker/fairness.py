"""When a manager stops reading its clients, who may still send one more, and when it goes on (SRV-102 … SRV-106).

One queue to the router serves both purposes (SRV-106), so the length that counts is the number of client messages in it
that the router has not popped; entries of the manager itself are never counted. `_traffic.pyx` follows the same rules.
"""

from __future__ import annotations


class Admission:
    """Decides for each client message whether it may be taken now."""

    def __init__(self, *, limit: int, resume_below: int) -> None:
        assert limit > 0
        self.limit = limit
        self.resume_below = min(resume_below, limit)
        self.stopped = False
        self.stops = 0
        self.one_more = 0
        self._had_theirs: set[int] = set()

    def on_length(self, waiting: int) -> bool:
        """The router popped something, or may have: True when reading goes on again after a stop."""
        if self.stopped and waiting < self.resume_below:
            self.stopped = False
            return True
        return False

    def may_take(self, client: int, waiting: int) -> bool:
        """Is there room for one message of this client, or has it its one more of this stop left?"""
        if not self.stopped and waiting >= self.limit:
            self.stopped = True
            self.stops += 1
            self._had_theirs = set()
        return not self.stopped or client not in self._had_theirs

    def taken(self, client: int) -> None:
        """The message was pushed."""
        if self.stopped:
            self._had_theirs.add(client)
            self.one_more += 1

    def forget(self, client: int) -> None:
        """The connection is gone; another may get its index."""
        self._had_theirs.discard(client)
