"""A consumer by pattern: one consumer for each group, since each group joins its own topics; seen as one.

Messages of one topic come from one group, so their order is kept and none comes twice. What was taken is known by the
group it came from: the lowest bits of an epoch say which it is, the others how often that one has lost its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fairlead.client.durable.commands import Facts, Reply
from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.session import all_told
from fairlead.client.durable.settlement import Told
from fairlead.errors import FairleadError, NoMessageManager

if TYPE_CHECKING:
    from fairlead.client.durable.downloads import Download
    from fairlead.client.durable.part import Part
    from fairlead.client.durable.session import DurableSession
    from fairlead.wire.entry_codec import Delivered

__all__ = ["PatternConsumer"]

MEMBER_BITS = 16
MEMBER = (1 << MEMBER_BITS) - 1


class PatternConsumer:
    """As much of `DurableConsumer` as the application's side uses."""

    looks = False

    def __init__(
        self,
        session: DurableSession,
        destination: str,
        fields: Facts,
        *,
        prefetch: int,
        prefetch_bytes: int,
        answered: bool,
        wake: Callable[[], None],
    ) -> None:
        self.destination = destination
        self.comes_again = bool(fields.get("durable"))
        self.error: Exception | None = None
        self.is_over = False
        self.stopped = False
        self.held: Callable[[], list[int]] = list  # nothing of a pattern is held over a loss
        self._session = session
        self._fields = fields
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._answered = answered
        self._wake = wake
        self._members: list[DurableConsumer] = []  # all there ever were: their places are in the epochs
        self._groups: dict[str, DurableConsumer] = {}  # those that are in use
        self._last = 0  # the member of what was taken last
        self._was_open = False

    # Groups.

    def join(self, groups: Iterable[str]) -> None:
        """Consume in these groups too; those where it does already are left alone."""
        for name in groups:
            if not name and len(self._groups):
                continue
            if self._session.road.is_cluster and "" in self._groups:
                self._groups[self._session.road.first.name] = self._groups.pop("")
            if name not in self._groups and self.error is None and not self.is_over:
                self._add(name)

    def _add(self, name: str) -> None:
        member = DurableConsumer(
            part := self._session.part(name),
            self.destination,
            self._fields,
            prefetch=self._prefetch,
            prefetch_bytes=self._prefetch_bytes,
            answered=self._answered,
            one_by_one=False,
            wake=self._woken,
        )
        member.stopped = self.stopped
        self._groups[name] = member
        self._members.append(member)
        part.add_consumer(member)

    def _woken(self) -> None:
        for member in self._groups.values():
            if member.error is not None and self.error is None and not self._comes_back(member):
                self.fail(member.error)
                return
        self._wake()

    def _comes_back(self, member: DurableConsumer) -> bool:
        """A group that stayed away too long is asked again; what the others have goes on meanwhile (CLU-174)."""
        return isinstance(member.error, NoMessageManager) and self._session.road.is_cluster

    def on_part_over(self, part: Part) -> None:
        for name, member in list(self._groups.items()):
            if member.part is part and member.error is not None and self._comes_back(member):
                del self._groups[name]
                self._add(name)

    @property
    def _all(self) -> list[DurableConsumer]:
        return list(self._groups.values())

    # Its state.

    @property
    def is_open(self) -> bool:
        """In every group there is, or once was."""
        self._was_open = self._was_open or all(member.is_open for member in self._groups.values())
        return self._was_open

    @property
    def handle(self) -> int:
        return next((member.handle for member in self._groups.values() if member.handle), 0)

    @property
    def epoch(self) -> int:
        return self._members[self._last].epoch << MEMBER_BITS | self._last

    @property
    def source(self) -> DurableConsumer:
        return self._members[self._last]

    @property
    def buffer(self) -> bool:
        """Is there anything to take?"""
        return any(member.buffer for member in self._groups.values())

    @property
    def caught_up(self) -> bool:
        return False

    @property
    def is_out_of_credit(self) -> bool:
        return False

    @property
    def is_settled(self) -> bool:
        return all(member.is_settled for member in self._groups.values())

    @property
    def stale(self) -> int:
        return sum(member.stale for member in self._members)

    def has_lost(self, epoch: int) -> bool:
        return self._of(epoch).has_lost(epoch >> MEMBER_BITS)

    def _of(self, epoch: int) -> DurableConsumer:
        return self._members[epoch & MEMBER]

    # What the application does.

    def name_of(self, message: Delivered) -> str:
        names = (member.name_of(message) for member in self._groups.values())
        return next((name for name in names if name != self.destination), self.destination)

    def asked(self) -> None:
        for member in self._groups.values():
            member.asked()

    def take(self, limit: int) -> list[Delivered]:
        """Of one group at a time, each in its turn."""
        for member in self._in_turn():
            taken = member.take(limit)
            if taken:
                self._last = self._members.index(member)
                return taken
        return []

    def _in_turn(self) -> list[DurableConsumer]:
        members = self._all
        last = self._members[self._last]
        at = members.index(last) + 1 if last in members else 0
        return [*members[at:], *members[:at]]

    def put_back(self, messages: list[Delivered], epoch: int) -> None:
        self._of(epoch).put_back(messages, epoch >> MEMBER_BITS)

    def acknowledge(self, message: Delivered, epoch: int) -> None:
        self._of(epoch).acknowledge(message, epoch >> MEMBER_BITS)

    def settle(self, message: Delivered, action: int, delay_ms: int, epoch: int) -> None:
        self._of(epoch).settle(message, action, delay_ms, epoch >> MEMBER_BITS)

    def ask_settled(self, message: Delivered, epoch: int, told: Told) -> None:
        self._of(epoch).ask_settled(message, epoch >> MEMBER_BITS, told)

    def release_unseen(self) -> None:
        for member in self._groups.values():
            member.release_unseen()

    def download(self, message: Delivered, epoch: int, wake: Callable[[], None]) -> Download:
        return self._of(epoch).download(message, epoch >> MEMBER_BITS, wake)

    def flush(self) -> None:
        for member in self._groups.values():
            member.flush()

    def flow(self, stop: bool, reply: Reply) -> None:
        self.stopped = stop
        members = self._all
        told = all_told(members, reply)
        for member in members:
            member.flow(stop, told)

    # Its end.

    def end(self, reply: Reply) -> None:
        members = self._all
        told = all_told(members, reply)
        for member in members:
            member.end(told)

    def over(self) -> None:
        self.is_over = True
        self._forget(None)

    def fail(self, error: Exception) -> None:
        if self.error is None and not self.is_over:
            self.error = error
        self._forget(error)

    def _forget(self, error: Exception | None) -> None:
        if self in self._session.patterns:
            self._session.patterns.remove(self)
        for member in self._all:
            if error is None:
                member.over()
            else:
                member.fail(error if isinstance(error, FairleadError) else FairleadError(str(error)))
        self._wake()
