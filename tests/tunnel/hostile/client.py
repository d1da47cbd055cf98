"""A client as a process: opens tunnels as told in JSON, moves numbered bytes, and says in lines of JSON what happened.

Events: opened, moved (every MiB of all tunnels together), result (one for each tunnel), failed. A line `status` on its
input is answered with the ends' figures; the end of its input ends it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from fairlead.errors import FairleadError
from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.hostile.server import facts, say
from tests.tunnel.hostile.talk import Mode, Wish, transfer

MIB = 1 << 20


class Client:
    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.options = TunnelOptions(rules=Rules(**told.get("rules", {})), **told.get("options", {}))
        self.streams: dict[int, TunnelStream] = {}
        self.taken_bytes = 0

    async def open(self, number: int) -> TunnelStream:
        urls = self.told.get("urls") or [self.told["url"]]  # in turn
        url = urls[number // 10 % len(urls)]
        stream = await open_stream(url, self.options, timeout_s=self.told.get("timeout_s", 60))
        identity = stream.status().end.connection_id
        self.streams[identity] = stream
        for name, value in self.told.get("set", {}).items():
            stream.set_option(Option[name], value)
        say("opened", id=identity)
        return stream

    def took(self, count: int) -> None:
        self.taken_bytes += count

    async def tell(self) -> None:
        """What has really arrived: what was read here, and what the other end has acknowledged."""
        before = 0
        while True:
            await asyncio.sleep(0.02)
            acknowledged = sum(stream.status().end.acknowledged for stream in self.streams.values())
            mib = (self.taken_bytes + acknowledged * self.options.rules.payload_max) // MIB
            if mib > before:
                before = mib
                say("moved", mib=mib)

    async def one(self, number: int) -> None:
        told = self.told
        try:
            stream = await self.open(number)
            identity = stream.status().end.connection_id
            mode = Mode[told.get("mode", "transfer").upper()]
            if mode is not Mode.TRANSFER:
                await self.other(stream, mode)
                return
            result = await transfer(stream, told.get("up", 0), told.get("down", 0), number, self.took)
            carrier, figures = stream.status().carrier, facts(stream.status().end)
            closed = await stream.close()
            say("result", id=identity, **result._asdict(), closed=closed, carrier=carrier, status=figures)
        except (FairleadError, OSError, asyncio.IncompleteReadError) as error:
            say("failed", error=f"{type(error).__name__}: {error}")

    async def other(self, stream: TunnelStream, mode: Mode) -> None:
        await stream.write(Wish(mode, stream=1).encode())
        if mode is Mode.FLOOD:
            await stream.flush()
            say("flooded")
            await asyncio.Event().wait()  # never reads
        if mode is Mode.DEAF:
            written = 0
            while True:
                await stream.write(bytes(64 << 10))
                written += 64 << 10
                say("written", bytes=written)
        for number in range(self.told.get("rounds", 1)):
            await stream.write(b"%08d" % number)
            assert await stream.readexactly(8) == b"%08d" % number
            say("echoed", number=number)
            await asyncio.sleep(self.told.get("pause_s", 0))
        say("result", id=stream.status().end.connection_id, fault="", closed=await stream.close())

    async def questions(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while await reader.readline():
            tunnels = [stream.status() for stream in self.streams.values()]
            say(
                "status",
                tunnels=[{**facts(one.end), "carrier": one.carrier} for one in tunnels],
            )

    async def work(self, first: int) -> None:
        await asyncio.gather(*(self.one(first + 10 * number) for number in range(self.told.get("tunnels", 1))))

    async def run(self) -> None:
        asking = asyncio.ensure_future(self.questions())
        telling = asyncio.ensure_future(self.tell())
        first = self.told.get("stream", 1000)
        work = asyncio.ensure_future(self.work(first))
        await asyncio.wait([asking, work], return_when=asyncio.FIRST_COMPLETED)
        for stream in self.streams.values():
            if asking.done() and not work.done():
                stream.abort()
        if work.done():
            await work
            say("done")
            await asking
        await asyncio.sleep(0)
        work.cancel()
        telling.cancel()
        for stream in self.streams.values():
            stream.release()
        await asyncio.gather(work, telling, return_exceptions=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(Client(json.loads(sys.argv[1])).run())
