"""Names of the queues by which messages between applications travel.

`app.AZ` is that of the application AZ, at each broker where it is registered. `carry.C::AZ` collects, at another
broker, what goes to AZ at broker C; `carry.A::` the answers that go back to connections at A. The recipient is in the
name because rights are rights on names: to send to `carry.C::AZ` is to send to `app.AZ`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["CARRY", "Carried", "app_queue", "carried_to", "carry_queue"]

APP: Final = "app."
CARRY: Final = "carry."
SEPARATOR: Final = "::"


class Carried(NamedTuple):
    """What a carry queue is for; `app` is empty for answers."""

    broker: str
    app: str


def app_queue(name: str) -> str:
    """The queue of an application, at each broker where it is registered."""
    return APP + name


def carry_queue(broker: str, app: str = "") -> str:
    """The queue in which a broker collects what goes to an application at another one; without: answers."""
    return f"{CARRY}{broker}{SEPARATOR}{app}"


def carried_to(queue: str) -> Carried | None:
    """What the queue is for, if it is such a one."""
    if not queue.startswith(CARRY):
        return None
    broker, separator, app = queue[len(CARRY) :].partition(SEPARATOR)
    return Carried(broker, app) if broker and separator else None
