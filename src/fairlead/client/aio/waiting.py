"""Waiting: for the server's OK (a callback for the session, and the future behind it), and not for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.client.outgoing import Answer
from fairlead.errors import RequestTimeout

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier

__all__ = ["agreed", "expire"]


def agreed(carrier: Carrier) -> tuple[Answer, asyncio.Future[None]]:
    """The pair; what was said in between is written at the end of this turn."""
    future: asyncio.Future[None] = carrier.loop.create_future()

    def answer(error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    carrier.pushed()
    return answer, future


def expire(waiter: asyncio.Future[None]) -> None:
    """For `call_at`: the time of whoever waits is up."""
    if not waiter.done():
        waiter.set_exception(RequestTimeout("Nothing came in time."))
