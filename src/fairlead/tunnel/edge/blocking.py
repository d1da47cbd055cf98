"""A tunnel for programs with threads: a socket-like object, the loop in a thread behind it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from fairlead.client.sync.runner import Runner
from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.pump import TunnelStatus
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.rules import Option

__all__ = ["TunnelSocket"]

FAREWELL_S = 5.0


class TunnelSocket:
    """Several threads may use it at once: one that reads, one that writes. Made by `open`."""

    def __init__(self, runner: Runner, stream: TunnelStream) -> None:
        self._runner = runner
        self._stream = stream
        self._timeout_s: float | None = None
        self._closed = False

    @classmethod
    def open(
        cls, url: str, options: TunnelOptions | None = None, *, timeout_s: float = 10.0, allow_udp: bool = False
    ) -> Self:
        runner = Runner()
        try:
            return cls(runner, runner.run(open_stream(url, options, timeout_s=timeout_s, allow_udp=allow_udp)))
        except BaseException:
            runner.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        self.close()

    def settimeout(self, timeout_s: float | None) -> None:
        """For each `recv`, `sendall` and `flush` from now on; RequestTimeout, a TimeoutError, when it passes."""
        self._timeout_s = timeout_s

    def recv(self, limit: int) -> bytes:
        """What is there, up to `limit` bytes; waits for the first. Empty after an orderly close of the other end."""
        return self._runner.run(self._stream.read(limit, self._timeout_s))

    def sendall(self, data: bytes) -> None:
        self._runner.run(self._stream.write(data, self._timeout_s))

    def flush(self) -> None:
        """Waits until the other end has acknowledged everything."""
        self._runner.run(self._stream.flush(self._timeout_s))

    def shutdown(self) -> None:
        """Nothing more will be sent; reading goes on."""
        self._runner.call(self._stream.write_eof)

    def close(self) -> None:
        """Orderly, and waits for it; after that the tunnel is forgotten."""
        if not self._closed:
            self._closed = True
            try:
                self._runner.run(self._finish())
            finally:
                self._runner.stop()

    async def _finish(self) -> None:
        await self._stream.close()
        self._stream.release()
        # The last ACK may be under way; all that still runs on this loop is its driver.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=FAREWELL_S)

    def abort(self) -> None:
        self._runner.call(self._stream.abort)

    def set_option(self, option: Option, value: int) -> None:
        self._runner.call(lambda: self._stream.set_option(option, value))

    def status(self) -> TunnelStatus:
        return self._runner.call(self._stream.status)
