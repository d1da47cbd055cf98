"""Traces through messages: what programs use beside `connect(tracing=…)` (docs/tracing.md).

::

    async for message in subscription:
        with fairlead.tracing.process(message):
            ...  # what is sent here belongs to the trace of the message
"""

from __future__ import annotations

from fairlead.client.aio.tracing import process
from fairlead.wire.trace_context import TraceContext

__all__ = ["TraceContext", "process"]
