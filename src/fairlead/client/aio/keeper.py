"""Keeps a session connected: the first connection, the next one after a loss, another one when asked to move.

An attempt that closes before its confirmation is made again: its socket was lost on the way through the
server, where nobody had read from it yet. A refusal that would only be repeated ends the trying.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.client.aio.access import refused_certificate
from fairlead.client.aio.line import Line
from fairlead.client.link import Phase
from fairlead.client.pauses import Pauses
from fairlead.client.session import as_lost
from fairlead.client.target import Address, Route, Target
from fairlead.errors import ConnectionLost, DuplicateInstance, FairleadError, RemoteProtocolError

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier
    from fairlead.tunnel.place import Place

__all__ = ["Keeper"]

logger = logging.getLogger("fairlead.client")

LEAVE_S = 1.0


class VanishedEarly(ConnectionLost):
    """Closed before the confirmation."""


class Keeper:
    """A `limit_s` of 0 means: do not come back after a loss."""

    def __init__(
        self,
        carrier: Carrier,
        target: Target,
        tls: ssl.SSLContext | None,
        *,
        connect_timeout_s: float,
        limit_s: float,
    ) -> None:
        self._carrier = carrier
        self._target = target
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._limit_s = limit_s
        self._address = target.addresses[0]
        self._route = Route(target.addresses, random.random)

    async def begin(self) -> None:
        """The first connection; when nobody is there the reason is raised at once."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._attach(patient=False)
        except TimeoutError:
            names = ", ".join(str(address) for address in self._target.addresses)
            raise ConnectionLost(f"No connection to {names} within {self._connect_timeout_s:g} s.") from None

    async def keep(self) -> None:
        """Come back after every loss, until it takes too long."""
        carrier, limit_s = self._carrier, self._limit_s
        while True:
            why = await carrier.lost
            carrier.lost = carrier.loop.create_future()
            if carrier.closing:
                return
            if not limit_s:
                carrier.finish(as_lost(why))
                return
            try:
                async with asyncio.timeout(limit_s):
                    await self._attach(patient=True)
            except TimeoutError:
                error = ConnectionLost(f"The connection was lost and could not be made again within {limit_s:g} s.")
                error.__cause__ = why
                carrier.finish(error)
                return
            except Exception as error:
                carrier.finish(as_lost(error))
                return

    async def move(self, token: str, within_s: float) -> None:
        """Open the successor; the session switches over by itself when both MOVED are in."""
        carrier, pauses = self._carrier, Pauses(random.random)
        epoch, patience_s = carrier.epoch, within_s or self._connect_timeout_s
        until_s = carrier.loop.time() + patience_s
        while not carrier.closing and carrier.epoch == epoch and carrier.loop.time() < until_s:
            try:
                # Once MOVE is said there is no way back: giving up then means a reconnect.
                await self._dial(self._address, token, max(patience_s, self._connect_timeout_s))
                return
            except (FairleadError, OSError) as error:
                logger.debug("The move was not possible yet: %s", error)
            await asyncio.sleep(pauses.next_s())

    async def leave(self, addresses: list[Address], within_s: float) -> None:
        """This server asks to be left for others: when nobody waits for an answer, or time is up."""
        carrier = self._carrier
        if self._target.tunnel is not None:
            return  # such addresses are behind the gateway; what it closes is opened again
        self._route.hint(addresses)
        until_s = carrier.loop.time() + min(within_s, LEAVE_S)
        while carrier.session.requests.open and carrier.loop.time() < until_s:
            await asyncio.sleep(0.01)
        carrier.drop(ConnectionLost("The server asked this client to connect elsewhere."))

    async def _attach(self, *, patient: bool) -> None:
        """Try the addresses in turn until one takes us; callers limit the time."""
        pauses = Pauses(random.random)
        while True:
            error: Exception = ConnectionLost("There is no address to try.")
            again = patient
            addresses = self._route.round()
            while True:
                hint = self._route.take_hint()
                if hint is None and not addresses:
                    break
                address = hint or addresses.pop(0)
                try:
                    await self._dial(address, None, self._connect_timeout_s)
                    self._route.reached(address)
                    return
                except FairleadError as refusal:
                    error = refusal
                    if not (refusal.retryable or isinstance(refusal, (DuplicateInstance, RemoteProtocolError))):
                        raise
                    again = again or isinstance(refusal, VanishedEarly)
                except TimeoutError:
                    error = ConnectionLost(f"{address} did not answer within {self._connect_timeout_s:g} s.")
                except OSError as failure:
                    error = ConnectionLost(f"Cannot connect to {address}: {failure}.")
            if not again:
                raise error
            await asyncio.sleep(pauses.next_s())

    async def _dial(self, address: Address, resume: str | None, timeout_s: float) -> None:
        """One attempt: a line that is ready, or the reason why not."""
        try:
            await self._open(address, resume, timeout_s)
        except OSError as error:
            raise refused_certificate(error) or error from error
        self._address = address

    async def _open(self, address: Address, resume: str | None, timeout_s: float) -> None:
        loop, tls, access = self._carrier.loop, self._tls, self._carrier.access

        def make() -> Line:
            return Line(self._carrier, resume)

        async with asyncio.timeout(timeout_s):
            if access is not None:
                await access.freshen(self._carrier.session)
                tls = access.tls if tls is not None and access.tls is not None else tls
            transport: asyncio.Transport
            if address.tunnel is not None:
                transport, line = await self._through(address.tunnel, make, timeout_s, tls)
            elif address.path:
                host = "localhost" if tls else None
                transport, line = await loop.create_unix_connection(make, address.path, ssl=tls, server_hostname=host)
            else:
                name = address.name if tls and address.name else None
                transport, line = await loop.create_connection(
                    make, address.host, address.port, ssl=tls, server_hostname=name
                )
            try:
                await line.ready
            except BaseException as error:
                transport.abort()
                if address.tunnel is None:
                    self._route.hint(line.link.elsewhere)
                tunnel = transport.get_extra_info("tunnel")
                if tunnel is not None and tunnel.end.reason is not None:
                    raise  # whoever ended it said why
                if isinstance(error, ConnectionLost) and line.link.phase is Phase.GREETING and not line.link.reason:
                    raise VanishedEarly(f"{address} closed the connection before it was confirmed.") from error
                raise

    async def _through(
        self, place: Place, make: Callable[[], Line], timeout_s: float, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.Transport, Line]:
        """A line through a gateway; its own reasons come before ours, which knows none."""
        from fairlead.tunnel.edge.dial import open_pump
        from fairlead.tunnel.edge.transport import TunnelTransport

        tries = len(self._target.addresses)
        pump = await open_pump(place, self._target.tunnel, timeout_s=0.9 * timeout_s / tries, tls=tls)
        line = make()
        transport = TunnelTransport(pump, line)
        try:
            await asyncio.sleep(0)  # in which the line gets its transport
        except BaseException:
            transport.abort()
            raise
        return transport, line
