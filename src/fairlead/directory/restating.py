"""All links of a broker in pieces that fit into a COMMAND each (DIR-21).

A piece speaks for a range of identities, so that each is right by itself, and in whatever order they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.directory.operations import Restate
from fairlead.directory.rows import AppKind, Link

__all__ = ["PIECE_BYTES", "pieces"]

PIECE_BYTES = 48 * 1024


def pieces(
    name: str, identity: str, links: Iterable[tuple[str, AppKind, Link]], piece_bytes: int = PIECE_BYTES
) -> Iterator[Restate]:
    """What to say, one after the other: at least one piece, also if there is no link."""
    encode = msgspec.json.encode
    above, size = "", 0
    gathered: list[tuple[str, AppKind, Link]] = []
    for row in sorted(links, key=lambda row: row[2].identity):
        length = len(encode(row)) + 1
        if gathered and size + length > piece_bytes and gathered[-1][2].identity != row[2].identity:
            upto = gathered[-1][2].identity
            yield Restate(name=name, identity=identity, links=tuple(gathered), above=above, upto=upto)
            above, size, gathered = upto, 0, []
        gathered.append(row)
        size += length
    yield Restate(name=name, identity=identity, links=tuple(gathered), above=above, upto="")
