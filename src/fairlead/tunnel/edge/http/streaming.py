"""The WebSocket of a tunnel: tried after it is open, used once a PING came back, left at the first doubt (TUN-39).

Whether it is refused, falls silent or is cut, pushes and pulls go on with the same tunnel. It is tried again later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from fairlead.tunnel.edge.http.dialling import Way
from fairlead.tunnel.packets import Body, Kind, encode
from fairlead.tunnel.policy import StreamPauses
from fairlead.tunnel.rules import BODY_MAX

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ["Stream", "Streaming"]

logger = logging.getLogger("fairlead.tunnel")
quiet = logging.getLogger("fairlead.tunnel.websocket")
quiet.setLevel(logging.WARNING)  # else a program that logs everything would log the token

FRAME_MAX = 2 * BODY_MAX
ROOM = 256 << 10  # of a frame: large enough to be cheap, small enough to be on its way soon
Take: TypeAlias = Callable[[bytes], Body]
Use: TypeAlias = "Callable[[Stream | None], None]"


class Streaming:
    """Keeps trying, with growing pauses. The times are those of PING: how often when idle, and when it is over."""

    def __init__(
        self,
        way: Way,
        connection_id: int,
        version: int,
        *,
        open_s: float = 10.0,
        trial_s: float = 5.0,
        ping_s: float = 5.0,
        silence_s: float = 15.0,
        pauses: StreamPauses | None = None,
    ) -> None:
        self._way = way
        self._id = connection_id
        self._open_s = open_s
        self._trial_s = trial_s
        self._ping = encode(Kind.PING, connection_id, version=version)
        self._ping_s = ping_s
        self._silence_s = silence_s
        self._pauses = pauses or StreamPauses(random.random)

    async def keep(self, take: Take, use: Use, trying: Callable[[bool], None]) -> None:
        """`take` gets every frame, `use` is told what stream there is, `trying` brackets every try; until cancelled."""
        while True:
            worked_s = await self._one(take, use, trying)
            await asyncio.sleep(self._pauses.next_s(worked_s))

    async def _one(self, take: Take, use: Use, trying: Callable[[bool], None]) -> float:
        """How long it was in use."""
        from websockets.exceptions import WebSocketException

        loop = asyncio.get_running_loop()
        socket, stream, since_s = None, None, 0.0
        trying(True)
        try:
            socket = await self._dial()
            stream = Stream(socket, self._ping, self._ping_s, self._silence_s)
            await stream.prove(take, self._trial_s)
            since_s = loop.time()
            use(stream)
            trying(False)
            logger.debug("The tunnel %d to %s goes by WebSocket.", self._id, self._way.place)
            await stream.carry(take)
        except (OSError, EOFError, ValueError, WebSocketException) as error:
            logger.debug("The tunnel %d to %s has no WebSocket: %s", self._id, self._way.place, error)
        finally:
            if stream is not None:
                stream.end()
            if since_s:
                use(None)
            trying(False)
            if socket is not None:
                socket.transport.abort()
                await asyncio.wait([asyncio.ensure_future(socket.wait_closed())], timeout=1.0)
        return loop.time() - since_s if since_s else 0.0

    async def _dial(self) -> ClientConnection:
        from websockets.asyncio.client import connect

        place, proxy, known, tls, cookies, headers = self._way
        login = ""
        if proxy is not None and proxy.user is not None and known is not None and known.is_basic:
            login = f"{quote(proxy.user, safe='')}:{quote(proxy.password, safe='')}@"
        said = {**headers, "Cache-Control": "no-store"} | ({"Cookie": cookies.header} if cookies.header else {})
        more: dict[str, Any] = {} if tls is None else {"ssl": tls}
        uri = f"ws{place.origin.removeprefix('http')}{place.path}?{place.query('stream', self._id)}"
        return await connect(
            uri,
            additional_headers=said,
            user_agent_header=None,
            proxy=None if proxy is None else f"http://{login}{proxy.authority}",
            compression=None,
            open_timeout=self._open_s,
            ping_interval=None,
            close_timeout=1.0,
            max_size=FRAME_MAX,
            write_limit=BODY_MAX,
            logger=quiet,
            **more,
        )


class Stream:
    """One WebSocket."""

    def __init__(self, socket: ClientConnection, ping: bytes, ping_s: float, silence_s: float) -> None:
        self._socket = socket
        self._ping = ping
        self._ping_s = ping_s
        self._silence_s = silence_s
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._wanted = asyncio.Event()
        self._writing = False
        self._heard_s = asyncio.get_running_loop().time()
        self.on_room: Callable[[], None] = lambda: None
        self.ended = asyncio.Event()

    def room(self) -> int:
        return 0 if self._writing or self.ended.is_set() else max(ROOM - self._out_bytes, 0)

    def send(self, packets: list[bytes]) -> None:
        self._out += packets
        self._out_bytes += sum(map(len, packets))
        self._wanted.set()

    def end(self) -> None:
        self.ended.set()

    async def prove(self, take: Take, trial_s: float) -> None:
        """Does anything come back? There are proxies that let the upgrade through and no frame."""
        async with asyncio.timeout(trial_s):
            await self._socket.send(self._ping)
            self._on_frame(await self._socket.recv(), take)

    async def carry(self, take: Take) -> None:
        """Both directions, until it is cut or silent."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._write()), loop.create_task(self._watch())]
        reading = loop.create_task(self._read(take))
        try:
            done, _ = await asyncio.wait([reading, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (reading, *tasks):
                task.cancel()
            await asyncio.gather(reading, *tasks, return_exceptions=True)

    async def _read(self, take: Take) -> None:
        while True:
            self._on_frame(await self._socket.recv(), take)

    def _on_frame(self, frame: str | bytes, take: Take) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if isinstance(frame, bytes):
            for packet in take(frame).packets:
                if packet.kind == Kind.PING:
                    self.send([encode(Kind.PONG, packet.connection_id, payload=packet.payload, version=packet.version)])

    async def _write(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            out, self._out, self._out_bytes = self._out, [], 0
            self._writing = True
            await self._socket.send(out[0] if len(out) == 1 else b"".join(out))
            self._writing = False
            self.on_room()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._ping_s)
            silent_s = loop.time() - self._heard_s
            if silent_s >= self._silence_s:
                raise EOFError(f"nothing came for {silent_s:.0f} s")
            if silent_s >= self._ping_s:
                self.send([self._ping])
