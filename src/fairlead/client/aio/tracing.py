"""Spans of what a program sends and receives, for OpenTelemetry (docs/tracing.md).

The names, kinds and attributes are those of OpenTelemetry's conventions for messaging. Nothing of OpenTelemetry is
imported, and nothing called for a message, unless the program uses it: its connections have a `Tracing`, others None.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias

from fairlead.client.durable.content import Content
from fairlead.errors import BadParameter, ConfigError, FairleadError
from fairlead.wire.trace_context import TRACEPARENT, TraceContext, header_section, property_section

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

    from fairlead.client.durable.receipt import Receipt

__all__ = ["Spanned", "Switch", "Traceable", "Tracing", "opened", "process"]

Switch: TypeAlias = "bool | Literal['auto'] | TracerProvider"
"""What `connect(tracing=…)` takes."""
LINKS_MAX: Final = 128
"""Messages of a batch that a span names; OpenTelemetry keeps no more by default."""
NAMES_MAX: Final = 1000
"""Destinations whose attributes are kept ready."""
SYSTEM: Final = "fairlead"

_new: Any = tuple.__new__


class Traceable(Protocol):
    """Whatever was received."""

    @property
    def trace(self) -> TraceContext | None: ...

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        """Its destination, and attributes of a span about it."""


def opened(switch: Switch) -> Tracing | None:
    """The spans of a connection; None if there are to be none.

    With "auto" there are some if the program has set a tracer provider. Who has not even imported OpenTelemetry has set
    none: that is found out without importing it.
    """
    if switch is False:
        return None
    if switch == "auto":
        module = sys.modules.get("opentelemetry.trace")
        provider = None if module is None else module.get_tracer_provider()
        if module is None or isinstance(provider, (module.ProxyTracerProvider, module.NoOpTracerProvider)):
            return None
        return Tracing()
    if switch is not True:
        if not hasattr(switch, "get_tracer"):
            raise BadParameter(f"`tracing` is 'auto', True, False or a tracer provider, and not {switch!r}.")
        return Tracing(switch)
    try:
        import opentelemetry.trace  # noqa: F401 - only to say what is missing
    except ImportError:
        raise ConfigError("Tracing needs OpenTelemetry: pip install 'fairlead[tracing]'.") from None
    return Tracing()


@contextmanager
def process(message: Traceable | Collection[Traceable], *, tracing: Switch = "auto") -> Iterator[None]:
    """Work on what was received: its span is the current one as long as the block lasts; nothing is settled.

    For messages of all kinds, one or several (which are linked to the span). The span of a request is the server's.
    """
    made = opened(tracing)
    if made is None:
        yield
    elif isinstance(message, Collection):
        destination = next((one.span_facts()[0] for one in message), "")
        with made.processing_many(message, destination):
            yield
    else:
        with made.processing(message):
            yield


class Tracing:
    """What makes the spans of one connection. Without a `provider` it is the one the program has set."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from opentelemetry import trace

        from fairlead import __version__

        self._api = trace
        self._tracer = trace.get_tracer("fairlead", __version__, provider)
        self._kinds: dict[str, SpanKind] = {
            "send": trace.SpanKind.PRODUCER,
            "process": trace.SpanKind.CONSUMER,
        }
        self._ready: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {}

    # Sending.

    def sending(
        self, name: str, destination: str, given: Mapping[str, object] | None = None, count: int = 0
    ) -> Spanned:
        """A span of sending, as yet of nothing. Its context is that of the messages, unless they are `given` one."""
        own = None if given is None or TRACEPARENT not in given else TraceContext.of(given)
        links = () if own is None else (self._link(own),)
        made = self._start(name, "send", destination, links=links, kind=None if own is None else "client")
        if count:
            made.set_attribute("messaging.batch.message_count", count)
        return Spanned(self, made, marks=given is None or TRACEPARENT not in given)

    def asking(self, name: str, destination: str) -> Spanned:
        """A span of a request, which ends with the answer."""
        return Spanned(self, self._start(name, "send", destination, kind="client"))

    # Receiving.

    @contextmanager
    def processing(self, message: Traceable) -> Iterator[Span]:
        """The span of working on one message: the current one as long as the block lasts."""
        destination, attributes = message.span_facts()
        asked = hasattr(message, "reply") or getattr(message, "wants_answer", False)
        name, kind = ("respond", "server") if asked else ("process", None)
        span = self._consumed(name, "process", destination, message.trace, attributes, kind)
        with self._api.use_span(span, end_on_exit=True, record_exception=True, set_status_on_exception=True):
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", _error_type(error))
                raise

    @contextmanager
    def processing_many(self, messages: Collection[Any], destination: str) -> Iterator[Span]:
        """The span of working on several at once, with a link to each."""
        links = self._links(messages)
        span = self._start("process", "process", destination, links=links)
        span.set_attribute("messaging.batch.message_count", len(messages))
        with self._api.use_span(span, end_on_exit=True, record_exception=True, set_status_on_exception=True):
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", _error_type(error))
                raise

    def serving(self, message: Traceable) -> Spanned:
        """The span of answering one request, a child of the requester's."""
        destination, attributes = message.span_facts()
        asked = getattr(message, "wants_answer", True)  # what came for an application may be a call, or not
        name, kind = ("respond", "server") if asked else ("process", None)
        return Spanned(self, self._consumed(name, "process", destination, message.trace, attributes, kind))

    def received(self, messages: list[Any], destination: str, started_ns: int) -> None:
        """Messages were asked for, and came."""
        span = self._start("receive", "receive", destination, links=self._links(messages), started_ns=started_ns)
        if len(messages) != 1:
            span.set_attribute("messaging.batch.message_count", len(messages))
        else:
            span.set_attributes(messages[0].span_facts()[1])
        span.end()

    def settling(self, name: str, destination: str, messages: list[Any]) -> Spanned:
        """One or several are acknowledged, given back or rejected."""
        span = self._start(name, "settle", destination, links=self._links(messages))
        if len(messages) == 1:
            span.set_attribute("messaging.message.id", messages[0].id)
        else:
            span.set_attribute("messaging.batch.message_count", len(messages))
        return Spanned(self, span)

    def committing(self, name: str) -> Spanned:
        """A transaction ends."""
        return Spanned(self, self._start(name, "settle", ""))

    # Inside.

    def use(self, span: Span) -> Any:
        """A block in which it is the current one."""
        return self._api.use_span(span)

    def failed(self, span: Span, error: BaseException) -> None:
        span.set_attribute("error.type", _error_type(error))
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, str(error)[:256]))

    def _consumed(
        self,
        name: str,
        operation: str,
        destination: str,
        made: TraceContext | None,
        attributes: dict[str, Any],
        kind: str | None = None,
    ) -> Span:
        """One message: the span that made it is the parent, and linked as well, as the conventions want it."""
        if made is None:
            return self._start(name, operation, destination, kind=kind, more=attributes)
        link = self._link(made)
        parent = self._api.set_span_in_context(self._api.NonRecordingSpan(link.context))
        return self._start(name, operation, destination, links=(link,), context=parent, kind=kind, more=attributes)

    def _start(
        self,
        name: str,
        operation: str,
        destination: str,
        *,
        links: Iterable[Link] = (),
        context: Any = None,
        kind: str | None = None,
        more: dict[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> Span:
        known = self._ready.get((name, operation, destination))
        if known is None:
            known = self._made_ready(name, operation, destination)
        title, attributes = known
        return self._tracer.start_span(
            title,
            context=context,
            kind=self._kind(kind or operation),
            attributes={**attributes, **more} if more else attributes,
            links=tuple(links),
            start_time=started_ns,
        )

    def _kind(self, word: str) -> SpanKind:
        found = self._kinds.get(word)
        if found is None:
            kinds = self._api.SpanKind
            found = self._kinds[word] = kinds.SERVER if word == "server" else kinds.CLIENT
        return found

    def _made_ready(self, name: str, operation: str, destination: str) -> tuple[str, dict[str, Any]]:
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": operation,
        }
        if destination:
            attributes["messaging.destination.name"] = destination
        if len(self._ready) >= NAMES_MAX:
            self._ready.clear()
        made = self._ready[name, operation, destination] = (f"{name} {destination}".rstrip(), attributes)
        return made

    def _links(self, messages: Iterable[Any]) -> list[Link]:
        found: list[Link] = []
        for message in messages:
            made: TraceContext | None = message.trace
            if made is not None and len(found) < LINKS_MAX:
                found.append(self._link(made, {"messaging.message.id": message.id} if hasattr(message, "id") else None))
        return found

    def _link(self, made: TraceContext, attributes: dict[str, Any] | None = None) -> Link:
        api = self._api
        state = api.TraceState.from_header([made.state]) if made.state else None
        flags = api.TraceFlags(api.TraceFlags.SAMPLED if made.sampled else api.TraceFlags.DEFAULT)
        link: Link = api.Link(
            api.SpanContext(int(made.trace_id, 16), int(made.span_id, 16), True, flags, state), attributes
        )
        return link


class Spanned:
    """A span under way. As a block it ends with it, and says what was raised."""

    __slots__ = ("_parent", "_state", "_tracing", "marks", "span")

    def __init__(self, tracing: Tracing, span: Span, *, marks: bool = True) -> None:
        self._tracing = tracing
        self.span = span
        context = span.get_span_context()
        self.marks = marks and context.is_valid
        """Does what is sent get its context from here?"""
        self._parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        self._state = context.trace_state.to_header() if context.trace_state else ""

    def content(self, like: Content, size: int) -> Content:
        """A stored message like this, made by this span."""
        if self.span.is_recording():
            self.span.set_attribute("messaging.message.body.size", size)
        return self.marked(like)

    def marked(self, like: Content) -> Content:
        if not self.marks:
            return like
        section = property_section(self._parent, self._state)
        made: Content = _new(Content, (like.headers + section, *like[1:-1], like.overhead + len(section)))
        return made

    def section(self, headers: bytes, size: int) -> bytes:
        """The headers of a message that is not stored, made by this span."""
        if self.span.is_recording():
            self.span.set_attribute("messaging.message.body.size", size)
        return headers + header_section(self._parent, self._state) if self.marks else headers

    def headers(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The same for headers that are not bytes yet."""
        return {**self.context.headers(), **(given or {})} if self.marks else dict(given or {})

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

    def failed(self, error: Exception) -> None:
        self._tracing.failed(self.span, error)

    def end(self, error: BaseException | None = None) -> None:
        if error is not None and isinstance(error, Exception):
            self._tracing.failed(self.span, error)
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


def _error_type(error: BaseException) -> str:
    return error.code if isinstance(error, FairleadError) else type(error).__qualname__
