"""A tunnel behind an ordinary socket, for clients that wait on descriptors: a thread carries its bytes.

The socket is one end of a pair. Closing it closes the tunnel in the orderly way; when the tunnel ends, it ends.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from concurrent.futures import Future
from typing import cast

from fairlead.tunnel.edge.dial import open_pump
from fairlead.tunnel.edge.transport import TunnelTransport
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.place import Place

__all__ = ["plug"]

HIGH_BYTES = 1 << 20
FAREWELL_S = 5.0


def plug(place: Place, options: TunnelOptions, *, timeout_s: float, tls: ssl.SSLContext | None = None) -> socket.socket:
    """The socket, when both ends may send; or the reason why there is none."""
    ours, theirs = socket.socketpair()
    opened: Future[None] = Future()

    def run() -> None:
        try:
            asyncio.run(_carry(place, options, timeout_s, tls, theirs, opened))
        except BaseException as error:
            theirs.close()
            if not opened.done():
                opened.set_exception(error)

    threading.Thread(target=run, name="fairlead-tunnel", daemon=True).start()
    try:
        opened.result()
    except BaseException:
        ours.close()
        raise
    return ours


class Side(asyncio.Protocol):
    """One of the two; `other` is where its bytes go."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.other: asyncio.Transport
        self.gone: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        self.other.pause_reading()

    def resume_writing(self) -> None:
        self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.other.close()
        if not self.gone.done():
            self.gone.set_result(None)


async def _carry(
    place: Place,
    options: TunnelOptions,
    timeout_s: float,
    tls: ssl.SSLContext | None,
    theirs: socket.socket,
    opened: Future[None],
) -> None:
    loop = asyncio.get_running_loop()
    pump = await open_pump(place, options, timeout_s=timeout_s, tls=tls)
    near, far = Side(loop), Side(loop)
    theirs.setblocking(False)
    far.other, _ = await loop.connect_accepted_socket(lambda: near, theirs)
    near.other = TunnelTransport(pump, far)
    opened.set_result(None)
    await near.gone
    await asyncio.wait([far.gone], timeout=options.rules.linger_s)
    pump.stop()
    # The last word may be under way; all that still runs on this loop is the driver.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=FAREWELL_S)
