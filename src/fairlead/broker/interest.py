"""What the clients of this server want, told to links: bridges that carry messages to and from other servers.

A link is a client of the type `fairlead.link`, named after its own server, that has subscribed to `_LINK` before
anything else. It gets INTEREST frames (docs/protocol.md, section 10): the whole at first, then every change. What
links themselves subscribe to and register for is no interest: they say it for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.broker.instructions import Instruction, plain
from fairlead.broker.parties import Attachment
from fairlead.wire import kinds
from fairlead.wire.frames import encode_frame
from fairlead.wire.headers import decode_headers

LINK_TOPIC = "_LINK"
LINK_TYPE = "fairlead.link"
PATH_HEADER = ":path"
PIECE_ENTRIES = 256  # at most in one frame; each is a pattern, a topic or a name, so that it fits into a ring

SUBSCRIBED, SERVED, NAMED = "subscribed", "served", "named"
AT_HOME = {(SERVED, "_REGISTRAR"), (SERVED, "_STREAMS")}  # asked by clients of the server itself only (DIR-23)
_encode = msgspec.json.Encoder().encode


class Interest:
    """How many subscriptions of a pattern, receivers of a topic and clients of a name there are; and the links."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {SUBSCRIBED: {}, SERVED: {}, NAMED: {}}
        self.links: dict[int, Attachment] = {}

    def add(self, what: str, key: str, amount: int) -> None:
        if (what, key) in AT_HOME:
            return
        counts = self.counts[what]
        count = counts.get(key, 0) + amount
        if count > 0:
            counts[key] = count
        else:
            counts.pop(key, None)

    # -- what to tell

    def changed(self, changes: Iterable[tuple[str, str, int]]) -> list[Instruction]:
        """Instructions for the links when these (what, key, amount) are about to happen; the first and the last count.

        Of receivers every change is told, since requests are balanced by their number.
        """
        if not self.links:
            return []
        after: dict[tuple[str, str], int] = {}
        for what, key, amount in changes:
            if (what, key) in AT_HOME:
                continue
            after[what, key] = after.get((what, key), self.counts[what].get(key, 0)) + amount
        told: dict[str, dict[str, int]] = {}
        for (what, key), count in after.items():
            before = self.counts[what].get(key, 0)
            if count != before if what == SERVED else bool(count) != bool(before):
                told.setdefault(what, {})[key] = count
        return self._to_all(told) if told else []

    def _to_all(self, told: dict[str, dict[str, int]]) -> list[Instruction]:
        frames = list(_frames(told))
        return [plain(link, frame) for link in self.links.values() for frame in frames]

    def linked(self, newcomer: Attachment) -> list[Instruction]:
        """A link is about to be there: it hears everything, the others hear of it."""
        links = {str(link.uid): link.instance for link in [*self.links.values(), newcomer]}
        told = [plain(newcomer, frame) for frame in _frames(self.counts, links, whole=True)]
        return told + self._links({str(newcomer.uid): newcomer.instance})

    def unlinked(self, leaving: Attachment) -> list[Instruction]:
        return [one for one in self._links({str(leaving.uid): None}) if one.recipients != _recipient(leaving)]

    def _links(self, links: dict[str, str | None]) -> list[Instruction]:
        frame = _frame({"links": links})
        return [plain(link, frame) for link in self.links.values()]


def _recipient(attachment: Attachment) -> bytes:
    return attachment.recipient.to_bytes(8, "little")


def _frame(facts: dict[str, object]) -> bytes:
    return encode_frame(kinds.KIND_INTEREST, 0, 0, 0, 0, b"", b"", _encode(facts))


def _frames(
    told: dict[str, dict[str, int]], links: dict[str, str] | None = None, whole: bool = False
) -> Iterator[bytes]:
    """In pieces; of the whole, the first says `whole` and the last says `done`."""
    flat = [(what, key, count) for what, counts in told.items() for key, count in counts.items()]
    first: dict[str, object] = {"whole": True, "links": links} if whole else {}
    for at in range(0, max(len(flat), 1), PIECE_ENTRIES):
        facts, first = first, {}
        piece: dict[str, dict[str, int]] = {}
        for what, key, count in flat[at : at + PIECE_ENTRIES]:
            piece.setdefault(what, {})[key] = count
        facts.update(piece)
        if whole and at + PIECE_ENTRIES >= len(flat):
            facts["done"] = True
        yield _frame(facts)


def path_of(section: bytes) -> list[str]:
    """The servers a message has come through, as a link says it."""
    for key, value in decode_headers(section):
        if key == PATH_HEADER:
            return value.decode(errors="replace").split(",")
    return []
