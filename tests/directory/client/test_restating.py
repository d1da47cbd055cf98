"""Links in pieces: together they say what all of them at once would say."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead.directory.operations import Restate, read
from fairlead.directory.restating import PIECE_BYTES, pieces
from fairlead.directory.rows import AppKind, Link

Row = tuple[str, AppKind, Link]


def row(identity: str) -> Row:
    return "AX", "dynamic", Link(identity=identity, broker="A", label="AX-1", client="x" * (len(identity) % 7))


def covers(piece: Restate, identity: str) -> bool:
    return piece.above < identity and (not piece.upto or identity <= piece.upto)


@given(st.lists(st.text("0123456789abcdef", min_size=1, max_size=8), unique=True, max_size=40), st.integers(1, 900))
def test_each_identity_is_in_the_range_of_exactly_one_piece(identities: list[str], size: int) -> None:
    said = list(pieces("A", "me", map(row, identities), size))
    assert [link[2].identity for piece in said for link in piece.links] == sorted(identities)
    for piece in said:
        assert all(covers(piece, link[2].identity) for link in piece.links)
    for identity in [*identities, "", "zz", "5"]:
        assert sum(covers(piece, identity) for piece in said) == (1 if identity else 0)


def test_no_link_is_one_piece_for_everything() -> None:
    (piece,) = pieces("A", "me", [])
    assert (piece.links, piece.above, piece.upto) == ((), "", "")


def test_two_thousand_links_fit_into_commands() -> None:
    links = [row(f"{number:032x}") for number in range(2000)]
    said = list(pieces("A", "me", links))
    assert len(said) > 1
    for piece in said:
        encoded = msgspec.json.encode({"do": "directory", "op": "restate", **msgspec.structs.asdict(piece)})
        assert len(encoded) < PIECE_BYTES + 512
        assert read("restate", msgspec.to_builtins(piece)) == piece
