"""What makes tunnels fast must not change what travels: packets of any pieces, answers in one write, memory kept."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from typing import Any, cast

import pytest

from fairlead.tunnel.edge.gateway.pieces import Pieces
from fairlead.tunnel.edge.gateway.replies import Gathered
from fairlead.tunnel.edge.widths import widen
from fairlead.tunnel.packets import BadPacket, Kind, Packet, cut, encode, split

SENT = [encode(Kind.DATA, 7, number, 0, bytes([number]) * (number * 97 % 3000)) for number in range(1, 40)]
SENT.insert(5, encode(Kind.ACK, 7, 3, 256))


def test_packets_are_the_same_from_whatever_pieces_they_come_in() -> None:
    whole = b"".join(SENT)
    chance = random.Random(4)
    for longest in (1, 7, 25, 1000, 5000, len(whole)):
        stream, found, at = bytearray(), list[Packet](), 0
        while at < len(whole):
            size = chance.randint(1, longest)
            body = cut(stream, data=whole[at : at + size])
            assert body.rest == len(stream)
            found += body.packets
            at += size
        assert found == split(whole).packets
        assert not stream


def test_what_waits_of_a_packet_is_never_more_than_that_packet() -> None:
    stream = bytearray(SENT[10][:30])
    body = cut(stream, data=SENT[10][30:] + SENT[11] + SENT[12][:50])
    assert [packet.raw for packet in body.packets] == SENT[10:12]
    assert stream == SENT[12][:50]


def test_a_damaged_packet_is_left_out_and_an_impossible_one_ends_the_stream() -> None:
    damaged = bytearray(SENT[20])
    damaged[30] ^= 1
    body = cut(bytearray(SENT[19][:9]), data=SENT[19][9:] + damaged + SENT[21], with_data=False)
    assert ([packet.raw for packet in body.packets], body.damaged) == ([SENT[19], SENT[21]], 1)
    for waiting in (0, 4, 20):
        bad = SENT[0][:4] + b"\xff" * 40
        with pytest.raises(BadPacket):
            cut(bytearray(bad[:waiting]), data=bad[waiting:])


def test_a_gateway_has_data_once_and_everything_else_whole() -> None:
    option = encode(Kind.CONN_OPTION, 7, 9, 0, bytes(8))
    found = split(SENT[3] + option, with_data=False).packets
    assert [(packet.raw, packet.payload) for packet in found] == [(SENT[3], b""), (option, bytes(8))]


class Tap:
    def __init__(self) -> None:
        self.said: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.said.append(data)

    def writelines(self, parts: Any) -> None:
        self.said.append(b"".join(parts))

    def close(self) -> None:
        self.said.append(b"closed")


def test_a_head_leaves_with_its_body_or_a_moment_later_alone() -> None:
    async def main() -> None:
        tap = Tap()
        answer = Gathered(cast(asyncio.Transport, tap), asyncio.get_running_loop())
        answer.write(b"head")
        answer.write(b"body")
        answer.write(b"head")
        answer.write(b"")
        assert tap.said == [b"headbody", b"head"]
        answer.write(b"100 Continue")
        assert len(tap.said) == 2
        await asyncio.sleep(0)
        assert tap.said[2:] == [b"100 Continue"]
        answer.write(b"last")
        answer.close()
        await asyncio.sleep(0)
        assert tap.said[3:] == [b"last", b"closed"]

    asyncio.run(main())


def test_one_piece_of_a_body_is_not_copied() -> None:
    pieces, piece = Pieces(), b"x" * 100
    assert not pieces
    pieces += piece
    assert bytes(pieces) is piece
    pieces += b"yz"
    assert (len(pieces), bytes(pieces)) == (102, piece + b"yz")


def test_links_over_unix_sockets_are_widened() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
            before = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            most = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            widen(transport)
            now = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert before <= now == most
            transport.close()

    asyncio.run(main())


FAULTS = """
import resource, sys
from fairlead.tunnel.edge.heap import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def bodies(count):
    for _ in range(count):
        parts = [b"x" * (256 << 10) for _ in range(4)]
        whole = b"".join(parts)
        packets = [whole[at : at + 32768] for at in range(0, len(whole), 32768)]
        b"".join(packets)
bodies(5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bodies(100)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc, whose allocator it is about")
def test_freed_memory_is_kept_for_the_next_body() -> None:
    given, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True).stdout)
        for how in ("given back", "kept")
    )
    assert kept < 1000 < given, "page faults of a hundred bodies"
