"""The synchronous face: the names of `fairlead`, for programs without an event loop."""

from __future__ import annotations

from fairlead.client.sync import Connection, connect
from fairlead.message import Message

__all__ = ["Connection", "Message", "connect"]
