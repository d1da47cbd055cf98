"""What a driver reports, written down; and tunnels to a scripted gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from fairlead.tunnel.edge.http import HttpDriver, open_tunnel
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Packet
from tests.tunnel.http.scripted import Gateway


class Notes:
    """A Sink of the tests."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.damaged = 0
        self.rooms = 0
        self.restored = 0
        self.gone: list[tuple[int, str]] = []
        self._changed = asyncio.Event()

    def on_packets(self, packets: list[Packet]) -> None:
        self.packets += packets
        self._changed.set()

    def on_damaged(self, count: int) -> None:
        self.damaged += count
        self._changed.set()

    def on_room(self) -> None:
        self.rooms += 1
        self._changed.set()

    def on_restored(self) -> None:
        self.restored += 1
        self._changed.set()

    def on_gone(self, code: int, text: str) -> None:
        self.gone.append((code, text))
        self._changed.set()

    async def until(self, what: Callable[[], object], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not what():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def driving(gateway: Gateway, options: TunnelOptions | None = None) -> AsyncIterator[tuple[HttpDriver, Notes]]:
    """A tunnel the gateway has made, its driver started; no WebSocket unless asked for."""
    opened = await open_tunnel(gateway.url, options or TunnelOptions(websocket="never"))
    notes = Notes()
    opened.driver.start(notes)
    try:
        yield opened.driver, notes
    finally:
        opened.driver.close()
        gateway.cut_all()
        await asyncio.sleep(0)


def play(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run it to the end, and see that no task is left behind."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await test()
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)

    asyncio.run(main())
