"""A stand-in for an adapter that costs its reader nothing but reading: made blocks, sent again and again as fast as TCP
takes them, renumbered in place. Run by `client.py` as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import fairlead
from fairlead.feeds import words
from fairlead.feeds.block_codec import pack
from fairlead.feeds.frames import FrameParser, block_header, word_frame
from fairlead.feeds.records import MESSAGE, Record
from fairlead.feeds.schema import Schema
from fairlead.feeds.speech import TO_ADAPTER, encode

SCHEMA = Schema.of({"symbol": "string", "price": "int64", "size": "int64", "bid": "int64", "ask": "int64",
                    "at": "timestamp[ns]"})  # fmt: skip
SOURCE = "bench"
STREAM = "bench"


def frames(messages: int, block: int) -> Iterator[bytes]:
    """All of the stream, framed."""
    body = SCHEMA.encode({"symbol": "EURUSD", "price": 1, "size": 2, "bid": 3, "ask": 4, "at": 5})
    for first in range(1, messages + 1, block):
        run = [Record(n, MESSAGE, SOURCE, n, 1, 1, n - 1, body) for n in range(first, min(first + block, messages + 1))]
        packed = pack(SOURCE, first, run)
        yield block_header(len(packed), 1) + packed


class Line:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, content: bytes) -> None:
        self._reader, self._writer, self._name, self._content = reader, writer, name, content

    async def serve(self, last: int) -> None:
        parser = FrameParser()
        beat = words.Beat(epoch=1, incarnation=1, role="active", last=0)
        try:
            while True:
                try:
                    data = await asyncio.wait_for(self._reader.read(65536), 0.1)
                except TimeoutError:
                    self._writer.write(word_frame(beat))
                    continue
                if not data:
                    return
                for frame in parser.feed(data):
                    match TO_ADAPTER.decode(frame.payload):
                        case words.Hello(stream=stream):
                            self._writer.write(word_frame(words.Welcome(
                                adapter=self._name, stream=stream, incarnation=1, epoch=1, role="active", first=1,
                                last=last, heartbeat_s=0.2)))  # fmt: skip
                        case words.Start():
                            self._writer.write(self._content)
                            await self._writer.drain()
        finally:
            self._writer.close()


async def main(url: str, messages: int, block: int) -> None:
    content = b"".join(frames(messages, block))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Line(reader, writer, "feeder", content).serve(messages)
        except OSError:
            pass

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with fairlead.connect(url) as connection, connection.converse("_STREAMS") as talk:
        register = words.Register(
            stream=STREAM, adapter="feeder", incarnation=1, address=f"127.0.0.1:{port}", last=messages,
            sources=(words.Source(id=SOURCE),), schema=SCHEMA.to_json(),
        )  # fmt: skip
        await talk.send(encode(register))
        report = words.Report(
            epoch=1, role="active", incarnation=1, last=messages, positions={SOURCE: (messages, 1, 1)}
        )
        print("ready", flush=True)
        while True:
            await talk.send(encode(report))
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    except KeyboardInterrupt:
        pass
