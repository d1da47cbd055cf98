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
    from fairlead import errors, sync, tracing
    from fairlead.client.aio import Connection, Subscription, connect
    from fairlead.client.aio.app_message import AppMessage
    from fairlead.client.aio.consuming import Consumer
    from fairlead.client.aio.delivery import Delivery
    from fairlead.client.aio.destinations import Queue, Topic
    from fairlead.client.aio.feeding import Stream
    from fairlead.client.aio.placed import open_places
    from fairlead.client.aio.pooling import Pool
    from fairlead.client.aio.serving import Request
    from fairlead.client.aio.sessions import Session
    from fairlead.client.aio.transactions import Transaction
    from fairlead.client.durable.receipt import Receipt
    from fairlead.client.effects import Event
    from fairlead.errors import (
        AllBrokersFailed,
        Blocked,
        Busy,
        ConnectionLost,
        ConversationLost,
        FairleadError,
        IntegrityError,
        KeyChanged,
        NoKey,
        NoReceiver,
        ProtocolError,
        ReceiverLost,
        Refused,
        RequestTimeout,
        Stale,
        StreamRevoked,
        TransactionAborted,
        Unavailable,
        Undeliverable,
    )
    from fairlead.feeds.block_codec import StreamMessage
    from fairlead.message import Message
    from fairlead.sealing import Keyring

__all__ = [
    "AllBrokersFailed",
    "AppMessage",
    "Blocked",
    "Busy",
    "Connection",
    "ConnectionLost",
    "Consumer",
    "ConversationLost",
    "Delivery",
    "Event",
    "FairleadError",
    "IntegrityError",
    "KeyChanged",
    "Keyring",
    "Message",
    "NoKey",
    "NoReceiver",
    "Pool",
    "ProtocolError",
    "Queue",
    "Receipt",
    "ReceiverLost",
    "Refused",
    "Request",
    "RequestTimeout",
    "Session",
    "Stale",
    "Stream",
    "StreamMessage",
    "StreamRevoked",
    "Subscription",
    "Topic",
    "Transaction",
    "TransactionAborted",
    "Unavailable",
    "Undeliverable",
    "__version__",
    "connect",
    "errors",
    "open_places",
    "sync",
    "tracing",
]

_HOMES = {
    "AppMessage": "fairlead.client.aio.app_message",
    "Connection": "fairlead.client.aio",
    "Consumer": "fairlead.client.aio.consuming",
    "Delivery": "fairlead.client.aio.delivery",
    "Event": "fairlead.client.effects",
    "Keyring": "fairlead.sealing",
    "Message": "fairlead.message",
    "Pool": "fairlead.client.aio.pooling",
    "Queue": "fairlead.client.aio.destinations",
    "Receipt": "fairlead.client.durable.receipt",
    "Request": "fairlead.client.aio.serving",
    "Session": "fairlead.client.aio.sessions",
    "Stream": "fairlead.client.aio.feeding",
    "StreamMessage": "fairlead.feeds.block_codec",
    "Subscription": "fairlead.client.aio",
    "Topic": "fairlead.client.aio.destinations",
    "Transaction": "fairlead.client.aio.transactions",
    "connect": "fairlead.client.aio",
    "errors": "",
    "open_places": "fairlead.client.aio.placed",
    "sync": "",
    "tracing": "",
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
