"""Spans as tests look at them: a tracer provider that keeps what was recorded, and who is whose parent."""

from __future__ import annotations

import asyncio

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Tracer:
    """A tracer provider that keeps what was recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def named(self, start: str) -> list[ReadableSpan]:
        """Those whose names begin so."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found

    async def wait_for(self, name: str, count: int = 1) -> list[ReadableSpan]:
        async with asyncio.timeout(30):
            while len(self.spans(name)) < count:
                await asyncio.sleep(0.01)
        return self.spans(name)


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    ours, theirs = child.context, parent.context
    assert ours is not None
    assert theirs is not None
    return child.parent is not None and (ours.trace_id, child.parent.span_id) == (theirs.trace_id, theirs.span_id)


def is_linked(span: ReadableSpan, other: ReadableSpan) -> bool:
    assert other.context is not None
    return other.context.span_id in [link.context.span_id for link in span.links]
