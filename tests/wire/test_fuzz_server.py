"""Any bytes at all for a connection manager: it never crashes, hangs, leaks a slot or harms a bystander.

Both twins get the same bytes and have to agree: on what the router is told, what the client hears, and how it ends.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.broker.answers import PREFACE, frame
from tests.wire.fuzzing import play_both

FIXED = struct.Struct("<IBBHIIQQ")
KINDS = [*range(0x0D), *range(0x1F, 0x27), 0x2F, 0x41, 0x44, 0xFF]
FRAGMENTED = 0x08

quiet = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

texts = st.sampled_from([b"t", b"a.b", b"\xff", b"\0", b"a\x1fb", b"x" * 600, b"y" * 3000, b""])
bodies = st.one_of(st.binary(max_size=40), st.integers(0, 69_000).map(bytes))
whole = st.builds(
    frame,
    st.sampled_from(KINDS),
    flags=st.integers(0, 255),
    topic=texts,
    headers=st.sampled_from([b"", b"\x01k\x01\x00v", b"\xff", bytes(3000)]),
    body=bodies,
    number=st.integers(0, 2**32 - 1),
    correlation=st.integers(0, 2**64 - 1),
    peer=st.integers(0, 2**64 - 1),
)
lying = st.builds(
    FIXED.pack,
    st.one_of(st.integers(0, 200), st.integers(0, 2**32 - 1)),
    st.sampled_from(KINDS),
    st.integers(0, 255),
    st.one_of(st.integers(0, 100), st.integers(0, 65535)),
    st.one_of(st.integers(0, 100), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.just(0),
)


def fragments(total: int, first: int, pieces: list[int]) -> bytes:
    data = frame(0x20, flags=FRAGMENTED, topic=b"t", body=struct.pack("<Q", total) + bytes(first))
    return data + b"".join(frame(0x2F, body=bytes(size)) for size in pieces)


fragmented = st.one_of(
    st.builds(
        fragments,
        st.one_of(st.integers(0, 400_000), st.integers(0, 2**64 - 1)),
        st.integers(0, 60_000),
        st.lists(st.integers(0, 60_000), max_size=4),
    ),
    st.lists(st.integers(1, 50_000), min_size=1, max_size=5).map(lambda ps: fragments(sum(ps) + 5, 5, ps)),
)
mutated = st.tuples(whole, st.integers(0, 10_000), st.integers(0, 255)).map(
    lambda m: m[0][: m[1] % len(m[0])] + bytes([m[2]]) + m[0][m[1] % len(m[0]) + 1 :]
)


class Stream(bytes):
    """Bytes that show themselves packed, since most are zeros: `Stream.unpacked("...")` gives them back."""

    def __repr__(self) -> str:
        return f'Stream.unpacked("{b64encode(zlib.compress(self)).decode()}")'

    @classmethod
    def unpacked(cls, text: str) -> Stream:
        return cls(zlib.decompress(b64decode(text)))


streams = st.lists(
    st.one_of(whole, whole, lying, fragmented, mutated, st.binary(max_size=100)).map(Stream), max_size=12
).map(lambda frames: Stream(b"".join(frames)))
cuts = st.lists(st.integers(1, 40_000), max_size=8)


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """The same bytes in other pieces."""
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    return [piece for piece in (*pieces, stream) if piece]


@quiet
@given(streams, cuts)
@example(Stream(frame(0x20, topic=b"t", body=b"x") * 12), [1, 31, 1])
def test_any_frames_on_a_live_connection(stream: Stream, sizes: list[int]) -> None:
    play_both(cut(stream, sizes))


@quiet
@given(st.sampled_from([b"", PREFACE, PREFACE[:4], b"FLD\n\x02\0\0\0"]), streams, cuts)
def test_any_bytes_before_the_handshake(first: bytes, stream: Stream, sizes: list[int]) -> None:
    outcome = play_both(cut(first + stream, sizes), live=False)
    assert outcome.taken == []


@quiet
@given(st.binary(max_size=3000), cuts)
def test_noise_on_a_live_connection(noise: bytes, sizes: list[int]) -> None:
    play_both(cut(noise, sizes))
