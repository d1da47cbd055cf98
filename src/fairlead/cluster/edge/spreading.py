"""What a member says, on its way to the bus. Records that go to all backups alike are encoded and cast once (CLU-54).

By multicast that is one transmission, however many backups there are. A cast reaches whoever is in the group's channel,
so it is used only when all of them are to have it. It may overtake what was sent before to one of them alone: until
that one has stored what it got so, it goes on getting records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairlead.bus.port import Bus, View
from fairlead.cluster.replication.events import Send
from fairlead.cluster.replication.messages import Append, encode_pieces
from fairlead.cluster.replication.record import node_of

GONE = ("failed", "leaving")


class Spreading:
    """Of one member. `stored`: how far each store is, if this one leads."""

    def __init__(self, bus: Bus, group: str, stored: Callable[[], Mapping[str, int]]) -> None:
        self._bus = bus
        self._group = group
        self._channel = f"group:{group}"
        self._stored = stored
        self._others: frozenset[str] = frozenset()  # in the channel, besides us
        self._alone: dict[str, int] = {}  # node -> the last record it got by itself
        self.casts = 0
        bus.join(self._channel)

    def on_view(self, view: View) -> None:
        tags = ((peer.name, peer.tag.get("groups", {}).get(self._group)) for peer in view.peers.values())
        there = {name for name, tag in tags if tag is not None and tag.get("role") not in GONE}
        self._others = frozenset(there - {self._bus.node})

    def send(self, out: list[Send]) -> None:
        """In this order, as far as one node is concerned."""
        if len(self._others) < 2 or len(out) < 2 or not all(map(_has_records, out)):
            for one in out:
                self._spread([one])
            return
        alike: dict[int, list[Send]] = {}
        for one in out:
            alike.setdefault(id(one.message), []).append(one)
        for sends in alike.values():
            self._spread(sends)

    def _spread(self, sends: list[Send]) -> None:
        message, port = sends[0].message, sends[0].port
        pieces = encode_pieces(message)
        if len(sends) > 1 and self._others == {one.node for one in sends} and self._is_even():
            self.casts += 1
            self._bus.cast(self._channel, port, *pieces)
            return
        for one in sends:
            if isinstance(message, Append) and message.epochs:
                self._alone[one.node] = message.batch.last
            self._bus.send(one.node, one.port, *pieces)

    def _is_even(self) -> bool:
        """Has everybody stored what was for him alone?"""
        if self._alone:
            for store, upto in self._stored().items():
                if self._alone.get(node_of(store), upto + 1) <= upto:
                    del self._alone[node_of(store)]
            for node in self._alone.keys() - self._others:
                del self._alone[node]
        return not self._alone

    def close(self) -> None:
        self._bus.leave(self._channel)


def _has_records(one: Send) -> bool:
    return isinstance(one.message, Append) and bool(one.message.epochs)
