"""Delivery instructions: what a message between applications says about its way (DIR-72).

They are properties of the message, next to those of the application, which therefore cannot use these names. The id is
made by the sender and stays the same however often and through whatever brokers the message travels: it is the
duplicate key at each of them, so that none stores it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fairlead.errors import BadParameter
from fairlead.wire.properties import Value

__all__ = ["HOPS_MAX", "NAMES", "Instructions", "checked_headers", "checked_recipient"]

HOPS_MAX: Final = 4  # brokers that pass a message on (DIR-78)
NAME_MAX: Final = 250  # "app." before it, and a name of a queue may have 255 bytes
TEXT_MAX: Final = 2048
SEPARATOR: Final = "\n"
NAMES: Final = frozenset(
    {"to", "from", "label", "id", "queue", "hops", "via", "reply-broker", "sealed", "time", "doubt", "again"}
)


class Instructions(NamedTuple):
    """`queue`: at the broker of the recipient. `reply_broker`: where the queue for the answer is; empty: none asked."""

    to: str
    id: str
    queue: str
    sender: str = ""
    label: str = ""
    reply_broker: str = ""
    hops: int = 0
    via: tuple[str, ...] = ()  # brokers where it has been in the recipient's queue
    sealed: str = ""
    time: int = 0  # when it was sealed: milliseconds since 1970, by the sender's clock
    doubt: tuple[str, str] | None = None  # broker and queue that may have it already: it goes there, and nowhere else
    again: bool = False  # somebody may have got it before

    def properties(self) -> dict[str, Value]:
        """As the message carries them; what is empty is left out."""
        found: dict[str, Value] = {
            "to": self.to,
            "id": self.id,
            "queue": self.queue,
            "from": self.sender,
            "label": self.label,
            "reply-broker": self.reply_broker,
            "hops": self.hops,
            "via": SEPARATOR.join(self.via),
            "sealed": self.sealed,
            "time": self.time,
            "doubt": SEPARATOR.join(self.doubt or ()),
            "again": self.again,
        }
        return {name: value for name, value in found.items() if value}

    @classmethod
    def of(cls, properties: Mapping[str, Value]) -> Instructions | None:
        """Those of a message that came; None if it is not one between applications. Whoever sent it is not trusted."""
        texts = {name: _text(properties.get(name)) for name in NAMES}
        if not (texts["to"] and texts["id"] and texts["queue"]):
            return None
        hops, time = properties.get("hops", 0), properties.get("time", 0)
        broker, _, queue = texts["doubt"].partition(SEPARATOR)
        if not isinstance(hops, int) or isinstance(hops, bool) or hops < 0:
            hops = HOPS_MAX
        return cls(
            to=texts["to"],
            id=texts["id"],
            queue=texts["queue"],
            sender=texts["from"],
            label=texts["label"],
            reply_broker=texts["reply-broker"],
            hops=hops,
            via=tuple(texts["via"].split(SEPARATOR)[: HOPS_MAX + 1]) if texts["via"] else (),
            sealed=texts["sealed"],
            time=time if isinstance(time, int) and not isinstance(time, bool) else 0,
            doubt=(broker, queue) if broker and queue else None,
            again=properties.get("again") is True,
        )

    def onward(self, broker: str) -> Instructions:
        """As they are when it is stored at this broker next, in `queue_at` it."""
        via = (*self.via, broker) if self.queue_at(broker) == self.queue else self.via
        return self._replace(hops=self.hops + 1, via=via, doubt=None)

    def queue_at(self, broker: str) -> str:
        """Where it is stored at this broker: the recipient's queue, or the one that may have it already."""
        return self.doubt[1] if self.doubt is not None and self.doubt[0] == broker else self.queue

    @property
    def key(self) -> str:
        """Under which it is stored once. Where it has been before and has left, it is another one: it comes back."""
        return f"{self.id}/{self.hops}" if self.via and self.via[-1] in self.via[:-1] else self.id

    @property
    def is_answer(self) -> bool:
        """Does it go to the connection that asked, and to no other?"""
        return not self.queue.startswith("app.")


def checked_recipient(to: object) -> str:
    """The name of an application, or BadParameter: a message without recipient is refused where it is sent."""
    if not isinstance(to, str) or not to:
        raise BadParameter("A message needs a recipient: the name of an application.")
    if len(to.encode(errors="replace")) > NAME_MAX or to.startswith("@") or any(letter in "*>?/\x1f" for letter in to):
        raise BadParameter(f"{to[:60]!r} is not the name of an application.")
    if not to.isprintable():
        raise BadParameter(f"{to[:60]!r} is not the name of an application.")
    return to


def checked_headers(headers: Mapping[str, Value] | None) -> Mapping[str, Value]:
    """What the application says beside the body; BadParameter for a name that is ours."""
    for name in headers or ():
        if name in NAMES:
            raise BadParameter(f"The header {name!r} is one of the delivery instructions; choose another name.")
    return headers or {}


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= TEXT_MAX else ""
