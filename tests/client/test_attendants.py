"""One conversation that goes wrong is one conversation."""

from __future__ import annotations

import asyncio

from fairlead.client.aio.attendants import Attendants
from fairlead.errors import ConversationLost


def test_our_own_faults_are_told_and_the_others_go_on() -> None:
    said: list[tuple[str, str]] = []

    async def story() -> list[str]:
        done: list[str] = []
        attendants = Attendants(lambda level, text: said.append((level, text)))

        async def gone() -> None:
            raise ConversationLost("The other side is gone.")

        async def wrong() -> None:
            raise KeyError("nobody")

        async def right() -> None:
            await asyncio.sleep(0)
            done.append("right")

        for work in (gone(), wrong(), right()):
            attendants.spawn(work)
        for _ in range(3):
            await asyncio.sleep(0)
        await attendants.close()
        return done

    assert asyncio.run(story()) == ["right"]
    assert said == [("error", "a conversation failed: KeyError: 'nobody'")]


def test_what_is_left_ends_with_it() -> None:
    async def story() -> bool:
        attendants = Attendants(lambda level, text: None)
        ended = asyncio.Event()

        async def lasting() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

        attendants.spawn(lasting())
        await asyncio.sleep(0)
        await attendants.close()
        return ended.is_set()

    assert asyncio.run(story())
