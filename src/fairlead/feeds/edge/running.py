"""An adapter as a process: its loop, its signals, its descriptors."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead.feeds.edge.adapter_program import AdapterProgram
from fairlead.feeds.settings import FeedSettings

__all__ = ["loop_factory", "run"]

FILES_BESIDES: Final = 256
"""Descriptors for links, sources and the rest."""


def run(settings: FeedSettings, *, ready: Callable[[str], None], faults: Path | None = None) -> None:
    """An adapter until SIGTERM or SIGINT."""

    async def work() -> None:
        program = AdapterProgram(settings, faults=faults)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, program.stop)
        await program.run(ready)

    allow_files(settings.listen.lines_max + settings.listen.waiting_max + FILES_BESIDES)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())


def allow_files(wanted: int) -> None:
    """As many descriptors as lines may need, if the host lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: it sends without copying."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
