"""The synchronous face of the client: the asynchronous one, on a thread of its own."""

from __future__ import annotations

from fairlead.client.sync.connection import Connection, connect
from fairlead.client.sync.subscription import Subscription

__all__ = ["Connection", "Subscription", "connect"]
