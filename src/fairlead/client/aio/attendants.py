"""The tasks of a program that talks with many: one conversation that goes wrong is one conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.errors import FairleadError

__all__ = ["Attendants"]


class Attendants:
    """`say(level, text)` hears of what failed by our own fault; that the other side is gone is nothing to speak of."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._watched(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is left and wait for its end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except FairleadError:
            pass  # the other side is gone
        except Exception as error:
            self._say("error", f"a conversation failed: {type(error).__name__}: {error}")
