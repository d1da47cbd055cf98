"""The header byte for byte, and bodies and streams of packets, whole and broken."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tunnel import packets
from fairlead.tunnel.packets import Abort, BadPacket, Body, Kind, Packet, cut, encode, is_whole, split

# version type size | id | sequence | window reserved | (CRC32C) | payload
LITERAL = {
    (1, "data"): ("0001 0003 0000001d 0a0b0c0d fffffffe 0000 0000", "", "666169726c65616421"),
    (1, "ack"): ("0001 0004 00000014 00000007 00000046 001e 0000", "", ""),
    (1, "init"): ("0001 0001 00000014 00000000 00000000 0100 0000", "", ""),
    (2, "data"): ("0002 0003 00000021 0a0b0c0d fffffffe 0000 0000", "12466c9a", "666169726c65616421"),
    (2, "ack"): ("0002 0004 00000018 00000007 00000046 001e 0000", "94a98fa5", ""),
    (2, "init"): ("0002 0001 00000018 00000000 00000000 0100 0000", "33846b8b", ""),
}
MEANING = {
    "data": (Kind.DATA, 0x0A0B0C0D, 2**32 - 2, 0, b"fairlead!"),
    "ack": (Kind.ACK, 7, 70, 30, b""),
    "init": (Kind.CONN_INIT, 0, 0, 256, b""),
}


@pytest.mark.requirement("TUN-12")
@pytest.mark.requirement("TUN-20", state="half", note="what a flipped bit does is tested with the ends")
@pytest.mark.parametrize(("version", "name"), LITERAL)
def test_the_header_byte_for_byte(version: int, name: str) -> None:
    raw = bytes.fromhex("".join(LITERAL[version, name]))
    meaning = MEANING[name]
    assert encode(*meaning, version=version) == raw
    assert split(raw) == Body([Packet(*meaning, version, raw)])
    assert split(raw, with_raw=False) == Body([Packet(*meaning, version)])
    stream = bytearray(raw)
    assert cut(stream) == Body([Packet(*meaning, version, raw)])
    assert stream == b""


@pytest.mark.requirement("TUN-15")
def test_the_numbers_of_the_types() -> None:
    assert [(kind.name, kind.value) for kind in Kind] == [
        ("CONN_INIT", 1),
        ("CONN_INIT_ACK", 2),
        ("DATA", 3),
        ("ACK", 4),
        ("CONN_OPTION", 5),
        ("CONN_CLOSE", 6),
        ("CONN_ABORT", 7),
        ("LINK_INIT", 8),
        ("LINK_INIT_ACK", 9),
        ("PING", 10),
        ("PONG", 11),
    ]
    assert sorted(packets.SEQUENCED) == [3, 5, 6]


def test_types_nobody_knows_pass() -> None:
    raw = encode(77, 1, 2, 3, b"?")
    assert split(raw).packets == [Packet(77, 1, 2, 3, b"?", 2, raw)]


@pytest.mark.requirement("TUN-20", state="half", note="what the ends make of it is tested with them")
def test_every_single_flipped_bit_is_found_and_what_follows_is_kept() -> None:
    good = encode(Kind.DATA, 7, 1, 0, b"payload")
    after = encode(Kind.ACK, 7, 3, 9)
    for bit in range(len(good) * 8):
        if 4 <= bit // 8 < 8:
            continue  # the size
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        body = split(bytes(damaged) + after)
        assert (body.damaged, [found.raw for found in body.packets], body.fault) == (1, [after], "")
        assert not is_whole(bytes(damaged))
    assert is_whole(good)


def test_a_flipped_version_of_the_longest_packet_spoils_no_other() -> None:
    longest = bytearray(encode(Kind.DATA, 7, 1, 0, bytes(packets.PAYLOAD_MAX)))
    longest[1] ^= 0x40
    after = encode(Kind.ACK, 7, 3, 9)
    assert [found.raw for found in split(bytes(longest) + after).packets] == [after]


def test_version_1_has_no_checksum_and_ignores_the_reserved_field() -> None:
    raw = bytearray(encode(Kind.DATA, 7, 1, 0, b"x", version=1))
    raw[18:20] = b"\xab\xcd"
    assert split(bytes(raw)).packets[0].payload == b"x"


@pytest.mark.requirement("TUN-13", state="half", note="closing the link and logging it are the link's part")
@pytest.mark.parametrize("size", [0, 4, 19, 23, 24 + packets.PAYLOAD_MAX + 1, 2**31, 2**32 - 1])
def test_a_size_no_packet_has(size: int) -> None:
    first = encode(Kind.ACK, 7, 1, 1)
    bad = bytearray(encode(Kind.DATA, 7, 1, 0, b"abc"))
    bad[4:8] = size.to_bytes(4, "big")
    body = split(first + bytes(bad) + first)
    assert [found.raw for found in body.packets] == [first]
    assert body.fault == f"a packet cannot have {size} bytes"
    tracemalloc.start()
    try:
        with pytest.raises(BadPacket, match=f"{size} bytes"):
            cut(bytearray(first + bad))
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_a_body_that_ends_inside_a_packet() -> None:
    raw = encode(Kind.DATA, 7, 1, 0, b"abc")
    for length in range(1, len(raw)):
        body = split(raw + raw[:length])
        assert (len(body.packets), body.rest, body.fault) == (1, length, "the last packet is cut off")
    assert split(b"") == Body([])


def test_a_stream_in_pieces_of_any_size() -> None:
    random = Random(3)
    raws = [
        encode(Kind.DATA, 7, number, 0, random.randbytes(random.randrange(300)), version=1 + number % 2)
        for number in range(200)
    ]
    whole, stream, found = b"".join(raws), bytearray(), []
    position = 0
    while position < len(whole):
        size = random.randint(1, 400)
        stream += whole[position : position + size]
        position += size
        found += cut(stream).packets
    assert [each.raw for each in found] == raws
    assert stream == b""


def test_a_stream_in_small_pieces_is_not_copied_each_time() -> None:
    """A long packet that comes byte by byte: what is not whole is looked at and left where it is."""
    raw = encode(Kind.DATA, 7, 1, 0, bytes(32_000))
    stream = bytearray(raw[:31_000])
    tracemalloc.start()
    try:
        for byte in raw[31_000:-1]:
            stream.append(byte)
            assert cut(stream).packets == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000  # 1000 copies of 32 kB were 32 MB in all, one at a time: the stream itself may grow once
    stream.append(raw[-1])
    assert cut(stream).packets[0].raw == raw


@pytest.mark.parametrize("reason", [Abort(1, ""), Abort(65535, "für"), Abort(6, "x" * 1000)])
def test_the_payload_of_an_abort(reason: Abort) -> None:
    assert Abort.of(reason.payload()) == reason


def test_a_very_long_reason_is_cut() -> None:
    assert len(Abort(1, "ü" * 100_000).payload()) == 2 + packets.REASON_MAX
    assert len(Abort.of(b"\x00\x01" + b"x" * 30_000).text) == packets.REASON_MAX


# -- hostile bytes --------------------------------------------------------------------------------------------------

HEADERS = st.builds(
    lambda version, kind, size, rest: (
        version.to_bytes(2, "big") + kind.to_bytes(2, "big") + size.to_bytes(4, "big") + rest
    ),
    st.sampled_from([0, 1, 2, 3, 99, 65535]),
    st.integers(0, 20),
    st.sampled_from([0, 19, 20, 23, 24, 25, 60, 100, 5000, 2**31]),
    st.binary(min_size=12, max_size=90),
)
GOOD = st.builds(
    encode,
    st.integers(0, 65535),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 65535),
    st.binary(max_size=40),
    st.sampled_from([1, 2]),
)
BYTES = st.lists(st.one_of(HEADERS, GOOD, st.binary(max_size=60)), max_size=8).map(b"".join)


@pytest.mark.requirement("TUN-22", state="half", note="the push URL is tested with the gateway")
@given(BYTES, st.integers(0, 5000))
def test_any_bytes_as_a_body(body: bytes, payload_max: int) -> None:
    found = split(body, payload_max)
    assert sum(len(each.raw) for each in found.packets) + found.rest <= len(body)
    assert found.rest == 0 or found.fault
    for each in found.packets:
        assert len(each.payload) <= payload_max
        assert each.version in (1, 2)
        again = encode(*each[:5], version=each.version)
        assert again == each.raw or each.raw[18:20] != b"\0\0"


@given(BYTES, st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_any_bytes_as_a_stream_are_the_same_in_whatever_pieces_they_come(body: bytes, sizes: list[int]) -> None:
    whole = split(body)
    stream, found, at, turn = bytearray(), [], 0, 0
    try:
        while at < len(body):
            size = sizes[turn % len(sizes)]
            stream += body[at : at + size]
            at, turn = at + size, turn + 1
            found += cut(stream).packets
    except BadPacket:
        assert whole.fault not in ("", packets.CUT_OFF)
    else:
        assert found == whole.packets
        assert len(stream) == whole.rest
