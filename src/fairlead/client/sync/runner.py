"""A thread that runs an event loop, and the way to have something done on it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from fairlead.errors import ConnectionLost, LocalProtocolError

__all__ = ["Runner"]

T = TypeVar("T")


class Runner:
    """Ends with `stop`; as a daemon thread it never keeps a program alive."""

    def __init__(self) -> None:
        self.loop = self._new_loop()
        self._soon: deque[Callable[[], object]] = deque()
        self._thread = threading.Thread(target=self.loop.run_forever, name="fairlead", daemon=True)
        self._thread.start()

    @staticmethod
    def _new_loop() -> asyncio.AbstractEventLoop:
        try:
            import uvloop
        except ImportError:
            return asyncio.new_event_loop()
        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine; an interrupt (Ctrl-C) gives it up."""
        if threading.current_thread() is self._thread:
            work.close()
            raise LocalProtocolError("A synchronous call on the connection's own thread would wait for itself.")
        if not self._thread.is_alive() or self.loop.is_closed():
            work.close()
            raise ConnectionLost("The connection is closed.")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError:
            raise ConnectionLost("The connection was closed meanwhile.") from None
        except BaseException:
            future.cancel()
            raise

    def end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop, when what closes its work has been waited for; said again, it is over already."""
        if not self.loop.is_closed():
            try:
                self.run(close())
            finally:
                self.stop()

    def call(self, function: Callable[[], T]) -> T:
        """Wait for a plain call on the loop's thread."""

        async def work() -> T:
            return function()

        return self.run(work())

    def soon(self, function: Callable[[], object]) -> None:
        """Have something done on the loop's thread without waiting; what is said together is done together."""
        if not self._thread.is_alive() or self.loop.is_closed():
            raise ConnectionLost("The connection is closed.")
        self._soon.append(function)
        if len(self._soon) == 1:
            self.loop.call_soon_threadsafe(self._do_soon)

    def _do_soon(self) -> None:
        while self._soon:
            function = self._soon[0]
            try:
                function()
            finally:
                self._soon.popleft()

    def stop(self) -> None:
        if self._thread.is_alive() and not self.loop.is_closed():
            self.run(self._wind_up())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5)
            self.loop.close()

    async def _wind_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
