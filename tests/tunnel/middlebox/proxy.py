"""A real HTTP/1.1 proxy that can be told to misbehave: in front of a gateway, or as a client's way out.

It runs on a loop of its own in a thread of its own; `faults` and the methods here are called from any other thread.

    with Middlebox(gateway=("127.0.0.1", port)) as box:
        box.faults.add(Act.DROP_ANSWER, {"pull"}, share=0.2)
        ... box.url ...
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any

from tests.tunnel.middlebox.faults import Capture, Faults
from tests.tunnel.middlebox.http1 import HEAD_MAX, Message
from tests.tunnel.middlebox.line import LOST, Address, Cut, Line, Peer


class Middlebox:
    """With `gateway` a reverse proxy in front of it; without, a forward proxy: absolute form and CONNECT."""

    def __init__(
        self,
        gateway: Address | None = None,
        *,
        login: tuple[str, str] | None = None,
        seed: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        capture_bytes: int = 64 << 20,
    ) -> None:
        self.gateway, self.login = gateway, login
        self.address = (host, port)
        self.faults = Faults(seed)
        self.capture = Capture(capture_bytes)
        self.source: str | None = None
        self.refused_logins = 0
        self.connections = 0
        self.peers: set[Peer] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.cached: dict[tuple[str, str], Message] = {}
        self.server: asyncio.Server | None = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, name="middlebox", daemon=True)

    # For the tests' thread.

    def __enter__(self) -> Middlebox:
        self.thread.start()
        self.call(self.listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.call(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def cut_all(self) -> None:
        """Every connection is reset now; new ones are taken."""
        self.call(self.reset())

    def move(self, source: str) -> None:
        """Everything is reset, and what comes next reaches the gateway from another address (127.0.0.2, …)."""
        self.source = source
        self.cut_all()

    def stop_listening(self) -> None:
        """As if the machine had gone: connections reset, new ones refused."""
        self.call(self.deaf())

    def listen_again(self) -> None:
        """At the same place as before."""
        self.call(self.listen())

    # The rest runs on the loop.

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self.accepted, *self.address, limit=HEAD_MAX, backlog=1024)
        self.address = self.server.sockets[0].getsockname()[:2]

    async def deaf(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        await self.reset()

    async def reset(self) -> None:
        for peer in list(self.peers):
            peer.abort()

    async def end(self) -> None:
        await self.deaf()
        for _ in range(5):  # also those that were accepted and not looked at yet
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.reset()
            await asyncio.sleep(0.005)

    def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self.loop.create_task(self.serve(self.peer(reader, writer)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address = ("", 0)) -> Peer:
        self.connections += 1
        peer = Peer(reader, writer, self.connections, address)
        self.peers.add(peer)
        return peer

    async def dial(self, address: Address) -> Peer:
        local = (self.source, 0) if self.source else None
        reader, writer = await asyncio.open_connection(*address, limit=HEAD_MAX, local_addr=local)
        return self.peer(reader, writer, address)

    async def serve(self, client: Peer) -> None:
        """One client's connection, request after request; the gateway's is kept beside it."""
        line = Line(self, client)
        try:
            while await line.exchange():
                pass
        except (*LOST, Cut):
            client.abort()
        finally:
            line.hang_up()
            client.close()
            self.peers.discard(client)
            with suppress(OSError):
                await client.writer.wait_closed()

    def is_welcome(self, request: Message) -> bool:
        if self.login is None:
            return True
        want = "Basic " + base64.b64encode(":".join(self.login).encode()).decode()
        return request.get("proxy-authorization") == want


if __name__ == "__main__":  # a forward proxy without faults, as a process: HOST PORT; the end of its input ends it
    with Middlebox(host=sys.argv[1], port=int(sys.argv[2]), capture_bytes=0):
        print(json.dumps({"event": "listening"}), flush=True)
        sys.stdin.read()
