"""Spans of what a program sends and receives, for OpenTelemetry (docs/tracing.md).

The names, kinds and attributes are those of OpenTelemetry's conventions for messaging. Nothing of OpenTelemetry is
imported, and nothing called for a message, unless the program uses it: its connections have a `Tracing`, others None.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from fairlead.client.aio.spanned import Spanned, Working
from fairlead.errors import BadParameter, ConfigError
from fairlead.wire.trace_context import TRACEPARENT, TraceContext

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

__all__ = ["Switch", "Traceable", "Tracing", "opened", "process"]

Switch: TypeAlias = "bool | Literal['auto'] | TracerProvider"
"""What `connect(tracing=…)` takes."""
LINKS_MAX: Final = 128
"""Messages of a batch that a span names; OpenTelemetry keeps no more by default."""
NAMES_MAX: Final = 1000
"""Destinations whose attributes are kept ready."""
SYSTEM: Final = "fairlead"


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
        from opentelemetry import context, trace

        from fairlead import __version__

        self._api = trace
        self.attach, self.detach, self.in_context = context.attach, context.detach, trace.set_span_in_context
        self._tracer = trace.get_tracer("fairlead", __version__, provider)
        self._kinds: dict[str, SpanKind] = {
            "send": trace.SpanKind.PRODUCER,
            "process": trace.SpanKind.CONSUMER,
        }
        self._ready: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {}

    # Sending.

    def sending(
        self, name: str, destination: str, size: int = -1, given: Mapping[str, object] | None = None, count: int = 0
    ) -> Spanned:
        """A span of sending a message of so many bytes, or `count` of them; -1 bytes: nobody knows.

        Its context is that of the messages, unless they are `given` one.
        """
        own = None if given is None or TRACEPARENT not in given else TraceContext.of(given)
        more = {} if size < 0 else {"messaging.message.body.size": size}
        if count:
            more["messaging.batch.message_count"] = count
        if own is None:
            made = self._start(name, "send", destination, more=more)
        else:
            made = self._start(name, "send", destination, links=(self._link(own),), kind="client", more=more)
        return Spanned(made, marks=given is None or TRACEPARENT not in given)

    def asking(self, name: str, destination: str) -> Spanned:
        """A span of a request, which ends with the answer."""
        return Spanned(self._start(name, "send", destination, kind="client"))

    # Receiving.

    def processing(self, message: Traceable) -> Working:
        """The span of working on one message: the current one as long as the block lasts."""
        destination, attributes = message.span_facts()
        asked = hasattr(message, "reply") or getattr(message, "wants_answer", False)
        name, kind = ("respond", "server") if asked else ("process", None)
        return Working(self, self._consumed(name, "process", destination, message.trace, attributes, kind))

    def processing_many(self, messages: Collection[Any], destination: str) -> Working:
        """The span of working on several at once, with a link to each."""
        more = {"messaging.batch.message_count": len(messages)}
        return Working(self, self._start("process", "process", destination, links=self._links(messages), more=more))

    def serving(self, message: Traceable) -> Spanned:
        """The span of answering one request, a child of the requester's."""
        destination, attributes = message.span_facts()
        asked = getattr(message, "wants_answer", True)  # what came for an application may be a call, or not
        name, kind = ("respond", "server") if asked else ("process", None)
        return Spanned(self._consumed(name, "process", destination, message.trace, attributes, kind))

    def received(self, messages: list[Any], destination: str, started_ns: int) -> None:
        """Messages were asked for, and came."""
        if not self._is_unsampled():
            more: dict[str, Any] = {"messaging.batch.message_count": len(messages)}
            if len(messages) == 1:
                _, more = messages[0].span_facts()
            links = self._links(messages)
            self._start("receive", "receive", destination, links=links, more=more, started_ns=started_ns).end()

    def settling(self, name: str, destination: str, messages: list[Any]) -> Spanned | None:
        """One or several are acknowledged, given back or rejected; None: that is not to be recorded."""
        if self._is_unsampled():
            return None
        more: dict[str, Any] = {"messaging.batch.message_count": len(messages)}
        if len(messages) == 1:
            more = {"messaging.message.id": messages[0].id}
        return Spanned(self._start(name, "settle", destination, links=self._links(messages), more=more))

    def committing(self, name: str) -> Spanned:
        """A transaction ends."""
        return Spanned(self._start(name, "settle", ""))

    # Inside.

    def use(self, span: Span) -> Any:
        """A block in which it is the current one."""
        return self._api.use_span(span)

    def _is_unsampled(self) -> bool:
        """Is this part of a trace that nobody records? Then what carries no context to anybody needs no span."""
        context = self._api.get_current_span().get_span_context()
        return context.is_valid and not context.trace_flags.sampled

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

    def _links(self, messages: Collection[Any]) -> list[Link]:
        """To the span that made each of them; which one it is, a link says only among several."""
        found: list[Link] = []
        several = len(messages) > 1
        for message in messages:
            made: TraceContext | None = message.trace
            if made is not None and len(found) < LINKS_MAX:
                named = several and hasattr(message, "id")
                found.append(self._link(made, {"messaging.message.id": message.id} if named else None))
        return found

    def _link(self, made: TraceContext, attributes: dict[str, Any] | None = None) -> Link:
        api = self._api
        state = api.TraceState.from_header([made.state]) if made.state else None
        flags = api.TraceFlags(api.TraceFlags.SAMPLED if made.sampled else api.TraceFlags.DEFAULT)
        link: Link = api.Link(
            api.SpanContext(int(made.trace_id, 16), int(made.span_id, 16), True, flags, state), attributes
        )
        return link
