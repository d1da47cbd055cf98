"""Fairlead: message-oriented middleware for Python.

::

    async with fairlead.connect("fairlead://localhost") as connection:
        await connection.publish("prices.eur.usd", b"1.0843")

The names are brought in when they are first used, so that the server's processes, which live in this package
too, need not carry the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.runtime.version import VERSION as __version__

if TYPE_CHECKING:
    from fairlead import errors, sync
    from fairlead.client.aio import Connection, Subscription, connect
    from fairlead.client.aio.serving import Request
    from fairlead.client.effects import Event
    from fairlead.errors import (
        ConnectionLost,
        ConversationLost,
        FairleadError,
        NoReceiver,
        ProtocolError,
        ReceiverLost,
        Refused,
        RequestTimeout,
        Unavailable,
    )
    from fairlead.message import Message

__all__ = [
    "Connection",
    "ConnectionLost",
    "ConversationLost",
    "Event",
    "FairleadError",
    "Message",
    "NoReceiver",
    "ProtocolError",
    "ReceiverLost",
    "Refused",
    "Request",
    "RequestTimeout",
    "Subscription",
    "Unavailable",
    "__version__",
    "connect",
    "errors",
    "sync",
]

_HOMES = {
    "Connection": "fairlead.client.aio",
    "Event": "fairlead.client.effects",
    "Message": "fairlead.message",
    "Request": "fairlead.client.aio.serving",
    "Subscription": "fairlead.client.aio",
    "connect": "fairlead.client.aio",
    "errors": "",
    "sync": "",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = _HOMES.get(name, "fairlead.errors")
    found = getattr(import_module(home), name) if home else import_module(f"fairlead.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
