"""Where a message to an application goes, by what the directory says of it (DIR-73, DIR-75, DIR-77)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fairlead.directory.delivery.queues import CARRY, app_queue, carry_queue
from fairlead.directory.rows import Application, Broker

__all__ = ["CARRY", "UNKNOWN", "Route", "app_queue", "carry_queue", "find_broker", "find_route", "is_here"]


class Route(NamedTuple):
    """`queue`: at this broker, `app.AZ` or `carry.C::AZ`; empty: nobody knows the name. `broker`: where it ends."""

    queue: str
    broker: str

    @property
    def is_known(self) -> bool:
        return bool(self.queue)


UNKNOWN: Final = Route("", "")


def find_route(
    app: Application | None, brokers: Sequence[Broker], *, own: str, store: str = "", turn: int = 0
) -> Route:
    """To one of the application's brokers: this one if possible, then those that are up, each in its turn.

    A static application that is away has its messages kept at the broker it is registered at.
    """
    if app is None:
        return UNKNOWN
    rows = {broker.name: broker for broker in brokers}
    connected = sorted({link.broker for link in app.links})
    for name in connected:
        if is_here(name, rows, own=own, store=store):
            return Route(app_queue(app.name), own)
    if not connected:
        if app.kind != "static" or not app.broker:
            return UNKNOWN
        if is_here(app.broker, rows, own=own, store=store):
            return Route(app_queue(app.name), own)
        return Route(carry_queue(app.broker, app.name), app.broker)
    up = [name for name in connected if name in rows and rows[name].available] or connected
    chosen = up[turn % len(up)]
    return Route(carry_queue(chosen, app.name), chosen)


def find_broker(name: str, brokers: Sequence[Broker], *, own: str, store: str = "") -> Route | None:
    """To a broker itself, for an answer: None: there is no such broker; a queue `""`: it is this one, or as good as."""
    rows = {broker.name: broker for broker in brokers}
    if is_here(name, rows, own=own, store=store):
        return Route("", own)
    return Route(carry_queue(name), name) if name in rows else None


def is_here(name: str, rows: dict[str, Broker], *, own: str, store: str) -> bool:
    """Are that broker's queues this broker's queues?"""
    return name == own or bool(store and name in rows and rows[name].store == store)
