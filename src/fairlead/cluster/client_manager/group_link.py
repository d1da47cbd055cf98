"""One group, seen from a client manager: who serves it, and the links to that node (docs/cluster.md, section 5).

There is one link for each manager and one of the agent's own, over which the group's names come. All of them live and
end together, with the primary; only then does a new generation begin, so that nothing late is taken for new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from fairlead.cluster.client_manager.link_head import CLOSE, DATA, LINK_HEAD, OPEN, OWN_SLOT, port_of
from fairlead.cluster.port import Bytes

HELLO_S: Final = 5.0
RETRY_S: Final = 0.1

Sender = Callable[..., bool]
"""node, port, pieces of one message; False: that node is not there."""


class Served(NamedTuple):
    """The node that serves a group, and since which epoch."""

    node: str
    epoch: int


class GroupLink:
    """All links of this node to one group."""

    def __init__(self, name: str, index: int, send: Sender) -> None:
        self.name = name
        self.index = index
        self.served: Served | None = None
        self.up = False  # its names are here: it can be used
        self.names: dict[str, tuple[str, str]] = {}  # while pages of the greeting come
        self.names_expected = -1
        self.deadline_s = 0.0  # for the greeting, or until the next try
        self.lost = False  # a message could not be sent: the links are over
        self.messages = 0
        self._port = port_of(name)
        self._send = send
        self._generation = 0
        self._opened: dict[int, int] = {}  # slot -> generation

    @property
    def is_open(self) -> bool:
        return OWN_SLOT in self._opened

    def open(self, slot: int) -> None:
        self._generation += 1
        self._opened[slot] = self._generation
        self._say(OPEN, slot)

    def close(self, slot: int) -> None:
        if slot in self._opened:
            self._say(CLOSE, slot)
            del self._opened[slot]

    def forget(self) -> None:
        """The other end of all of them is gone."""
        self._opened.clear()
        self.up = self.lost = False
        self.names, self.names_expected = {}, -1

    def data(self, slot: int, pieces: Iterable[Bytes]) -> None:
        self._say(DATA, slot, *pieces)

    def say(self, what: int, slot: int) -> None:
        if slot in self._opened:
            self._say(what, slot)

    def _say(self, what: int, slot: int, *pieces: Bytes) -> None:
        if self.served is None or slot not in self._opened:
            return
        self.messages += 1
        head = LINK_HEAD.pack(what, slot, self._opened[slot] & 0xFFFFFFFF, self.served.epoch)
        if not self._send(self.served.node, self._port, head, *pieces):
            self.lost = True

    def is_current(self, node: str, slot: int, generation: int) -> bool:
        """Does this come from the other end of a link we have, and not of one we had?"""
        return self.served is not None and self.served.node == node and self._opened.get(slot) == generation

    def facts(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "node": self.served.node if self.served else "",
            "epoch": self.served.epoch if self.served else 0,
            "up": self.up,
            "links": len(self._opened),
            "messages": self.messages,
        }
