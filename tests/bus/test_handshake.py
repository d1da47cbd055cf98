"""Who may have a line: the handshake and the seals, without sockets."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.bus.frames import Malformed, pack, parse
from fairlead.bus.handshake import PROOF_BYTES, Handshake, Hello

SECRET = b"known to the nodes of this cluster"


def end(dialled: bool, secret: bytes | None = SECRET, **more: object) -> Handshake:
    values: dict[str, object] = {
        "cluster": "c",
        "bus": "main",
        "node": "a" if dialled else "b",
        "start": 1,
        "role": "member",
        "address": "127.0.0.1:1",
        "nonce": os.urandom(32),
        "sealed": secret is not None,
        **more,
    }
    return Handshake(Hello(**values), secret, dialled=dialled)  # type: ignore[arg-type]


def talk(dialler: Handshake, other: Handshake, piece: int = 1000) -> bytes:
    """What the dialler has said, in pieces of that size."""
    said = bytearray()
    for _ in range(4):
        for source, target in ((dialler, other), (other, dialler)):
            data = b"".join(source.out)
            source.out.clear()
            if source is dialler:
                said += data
            rest = b""
            for at in range(0, len(data), piece):
                rest += data[at : at + piece]
                rest = rest[target.take(memoryview(rest)) :]
            assert not rest
    return bytes(said)


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_two_that_belong_together_find_each_other(secret: bytes | None, piece: int) -> None:
    dialler, other = end(True, secret), end(False, secret)
    talk(dialler, other, piece)
    assert dialler.done
    assert other.done
    assert dialler.theirs is not None
    assert dialler.theirs.node == "b"
    seal, check = dialler.sealing, other.unsealing
    body = memoryview(b"block")
    assert check.fits(memoryview(seal.mark([body])), body)
    assert other.unsealing.size == (16 if secret else 0)


@pytest.mark.requirement("CLU-207")
def test_seals_fit_one_block_at_one_place_of_one_line_in_one_direction() -> None:
    dialler, other = end(True), end(False)
    talk(dialler, other)
    body = memoryview(b"block")
    first = memoryview(dialler.sealing.mark([body]))
    assert other.unsealing.fits(first, body)
    assert not other.unsealing.fits(first, memoryview(b"blocK"))
    assert not dialler.unsealing.fits(first, body), "not thrown back"
    again = other.unsealing
    assert again.fits(first, body)
    assert not again.fits(first, body), "not a second time"
    next_dialler, next_other = end(True), end(False)
    talk(next_dialler, next_other)
    assert not next_other.unsealing.fits(first, body), "not on another line"


@pytest.mark.requirement("CLU-207")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"secret": b"another"}, "secret"),
        ({"secret": None}, "secret"),
        ({"cluster": "other"}, "cluster"),
        ({"bus": "other"}, "bus"),
        ({"role": "king"}, "impossible"),
        ({"node": "x" * 65}, "impossible"),
        ({"nonce": b"short"}, "impossible"),
    ],
)
def test_who_does_not_belong_here_is_refused(more: dict[str, object], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        talk(end(True, **more), end(False))  # type: ignore[arg-type]


@pytest.mark.requirement("CLU-207")
def test_a_recorded_call_ends_at_the_proof() -> None:
    dialler, other = end(True), end(False)
    said = talk(dialler, other)
    again = end(False)
    used = again.take(memoryview(said[:-PROOF_BYTES]))
    assert again.out == [again._hello], "a stranger gets no proof"
    with pytest.raises(Malformed, match="secret"):
        again.take(memoryview(said[used:]))


def test_our_own_words_thrown_back_are_known() -> None:
    dialler = end(True)
    with pytest.raises(Malformed, match="came back"):
        dialler.take(memoryview(b"".join(dialler.out)))


@given(st.binary(max_size=300))
def test_hostile_bytes_are_refused_or_waited_for(data: bytes) -> None:
    for handshake in (end(True), end(False)):
        try:
            assert handshake.take(memoryview(data)) == 0
        except Malformed:
            pass
        assert not handshake.done


@given(st.binary(max_size=300))
def test_hostile_blocks_are_parsed_or_refused(data: bytes) -> None:
    try:
        total = sum(
            len(channel) + len(port) + len(content) + 8 for _, channel, port, content in parse(memoryview(data))
        )
    except Malformed:
        return
    assert total == len(data)


def test_a_frame_is_what_was_packed() -> None:
    for size in (0, 10, 100_000):
        pieces, length = pack(2, "channel", "pört", [b"x" * size, memoryview(b"y"), bytearray(b"z")])
        data = b"".join(pieces)
        assert len(data) == length
        ((kind, channel, port, content),) = parse(memoryview(data))
        assert (kind, channel, port.decode(), bytes(content)) == (2, b"channel", "pört", b"x" * size + b"yz")
    with pytest.raises(ValueError, match="255 bytes"):
        pack(2, "c" * 256)
