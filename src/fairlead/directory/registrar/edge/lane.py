"""The way from one broker to another: a connection of its own, made when it is first needed and kept."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from typing import Any, Final

from fairlead.client.aio.connection import Connection
from fairlead.client.aio.delivery import Delivery
from fairlead.directory.delivery.instructions import NAMES, Instructions
from fairlead.directory.registrar.onward import Outcome
from fairlead.directory.rows import Broker
from fairlead.errors import (
    DestinationDeleted,
    FairleadError,
    NoDestination,
    Refused,
)

__all__ = ["Lane", "address_of", "send"]

CONNECT_S: Final = 5.0
AGAIN_S: Final = 0.3
SEND_S: Final = 20.0
LOST_S: Final = 1.0
FOR_EVER_S: Final = 1e9


class Lane:
    """`row` may be changed when the directory says something else of the broker; the connection follows."""

    def __init__(self, own: str, row: Broker | None, *, user: str, password: str, tls: ssl.SSLContext | None) -> None:
        self._own = own
        self._row = row
        self._user = user or None
        self._password = password or None
        self._tls = tls
        self._connection: Connection | None = None
        self._address = ""
        self._again_s = 0.0  # not before this
        self._dialling = asyncio.Lock()
        self.sent = 0
        self.error = ""

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.connected

    async def at(self, row: Broker) -> None:
        """The broker's row, as the directory has it now."""
        self._row = row
        if self._connection is not None and self._address != address_of(row, secure=self._is_secure(row)):
            await self.close()

    async def send(self, message: Delivery, instructions: Instructions, queue: str) -> tuple[Outcome, str]:
        """One attempt, and why it failed."""
        connection = await self._dial()
        if connection is None or not connection.connected:
            return Outcome.UNREACHABLE, self.error
        work = asyncio.ensure_future(send(connection, message, instructions, queue))
        try:
            while not work.done():
                was_lost = not self.connected
                await asyncio.wait([work], timeout=LOST_S)
                if not work.done() and was_lost and not self.connected:
                    return Outcome.DOUBTFUL, "the connection was lost"  # it may be back at another address
        finally:
            work.cancel()
        outcome, self.error = work.result()
        self.sent += outcome is Outcome.STORED
        return outcome, self.error

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _is_secure(self, row: Broker) -> bool:
        return bool(row.secure_port) and (not row.port or self._password is not None)

    async def _dial(self) -> Connection | None:
        async with self._dialling:
            if self._connection is not None and not self._connection.closed:
                return self._connection
            if self._row is None:
                self.error = "the directory has not said where it is"
                return None
            loop = asyncio.get_running_loop()
            if loop.time() < self._again_s:
                return None
            self._address = address_of(self._row, secure=self._is_secure(self._row))
            made = Connection(
                self._address,
                name=f"carrier-{self._own}",
                tls=self._tls if self._address.startswith("fairleads") else None,
                reconnect_limit_s=FOR_EVER_S,
                connect_timeout_s=CONNECT_S,
                user=self._user,
                password=self._password,
            )
            try:
                await made
            except (FairleadError, OSError) as error:
                self.error = str(error)
                self._again_s = loop.time() + AGAIN_S
                return None
            self._connection = made
            return made


async def send(
    connection: Connection, message: Delivery, instructions: Instructions, queue: str
) -> tuple[Outcome, str]:
    """Store it in a queue at the other side of a connection, under its id: once, however often it is tried."""
    kept = {name: value for name, value in message.properties.items() if name not in NAMES}
    try:
        await connection.queue(queue, create=False).send(
            _body(message),
            key=message.key,
            priority=message.priority,
            ttl=_ttl_s(message),
            properties={**kept, **instructions.properties()},
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            type=message.type,
            dedup=instructions.key,
            persistent=message.persistent,
            timeout=SEND_S,
        )
    except (NoDestination, DestinationDeleted) as error:
        return Outcome.ABSENT, str(error)
    except Refused as error:
        return Outcome.REFUSED, str(error)
    except FairleadError as error:  # lost on the way, too late, too full
        return Outcome.DOUBTFUL, str(error)
    return Outcome.STORED, ""


def address_of(row: Broker, *, secure: bool) -> str:
    """A URL of the broker. A certificate is for the name of the machine, where there is one."""
    host = row.host if secure and row.host else row.ip
    shown = f"[{host}]" if ":" in host else host
    return f"fairleads://{shown}:{row.secure_port}" if secure else f"fairlead://{shown}:{row.port}"


def _body(message: Delivery) -> Any:
    if message.is_large:
        return message.stream()
    match message.body_kind:
        case "text":
            return message.text()
        case "map" | "list":
            return message.data()
        case _:
            return message.body


def _ttl_s(message: Delivery) -> float | None:
    """What is left of its time."""
    if message.expiration is None:
        return None
    return max((message.expiration - datetime.now(UTC)).total_seconds(), 0.001)
