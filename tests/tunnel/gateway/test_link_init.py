"""The payloads of LINK_INIT and LINK_INIT_ACK, byte for byte, and everything that is none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import RemoteProtocolError
from fairlead.tunnel.link_init import LINK_PAYLOAD_MAX, LINK_TUNNELS_MAX, LinkInit, LinkInitAck, LinkTunnel

START = bytes(range(16))
VERIFIER = bytes(range(32, 64))

VERSION_1 = bytes.fromhex(
    "0002 6231"  # server id
    "00000002"  # tunnels
    "00000007 0000001e"
    "ffffffff fffffffe"
)
VERSION_2 = bytes.fromhex(
    "0002 6231"
    "0003 616263"  # authentication
    "000102030405060708090a0b0c0d0e0f"  # start id
    "00000002"
    "00000007 0000001e 0000005a 202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
    "ffffffff fffffffe 00000000 0000000000000000000000000000000000000000000000000000000000000000"
)


@pytest.mark.requirement(
    "TUN-44", state="half", note="layout and the gateway's part; captures of a broker's links are shown elsewhere"
)
def test_link_init_is_laid_out_as_specified() -> None:
    tunnels = [LinkTunnel(7, 30, 90, VERIFIER), LinkTunnel(2**32 - 1, -2)]
    assert LinkInit("b1", b"abc", START, tunnels).encode() == VERSION_2
    assert LinkInit("b1", b"abc", START, tunnels).encode(1) == VERSION_1
    assert LinkInit.decode(VERSION_2) == LinkInit("b1", b"abc", START, tunnels)
    assert LinkInit.decode(VERSION_1, 1) == LinkInit("b1", tunnels=[LinkTunnel(7, 30), LinkTunnel(2**32 - 1, -2)])


def test_link_init_ack_is_laid_out_as_specified() -> None:
    assert LinkInitAck([7, 8]).encode() == bytes.fromhex("00000002 00000007 00000008")
    assert LinkInitAck.decode(LinkInitAck([1, 2**32 - 1]).encode()) == LinkInitAck([1, 2**32 - 1])
    assert LinkInitAck.decode(LinkInitAck().encode()) == LinkInitAck([])


@pytest.mark.parametrize("whole", [(VERSION_1, 1), (VERSION_2, 2)])
def test_whatever_is_cut_off_or_too_long_is_refused(whole: tuple[bytes, int]) -> None:
    payload, version = whole
    for size in range(len(payload)):
        with pytest.raises(RemoteProtocolError):
            LinkInit.decode(payload[:size], version)
    with pytest.raises(RemoteProtocolError):
        LinkInit.decode(payload + b"\0", version)


@pytest.mark.requirement("TUN-45")
@pytest.mark.parametrize(
    "server", [b"", b"\xff\xfe", b"x" * 256, b"x" * 65535], ids=["empty", "not UTF-8", "256 bytes", "65535 bytes"]
)
def test_a_server_id_has_1_to_255_bytes_of_utf8(server: bytes) -> None:
    payload = len(server).to_bytes(2, "big") + server + VERSION_2[4:]
    with pytest.raises(RemoteProtocolError, match="server id"):
        LinkInit.decode(payload)
    longest = LinkInit("é" * 127 + "x", b"", START)
    assert LinkInit.decode(longest.encode()) == longest._replace(tunnels=[])


@pytest.mark.parametrize(
    "wrong",
    [
        LinkInit("", b"", START),
        LinkInit("x" * 256, b"", START),
        LinkInit("b1", b"", b"short"),
        LinkInit("b1", b"", START, [LinkTunnel(1, 0, 0, b"short")]),
    ],
)
def test_nothing_is_encoded_that_would_be_refused(wrong: LinkInit) -> None:
    with pytest.raises(ValueError):
        wrong.encode()


@pytest.mark.parametrize("ids", [[0], [5, 6, 5]])
def test_a_tunnel_has_an_id_of_its_own(ids: list[int]) -> None:
    payload = LinkInit("b1", b"", START, [LinkTunnel(one) for one in ids]).encode()
    with pytest.raises(RemoteProtocolError, match="twice"):
        LinkInit.decode(payload)


def test_a_count_beyond_everything_needs_no_memory() -> None:
    payload = LinkInit("b1", b"", START).encode()[:-4] + b"\xff" * 4
    with pytest.raises(RemoteProtocolError, match="4294967295"):
        LinkInit.decode(payload)
    with pytest.raises(RemoteProtocolError):
        LinkInitAck.decode(b"\xff" * 4)


@settings(deadline=None)
@given(payload=st.binary(max_size=400), version=st.sampled_from([1, 2]))
def test_arbitrary_bytes_are_decoded_or_refused(payload: bytes, version: int) -> None:
    for decode in (lambda: LinkInit.decode(payload, version), lambda: LinkInitAck.decode(payload)):
        try:
            decode()
        except RemoteProtocolError:
            pass


def test_the_longest_link_init_fits() -> None:
    tunnels = [LinkTunnel(number + 1, 0, 0, VERIFIER) for number in range(LINK_TUNNELS_MAX)]
    longest = LinkInit("x" * 255, b"a" * 65_535, START, tunnels).encode()
    assert LINK_PAYLOAD_MAX - 4000 < len(longest) <= LINK_PAYLOAD_MAX
    assert len(LinkInit.decode(longest).tunnels) == LINK_TUNNELS_MAX > 20_000


tunnels = st.lists(
    st.builds(
        LinkTunnel,
        st.integers(1, 2**32 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 2**32 - 1),
        st.one_of(st.just(b""), st.binary(min_size=32, max_size=32).filter(any)),
    ),
    unique_by=lambda one: one.connection_id,
    max_size=20,
)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=60), st.binary(max_size=300), st.binary(min_size=16, max_size=16), tunnels)
def test_what_is_encoded_is_decoded(server: str, auth: bytes, start: bytes, tunnels: list[LinkTunnel]) -> None:
    said = LinkInit(server, auth, start, tunnels)
    assert LinkInit.decode(said.encode()) == said
