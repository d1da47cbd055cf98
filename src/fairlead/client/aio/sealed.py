"""Sealing in the client: bodies that leave the connection sealed, and are opened where they arrive (DIR-79, DIR-80).

A message that cannot be opened, or was changed on its way, goes to the dead message queue, is told as an event, and is
an error for whoever waits for the next message; it is never handed out. If only the directory is out of reach, so that
the sender's key cannot be looked up, the message stays where it is and comes again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from fairlead.client.durable.content import encode_body
from fairlead.client.effects import Event
from fairlead.directory.delivery.instructions import Instructions
from fairlead.errors import BadParameter, FairleadError, IntegrityError, NoKey

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection
    from fairlead.client.aio.delivery import Delivery
    from fairlead.sealing import Keyring, Opened
    from fairlead.sealing.bound import Value

__all__ = ["Sealing"]

RETRY_S: Final = 1.0
LOOK_UP_S: Final = 5.0
ASKED_MAX: Final = 10_000


class Sealing:
    """The keyring of one connection, if it has one."""

    def __init__(self, connection: Connection, keys: Keyring | None, *, sealed_only: bool) -> None:
        if sealed_only and keys is None:
            raise BadParameter("`sealed_only` needs `keys`, a Keyring.")
        self._connection = connection
        self._keys = keys
        self._sealed_only = sealed_only
        self._asked: set[str] = set()  # whose keys this connection has looked up
        self.refused = 0

    async def seal(
        self, instructions: Instructions, body: Any, options: dict[str, Any], sealed: bool | str
    ) -> tuple[Instructions, Any]:
        """Instructions and body as they travel. `sealed` may name a shared key."""
        if not sealed:
            return instructions, body
        if self._keys is None:
            raise BadParameter("`sealed` needs a keyring: connect with `keys=fairlead.Keyring.load(…)`.")
        if hasattr(body, "read") or hasattr(body, "__aiter__"):
            raise BadParameter("A stream cannot be sealed: seal its pieces, each as a message of its own.")
        data, kind = encode_body(body)
        said = instructions._replace(sealed=kind or "bytes", time=time.time_ns() // 1_000_000)
        bound = _bound(said, str(options.get("correlation_id") or ""), str(options.get("reply_to") or ""))
        if isinstance(sealed, str):
            return said, self._keys.seal(data, under=sealed, sender=said.sender, instructions=bound)
        await self._look_up(said.to)
        return said, self._keys.seal(data, to=said.to, sender=said.sender, instructions=bound)

    async def open(self, instructions: Instructions, delivery: Delivery) -> Opened | None:
        """The body in clear, and by which key; None if it was never sealed."""
        try:
            return await self._open(instructions, delivery)
        except FairleadError as error:
            if error.retryable:
                delivery.retry(RETRY_S)
                raise
            self.refused += 1
            delivery.reject()
            self._connection._carrier.tell(Event("integrity", error))
            raise

    async def _open(self, instructions: Instructions, delivery: Delivery) -> Opened | None:
        if not instructions.sealed and not self._begins_sealed(delivery):
            if self._sealed_only:
                raise IntegrityError(f"The message {instructions.id} is not sealed; this connection takes no other.")
            return None
        if self._keys is None:
            raise NoKey(f"The message {instructions.id} is sealed: connect with `keys=fairlead.Keyring.load(…)`.")
        if instructions.to != self._connection.app:
            raise IntegrityError(f"The message {instructions.id} was sealed for {instructions.to!r}, and came here.")
        bound = _bound(instructions, delivery.correlation_id or "", delivery.reply_to or "")
        data = await delivery.read() if delivery.is_large else delivery.body
        if stranger := self._keys.stranger(data, bound):
            await self._learn(stranger)
        return self._keys.unseal(data, instructions=bound)

    def _begins_sealed(self, delivery: Delivery) -> bool:
        """Has somebody taken away the mark of a sealed message?"""
        if self._keys is None or delivery.is_large:
            return False
        from fairlead.sealing import looks_sealed

        return looks_sealed(delivery.body)

    async def _look_up(self, application: str) -> None:
        """Learn its keys the first time, though some are known: it may have newer ones."""
        assert self._keys is not None
        if application in self._asked:
            return
        try:
            await self._learn(application)
        except FairleadError as error:
            # Without a directory what was pinned before serves; what it says wrongly does not.
            if not self._keys.knows(application) or not (error.retryable or self._connection._directory is None):
                raise
        else:
            if len(self._asked) < ASKED_MAX:
                self._asked.add(application)

    async def _learn(self, application: str) -> None:
        """Ask the directory for its published keys, and pin them."""
        assert self._keys is not None
        directory = self._connection._directory
        if directory is None:
            raise NoKey(f"There is no directory to ask for the keys of {application!r}: pin them, `fairlead key pin`.")
        found = await directory.lookup_app(application, timeout=LOOK_UP_S)
        self._keys.learn(application, found.keys)


def _bound(instructions: Instructions, correlation: str, reply_to: str) -> dict[str, Value]:
    """What the seal holds together with the body."""
    from fairlead.sealing import instructions_of

    return instructions_of(
        to=instructions.to,
        sender=instructions.sender,
        id=instructions.id,
        correlation=correlation,
        reply_to=reply_to,
        content_type=instructions.sealed,
        time=instructions.time,
    )
