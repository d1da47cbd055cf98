"""The checking itself: a stream with something lost, doubled or moved does not pass."""

from __future__ import annotations

from random import Random

import pytest

from tests.tunnel.hostile.numbered import LINE, Check, digest, numbered

WHOLE = numbered(7, 0, 20 * LINE)


def check(data: bytes, pieces: int = 3000) -> Check:
    found = Check(7)
    for at in range(0, len(data), pieces):
        found.take(data[at : at + pieces])
    return found


@pytest.mark.parametrize("pieces", [1, 7, 1000, 1024, 5000, 100_000])
def test_the_right_stream_passes_in_any_pieces(pieces: int) -> None:
    found = check(WHOLE, pieces)
    assert (found.fault, found.position, found.sum.digest()) == ("", len(WHOLE), digest(7, len(WHOLE)))


def test_any_part_is_the_same_as_in_the_whole() -> None:
    chance = Random(1)
    for _ in range(200):
        at, size = chance.randrange(len(WHOLE)), chance.randrange(5000)
        assert numbered(7, at, size)[: len(WHOLE) - at] == WHOLE[at : at + size]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (WHOLE[: 5 * LINE] + WHOLE[6 * LINE :], "byte 5"),
        (WHOLE[: 5 * LINE] + WHOLE[4 * LINE :], "again"),
        (
            WHOLE[: 5 * LINE] + WHOLE[6 * LINE : 7 * LINE] + WHOLE[5 * LINE : 6 * LINE] + WHOLE[7 * LINE :],
            "line 6 came",
        ),
        (WHOLE[:5000] + bytes([WHOLE[5000] ^ 1]) + WHOLE[5001:], "byte 5000"),
        (WHOLE[:5000] + WHOLE[5001:], "byte 50"),
        (numbered(8, 0, 20 * LINE), "byte 7"),
    ],
    ids=["lost", "doubled", "moved", "one bit", "one byte lost", "another stream"],
)
def test_what_is_wrong_is_named(wrong: bytes, words: str) -> None:
    assert words in check(wrong).fault
