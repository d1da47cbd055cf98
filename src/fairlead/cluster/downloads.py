"""Very large messages on their way out: as far as readers have asked, many at a time (CLU-93…95, CLU-100).

Each has at most one piece under way, read by a thread of the pool, so that they take turns; a reader that is slow or
stops asking costs nothing. While it is being read a side file stays, even if the message was acknowledged meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from fairlead.cluster.parties import Consumer
from fairlead.errors import TransferFailed
from fairlead.wire.durable import KIND_DATA
from fairlead.wire.kinds import FLAG_LAST

if TYPE_CHECKING:
    from fairlead.cluster.host import Host

PATIENCE_MS: Final = 5  # until the next try when a link has no room


class Reader(Protocol):
    """Reads side files, in a thread."""

    def read(self, number: int, offset: int, size: int) -> bytes: ...
    def length(self, number: int) -> int: ...


@dataclass(slots=True, eq=False)
class Download:
    consumer: Consumer
    order: int
    file: int
    length: int = -1  # not known yet
    sent: int = 0
    up_to: int = 0
    busy: bool = False
    over: bool = False


class Downloads:
    """All that are under way."""

    def __init__(self, core: Host, files: Reader, let_go: Callable[[int], None]) -> None:
        self._core = core
        self._files = files
        self._let_go = let_go
        self._open: dict[tuple[Consumer, int], Download] = {}
        self._readers: dict[int, int] = {}  # side file -> downloads

    def __len__(self) -> int:
        return len(self._open)

    def reads(self, file: int) -> bool:
        """Is this side file being read?"""
        return file in self._readers

    def on_pull(self, consumer: Consumer, order: int, up_to: int, stop: bool) -> None:
        """The reader wants everything up to that offset, or nothing more."""
        one = self._open.get((consumer, order))
        if stop:
            if one is not None:
                self._close(one)
            return
        if one is None:
            self._core.post(consumer.destination, lambda: self._begin(consumer, order, up_to))
            return
        one.up_to = max(one.up_to, up_to if one.length < 0 else min(up_to, one.length))
        self._go_on(one)

    def _begin(self, consumer: Consumer, order: int, up_to: int) -> None:
        if (consumer, order) in self._open or consumer.session.consumers.get(consumer.handle) is not consumer:
            return
        file = consumer.destination.large.get(order)
        if file is None:
            self._refuse(consumer, order, f"Message {order} is not here any more, or is not a very large one.")
            return
        one = self._open[consumer, order] = Download(consumer, order, file, busy=True)
        self._readers[file] = self._readers.get(file, 0) + 1
        self._core.work(lambda: self._files.length(file), lambda length: self._measured(one, length, up_to))

    def _measured(self, one: Download, length: Any, up_to: int) -> None:
        one.busy = False
        if isinstance(length, Exception):
            self._lost(one, length)
            return
        one.length = length
        one.up_to = min(max(up_to, one.up_to), length)
        self._go_on(one)

    def _lost(self, one: Download, why: object) -> None:
        text = f"A very large message cannot be read: {why!r}"
        self._core.event("error", "large-lost", text, file=one.file, destination=one.consumer.destination.name)
        self._refuse(one.consumer, one.order, "The message cannot be read from disk; the server's log says more.")
        self._close(one)

    def _refuse(self, consumer: Consumer, order: int, text: str) -> None:
        self._core.notice(
            consumer.session,
            event="refused",
            consumer=consumer.handle,
            order=order,
            code=TransferFailed.code,
            text=text,
        )

    def _go_on(self, one: Download) -> None:
        if one.busy or one.over:
            return
        if one.consumer.session.line is None or one.consumer.handle not in one.consumer.session.consumers:
            self._close(one)
            return
        size = min(self._core.settings.fragment_bytes, one.up_to - one.sent)
        if size > 0 or one.length == 0:
            one.busy = True
            offset = one.sent
            self._core.work(lambda: self._files.read(one.file, offset, size), lambda piece: self._read(one, piece))

    def _read(self, one: Download, piece: Any) -> None:
        if isinstance(piece, Exception) or (not piece and one.length):
            self._lost(one, piece)
            return
        line = one.consumer.session.line
        if one.over or line is None:
            self._close(one)
            return
        is_last = one.sent + len(piece) >= one.length
        went = self._core.send(
            line,
            KIND_DATA,
            number=one.consumer.handle,
            correlation=one.order,
            peer=one.sent,
            flags=FLAG_LAST if is_last else 0,
            body=piece,
        )
        if not went:
            self._core.call_at(self._core.now_ms + PATIENCE_MS, lambda: self._read(one, piece))
            return
        one.busy = False
        one.sent += len(piece)
        if is_last:
            self._close(one)
        else:
            self._go_on(one)

    def _close(self, one: Download) -> None:
        if one.over:
            return
        one.over = True
        self._open.pop((one.consumer, one.order), None)
        left = self._readers.get(one.file, 1) - 1
        if left:
            self._readers[one.file] = left
        else:
            self._readers.pop(one.file, None)
            self._let_go(one.file)

    def drop(self, consumer: Consumer) -> None:
        """The consumer is over."""
        for one in [one for one in self._open.values() if one.consumer is consumer]:
            self._close(one)
