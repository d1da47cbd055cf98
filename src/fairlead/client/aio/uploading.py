"""Sending a very large message: reads the source as fast as the server takes it, and no faster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.client.aio.streams import Source
from fairlead.client.durable.content import Content
from fairlead.client.durable.receipt import Receipt
from fairlead.client.durable.uploads import Upload, discard
from fairlead.errors import Cancelled
from fairlead.wire.durable import ENTRY_LARGE

if TYPE_CHECKING:
    from fairlead.client.aio.destinations import Destination
    from fairlead.client.aio.sending import OnBlocked

__all__ = ["send_large"]


async def send_large(
    destination: Destination, source: Source, like: Content, deadline_s: float, on_blocked: OnBlocked
) -> Receipt:
    """Its place in the order is taken now; what is sent later waits for it (CLU-99)."""
    await source.measure()
    session = destination.session
    transaction = session.current() if session.is_transacted else None
    if transaction is not None:
        transaction.check()
        producer = destination.producer()
    else:
        producer = await destination.room(deadline_s, on_blocked)
    loop = destination.courier.loop
    stored: asyncio.Future[Receipt] = loop.create_future()
    batch = producer.reserve(stored) if transaction is None else None
    moved = asyncio.Event()

    def done(large: bytes, error: Exception | None) -> None:
        moved.set()
        if batch is not None and error is not None:
            producer.give_up(batch, error)
        elif batch is not None:
            producer.fill(batch, like.entry(large, ENTRY_LARGE))
        elif stored.done():
            pass
        elif error is not None:
            stored.set_exception(error)
        elif transaction is not None:
            try:
                transaction.send_entry(producer, like.entry(large, ENTRY_LARGE), upload.number)
            except Exception as refusal:
                discard(producer.part, upload.number)
                stored.set_exception(refusal)
            else:
                stored.set_result(Receipt("", 0, None, destination.name))

    stored.add_done_callback(lambda _: moved.set())
    machine = producer.part.session
    machine.transfers += 1
    number, seekable = machine.transfers, source.length is not None
    upload = Upload(producer, number, source.length, seekable=seekable, wake=moved.set, done=done)
    try:
        async with asyncio.timeout_at(None if deadline_s == float("inf") else deadline_s):
            while not stored.done():
                size = upload.room
                if size:
                    position = upload.position
                    if source.position != position:
                        await source.seek(position)
                    piece = await source.read(size)
                    if upload.position == position:  # else it has to go on from elsewhere meanwhile
                        upload.offer(piece, last=not piece)
                else:
                    moved.clear()
                    await moved.wait()
    except BaseException as error:
        upload.fail(error if isinstance(error, Exception) else Cancelled("Sending was given up."))
        if stored.done() and not stored.cancelled():
            stored.exception()  # whoever called is told by what is raised here
        raise
    return await stored
