"""The asynchronous face of the client: asyncio, with or without uvloop."""

from __future__ import annotations

from fairlead.client.aio.connection import Connection, connect
from fairlead.client.aio.subscription import Subscription

__all__ = ["Connection", "Subscription", "connect"]
