"""The part of a connection that speaks for an application: see `applications`, `app_inbox` and `app_message`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.client.aio.app_inbox import AppHandler, AppInbox, AppService
from fairlead.client.aio.applications import Applications, WhenBusy
from fairlead.client.aio.placed import PlacedConnection

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection
    from fairlead.sealing import Keyring

__all__ = ["ApplicationConnection", "is_application"]


class ApplicationConnection(PlacedConnection):
    """What `Connection` adds where it has an application name."""

    _applications: Applications

    def _speak(self, when_busy: WhenBusy, keys: Keyring | None, sealed_only: bool) -> None:
        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        self._applications = Applications(self, when_busy=when_busy, keys=keys, sealed_only=sealed_only)

    def application(self, *, window: int = 1) -> AppInbox:
        """What others send to this application: `async with connection.application() as inbox`.

        With a window of 1 the next message goes to a connection that has nothing to do.
        """
        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        return AppInbox(self, self._applications, window=window)

    async def serve_app(self, handler: AppHandler, *, window: int = 1, concurrency: int = 1) -> AppService:
        """Call `handler(message)`, a function or coroutine function, for each message to this application.

        What it returns is the answer to a call; a message without one is acknowledged when it has returned.
        """
        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        service = AppService(self.application(window=window), handler, concurrency=concurrency)
        return await service.start(self._carrier.spawn)


def is_application(address: object) -> bool:
    """Is it an application's name, and not a client's uid or `type/instance`?"""
    return not isinstance(address, int) and not (isinstance(address, str) and "/" in address)


def unused(options: dict[str, Any]) -> str:
    """Options that only messages to applications have, of those that were given."""
    return ", ".join(sorted(name for name, value in options.items() if value not in (None, False)))
