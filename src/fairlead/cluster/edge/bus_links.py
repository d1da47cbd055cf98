"""A primary's end of the links: what agents send over the bus, handed to the core, and back (docs/cluster.md, 5).

A link is known by its agent, slot and generation; what comes for any other is answered with REFUSED, so that the agent
opens it anew. Bytes wait in the `Link` while the bus has enough of them for that node (CLU-102).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.bus.port import Bus, Bytes
from fairlead.cluster.client_manager.link_head import (
    CLOSE,
    DATA,
    FULL,
    LINK_HEAD,
    OPEN,
    OWN_SLOT,
    REFUSED,
    ROOM,
    port_of,
)
from fairlead.cluster.core import Core
from fairlead.cluster.demuxing import scan
from fairlead.cluster.outgoing import Link
from fairlead.errors import RemoteProtocolError
from fairlead.wire.durable import ENVELOPE

MESSAGE_BYTES: Final = 1 << 20  # about so much goes in one message; frames stay whole
BACKLOG_BYTES: Final = 8 << 20  # beyond it nothing more is given to the bus for that node

Key = tuple[str, int]
"""Node of the agent, slot there."""


class BusLink:
    """One manager's link."""

    __slots__ = ("generation", "link", "node", "paused", "slot")

    def __init__(self, link: Link, node: str, slot: int, generation: int) -> None:
        self.link = link
        self.node = node
        self.slot = slot
        self.generation = generation
        self.paused = False  # the manager takes no more for the moment


class BusLinks:
    """All links to one group's primary on this node. Nothing is taken unless `serve` was called."""

    def __init__(self, bus: Bus, group: str) -> None:
        self._bus = bus
        self._port = port_of(group)
        self._core: Core | None = None
        self._epoch = 0
        self._links: dict[Key, BusLink] = {}
        self.refused = 0
        bus.listen(self._port, self.on_message)

    def __len__(self) -> int:
        return len(self._links)

    def serve(self, core: Core, epoch: int) -> None:
        self._core, self._epoch = core, epoch

    def stop(self) -> None:
        """Serve no more: every link is over, here and there."""
        for one in list(self._links.values()):
            self._say(one.node, REFUSED, one.slot, one.generation)
            self._lose(one)
        self._core = None

    # --- What comes -----------------------------------------------------------------------------------------------
    def on_message(self, sender: str, message: memoryview) -> None:
        if len(message) < LINK_HEAD.size:
            self.refused += 1
            return
        what, slot, generation, epoch = LINK_HEAD.unpack_from(message)
        core = self._core
        one = self._links.get((sender, slot))
        if what == CLOSE:
            if one is not None and one.generation == generation:
                self._lose(one)
        elif core is None or epoch != self._epoch:
            self._refuse(sender, slot, generation)
        elif what == OPEN:
            if one is not None:
                self._lose(one)
            link = core.link_opened(sender, carries_broadcasts=slot != OWN_SLOT)
            self._links[sender, slot] = BusLink(link, sender, slot, generation)
        elif one is None or one.generation != generation:
            if what == DATA:
                self._refuse(sender, slot, generation)
        elif what == DATA:
            self._take(core, one, message)
        elif what in (FULL, ROOM):
            one.paused = what == FULL

    def _take(self, core: Core, one: BusLink, message: memoryview) -> None:
        # The bus wants its memory back; commands may keep theirs for as long as they wait.
        view = memoryview(bytearray(message[LINK_HEAD.size :]))
        try:
            frames, used = scan(view, 0, len(view))
        except RemoteProtocolError:
            frames, used = [], -1
        if used != len(view):
            core.event("error", "link-ended", f"{one.node} sent what is no whole frame; its link was ended.")
            self._refuse(one.node, one.slot, one.generation)
            self._lose(one)
            return
        core.take(one.link, view, frames)

    def node_lost(self, node: str) -> None:
        """It is gone, or what was under way from or to it may be."""
        for one in [one for one in self._links.values() if one.node == node]:
            self._lose(one)

    def _lose(self, one: BusLink) -> None:
        self._links.pop((one.node, one.slot), None)
        if self._core is not None:
            self._core.link_lost(one.link)

    def _refuse(self, node: str, slot: int, generation: int) -> None:
        self.refused += 1
        self._say(node, REFUSED, slot, generation)

    # --- What goes ------------------------------------------------------------------------------------------------
    def send(self) -> None:
        """What the core has put into the links, as far as the bus takes it."""
        for one in list(self._links.values()):
            if one.link.out and not one.paused:
                self._write(one)

    @property
    def is_waiting(self) -> bool:
        """Is there something that the bus did not take yet?"""
        return any(one.link.out for one in self._links.values())

    def _write(self, one: BusLink) -> None:
        link = one.link
        if self._bus.backlog(one.node) >= BACKLOG_BYTES:
            return
        head = LINK_HEAD.pack(DATA, one.slot, one.generation, self._epoch)
        if link.bytes <= MESSAGE_BYTES:
            batches: Iterator[tuple[list[Bytes], int]] = iter([(link.out[:], link.bytes)])
        else:
            batches = whole_frames(link.out)
        sent = pieces = 0
        for batch, size in batches:
            if not self._bus.send(one.node, self._port, head, *batch):
                self._lose(one)
                return
            sent += size
            pieces += len(batch)
            if self._bus.backlog(one.node) >= BACKLOG_BYTES:
                break
        del link.out[:pieces]
        if link.taken(sent) and self._core is not None:
            self._core.flow.link_room(link)

    def _say(self, node: str, what: int, slot: int, generation: int) -> None:
        self._bus.send(node, self._port, LINK_HEAD.pack(what, slot, generation, self._epoch))

    def close(self) -> None:
        self.stop()
        self._bus.deaf(self._port)


def whole_frames(out: list[Bytes], most: int = MESSAGE_BYTES) -> Iterator[tuple[list[Bytes], int]]:
    """A link's pieces in groups of whole frames, each of about `most` bytes unless one frame is more, with its size."""
    group: list[Bytes] = []
    size = at = 0
    while at < len(out):
        (whole, _, _) = ENVELOPE.unpack_from(out[at])
        beyond, left = at, whole
        while left > 0:
            left -= len(out[beyond])
            beyond += 1
        if group and size + whole > most:
            yield group, size
            group, size = [], 0
        group.extend(out[at:beyond])
        size += whole
        at = beyond
    if group:
        yield group, size
