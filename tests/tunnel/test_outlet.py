"""One way out for many tunnels: those who wait are served in turn, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

from fairlead.tunnel.edge.outlet import LIMIT_BYTES, SHARE_BYTES, Outlet


class Tap(asyncio.Transport):
    """A network that takes nothing until it is told to."""

    def __init__(self) -> None:
        self.waiting = 0
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: Any) -> None:
        self.waiting += len(data)
        self.written.append(data)


class Talker:
    def __init__(self, outlet: Outlet, name: bytes) -> None:
        self.outlet, self.name, self.told = outlet, name, 0

    def talk(self) -> None:
        while room := self.outlet.room(self):
            self.outlet.send(self, [self.name * min(room, SHARE_BYTES)])

    def on_room(self) -> None:
        if room := self.outlet.room(self):
            self.outlet.send(self, [self.name * room])
            self.talk()


def test_those_who_wait_are_served_in_turn() -> None:
    async def main() -> None:
        outlet, tap = Outlet(asyncio.get_running_loop()), Tap()
        outlet.open(tap)
        greedy = Talker(outlet, b"g")
        greedy.talk()
        others = [Talker(outlet, name) for name in (b"a", b"b", b"c")]
        for one in others:
            assert outlet.room(one) == 0
        await asyncio.sleep(0)
        assert tap.waiting == LIMIT_BYTES
        for expected in (b"g", b"a", b"b", b"c", b"g", b"a"):
            tap.waiting -= SHARE_BYTES
            tap.written.clear()
            outlet.call_next()
            for _ in range(3):
                await asyncio.sleep(0)
            assert b"".join(tap.written) == expected * SHARE_BYTES

    asyncio.run(main())


def test_somebody_who_was_called_for_nothing_does_not_stop_the_line() -> None:
    async def main() -> None:
        outlet = Outlet(asyncio.get_running_loop())

        class Silent:
            def on_room(self) -> None:
                pass

        talker = Talker(outlet, b"t")
        for one in [*(Silent() for _ in range(40)), talker]:
            assert outlet.room(one) == 0  # there is no link yet
        tap = Tap()
        outlet.open(tap)
        for _ in range(5):
            await asyncio.sleep(0)
        assert tap.written

    asyncio.run(main())


def test_nobody_overtakes_those_who_wait() -> None:
    async def main() -> None:
        outlet, tap = Outlet(asyncio.get_running_loop()), Tap()
        outlet.open(tap)
        Talker(outlet, b"g").talk()
        first, newcomer = Talker(outlet, b"f"), Talker(outlet, b"n")
        assert outlet.room(first) == 0
        await asyncio.sleep(0)
        tap.waiting -= SHARE_BYTES
        assert outlet.room(newcomer) == 0  # there is room, and somebody before
        tap.written.clear()
        outlet.call_next()
        for _ in range(3):
            await asyncio.sleep(0)
        assert b"".join(tap.written)[:1] in (b"g", b"f")
        assert b"n" not in b"".join(tap.written)

    asyncio.run(main())
