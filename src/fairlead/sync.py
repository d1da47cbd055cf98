"""The synchronous face: the names of `fairlead`, for programs without an event loop."""

from __future__ import annotations

from fairlead.client.durable.receipt import Receipt
from fairlead.client.sync import Connection, connect
from fairlead.client.sync.applications import AppMessage, Pool
from fairlead.client.sync.deliveries import Consumer, Delivery
from fairlead.client.sync.directory import Directory, open_directory
from fairlead.client.sync.queues import Queue, Session, Topic, Transaction
from fairlead.message import Message

__all__ = [
    "AppMessage",
    "Connection",
    "Consumer",
    "Delivery",
    "Directory",
    "Message",
    "Pool",
    "Queue",
    "Receipt",
    "Session",
    "Topic",
    "Transaction",
    "connect",
    "open_directory",
]
