"""Spans under way: of something that is sent, asked or settled (`Spanned`), and of work on a message (`Working`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from fairlead.client.durable.content import Content
from fairlead.errors import FairleadError
from fairlead.wire.kinds import HEADER_BYTES_MAX
from fairlead.wire.trace_context import TraceContext, header_section, property_section

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from fairlead.client.aio.tracing import Tracing
    from fairlead.client.durable.receipt import Receipt

__all__ = ["Spanned", "Working"]

HEADERS_LEFT = HEADER_BYTES_MAX - 4096
"""The context, the topic and the sender's name have to fit beside the headers an application sets."""
TEXT_MAX = 256
"""Characters of what an error says, in the status of its span."""

_new: Any = tuple.__new__


class Spanned:
    """A span under way. As a block it ends with it, and says what was raised."""

    __slots__ = ("_parent", "_state", "marks", "span")

    def __init__(self, span: Span, *, marks: bool = True) -> None:
        self.span = span
        context = span.get_span_context()
        self.marks = marks and context.is_valid
        """Does what is sent get its context from here?"""
        self._parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        self._state = context.trace_state.to_header() if context.trace_state else ""

    def content(self, like: Content, size: int) -> Content:
        """A stored message like this, of at most so many bytes, made by this span.

        One that leaves no room for the context goes without it: nothing that can be sent becomes too large by this.
        """
        if not self.marks:
            return like
        section = property_section(self._parent, self._state)
        made: Content = _new(Content, (like.headers + section, *like[1:-1], like.overhead + len(section)))
        return made if made.fits(size) and len(made.headers) <= HEADER_BYTES_MAX else like

    def section(self, headers: bytes) -> bytes:
        """The headers of a message that is not stored, made by this span."""
        return headers + header_section(self._parent, self._state) if self.marks and _is_short(headers) else headers

    def headers(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The same for headers that are not bytes yet."""
        if not self.marks or (given and not _is_short(*given, *given.values())):
            return dict(given or {})
        return {**self.context.headers(), **(given or {})}

    @property
    def context(self) -> TraceContext:
        context = self.span.get_span_context()
        return TraceContext(self._parent[3:35], self._parent[36:52], context.trace_flags.sampled, self._state)

    def answered(self, asked_bytes: int, answer_bytes: int) -> None:
        if self.span.is_recording():
            self.span.set_attribute("messaging.message.body.size", asked_bytes)
            self.span.set_attribute("messaging.fairlead.reply.body.size", answer_bytes)

    def stored(self, receipt: Receipt) -> None:
        if self.span.is_recording() and receipt.id_base:
            self.span.set_attribute("messaging.message.id", receipt.id)

    def failed(self, error: BaseException) -> None:
        fail(self.span, error)

    def end(self, error: BaseException | None = None) -> None:
        if error is not None and isinstance(error, Exception):
            fail(self.span, error)
        self.span.end()

    def ended(self, future: Any) -> None:
        """For a future of a receipt: the span ends when it is there."""
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            self.stored(future.result())
        self.end(error)

    def settled(self, future: Any) -> None:
        """For a future of a settlement."""
        self.end(None if future.cancelled() else future.exception())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)


class Working:
    """A block of work: its span is the current one, ends with it, and says what was raised."""

    __slots__ = ("_token", "_tracing", "span")

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self.span = span

    def __enter__(self) -> Span:
        self._token = self._tracing.attach(self._tracing.in_context(self.span))
        return self.span

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self._tracing.detach(self._token)
        if isinstance(error, Exception):
            self.span.record_exception(error)
            fail(self.span, error)
        self.span.end()


def _is_short(*parts: Any) -> bool:
    """Is there room for a context beside these, in a frame's headers?"""
    return sum(len(part) for part in parts if isinstance(part, (bytes, str))) <= HEADERS_LEFT


def fail(span: Span, error: BaseException) -> None:
    """What it was for did not succeed."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error.code if isinstance(error, FairleadError) else type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)[:TEXT_MAX]))
