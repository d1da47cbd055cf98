"""Frames of a link: both twins find the same ones, and hostile bytes neither crash nor hang."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import demux
from fairlead.cluster.outgoing import Link, chunked
from fairlead.errors import RemoteProtocolError
from fairlead.wire.durable import CHUNK, ENVELOPE

TWINS: list[ModuleType] = [demux]
try:
    from fairlead.cluster import _demux

    TWINS.append(_demux)
except ImportError:  # not built
    pass

FRAMES = st.lists(
    st.tuples(
        st.integers(1, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=20),
        st.binary(max_size=40),
        st.binary(max_size=200),
    ),
    max_size=8,
)


def bytes_of(frames: list[tuple[int, int, int, int, bytes, bytes, bytes]]) -> bytearray:
    link = Link(1)
    for uid, index, kind, number, topic, headers, body in frames:
        link.frame(uid, index, kind, number=number, correlation=7, peer=8, topic=topic, headers=headers, body=body)
    data = bytearray(b"".join(link.out))
    assert link.bytes == len(data)
    return data


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: str(twin.__name__))
@given(frames=FRAMES, cut=st.integers(0, 300))
def test_what_was_framed_is_found(
    twin: ModuleType, frames: list[tuple[int, int, int, int, bytes, bytes, bytes]], cut: int
) -> None:
    data = bytes_of(frames)
    end = max(0, len(data) - cut)
    found, used = twin.scan(data, 0, end)
    assert used <= end
    for (uid, index, kind, number, topic, headers, body), one in zip(frames, found, strict=False):
        assert one[:7] == (uid, index, kind, 0, number, 7, 8)
        assert data[one[7] : one[8]] == topic
        assert data[one[8] : one[9]] == headers
        assert data[one[9] : one[10]] == body
    if cut == 0:
        assert len(found) == len(frames)
        assert used == len(data)
    rest, end_of_rest = twin.scan(data, used, len(data))
    assert len(found) + len(rest) == len(frames)
    assert end_of_rest == len(data)


@given(st.binary(max_size=400))
def test_the_twins_agree_on_any_bytes(data: bytes) -> None:
    answers = []
    for twin in TWINS:
        try:
            answers.append(twin.scan(bytearray(data), 0, len(data)))
        except RemoteProtocolError as error:
            answers.append(str(error))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: str(twin.__name__))
@pytest.mark.parametrize("whole", [0, 47, demux.LINK_FRAME_MAX + 1, 2**32 - 1])
def test_an_impossible_envelope_ends_the_link(twin: ModuleType, whole: int) -> None:
    data = bytearray(ENVELOPE.pack(whole, 1, 1) + bytes(64))
    with pytest.raises(RemoteProtocolError):
        twin.scan(data, 0, len(data))


@pytest.mark.requirement("CLU-59")
@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: str(twin.__name__))
def test_a_malformed_frame_is_told_and_the_next_one_found(twin: ModuleType) -> None:
    data = bytes_of([(5, 1, 0x61, 2, b"", b"", b"x" * 10), (5, 1, 0x61, 3, b"", b"", b"y")])
    struct.pack_into("<I", data, 16, 31)  # the frame's own length
    found, used = twin.scan(data, 0, len(data))
    assert [one[2] for one in found] == [demux.MALFORMED, 0x61]
    assert used == len(data)
    data = bytes_of([(5, 1, 0x61, 2, b"", b"", b"x" * 10)])
    struct.pack_into("<I", data, 16 + 8, 2**32 - 1)  # the length of its headers
    assert twin.scan(data, 0, len(data))[0][0][2] == demux.MALFORMED


def test_a_delivery_is_split_between_chunks() -> None:
    pieces: list[bytes] = []
    for order in range(10):
        entries = b"e" * 300
        pieces.append(CHUNK.pack(order, 1, 1, 0, 0, bytes(20), len(entries), 0))
        pieces += [entries[:100], entries[100:]]
    groups = list(chunked(pieces, most=1000))
    assert b"".join(b"".join(group) for group, _ in groups) == b"".join(pieces)
    for group, size in groups:
        assert size == sum(map(len, group)) <= 1000
        assert len(group[0]) == CHUNK.size
