"""What an engine does before it reads anything: whose connection is this? Both engines, over real TCP."""

from __future__ import annotations

import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.answers import PREFACE
from fairlead.broker.edge.tls import TlsFilter, make_context
from tests.broker.rig import Client, Rig
from tests.broker.test_traffic import ENGINES
from tests.processes.test_access import certificate
from tests.wire.test_hello import client_hello, in_records

Make = Callable[..., Rig]
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture(params=sorted(ENGINES))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Rig] = []

    def build(**how: Any) -> Rig:
        made.append(Rig(*ENGINES[request.param], **{"tunnels": True, **how}))
        return made[-1]

    yield build
    for one in made:
        one.close()


def dial(rig: Rig) -> Client:
    """A client over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    index = len(rig.clients)
    uid, rig.next_uid = rig.next_uid, rig.next_uid + 1
    rig.traffic.adopt(index, uid, ours.detach(), rig.now)
    client = rig.clients[index] = Client(index, uid, theirs)
    return client


def until(rig: Rig, what: str) -> Any:
    """The event of this kind, as soon as it comes."""
    for _ in range(100):
        if found := [event for event in rig.events if event[1] == what]:
            return found[0]
        rig.turn(timeout_ms=50)
    raise AssertionError(f"no {what}: {rig.events}")


@pytest.mark.parametrize("size", [1, 3, len(REQUEST)])
def test_http_is_reported_and_not_a_byte_of_it_is_taken(make: Make, size: int) -> None:
    rig = make()
    client = dial(rig)
    for at in range(0, len(REQUEST), size):
        client.send(REQUEST[at : at + size])
        rig.turn(2, timeout_ms=5)
    assert [event for event in rig.events if event[0] == client.index] == [(client.index, "http", b"P")]
    fd = rig.traffic.descriptor(client.index, client.uid)
    with socket.socket(fileno=fd) as passed:
        assert passed.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        assert passed.recv(4096) == REQUEST
        passed.detach()


def test_what_was_passed_on_is_let_go_without_a_word(make: Make) -> None:
    rig = make()
    client = dial(rig)
    client.send(REQUEST)
    assert until(rig, "http")
    kept = socket.fromfd(rig.traffic.descriptor(client.index, client.uid), socket.AF_INET, socket.SOCK_STREAM)
    assert not rig.traffic.let_go(client.index, client.uid + 1)
    assert rig.traffic.let_go(client.index, client.uid)
    assert until(rig, "closed") == (client.index, "closed", b"passed-on")
    assert rig.traffic.descriptor(client.index, client.uid) == -1
    assert rig.statistics()["connections"] == rig.statistics()["refused"] == 0
    assert rig.pop() == [], "the router never heard of it"
    with kept:
        kept.sendall(b"still there")
        client.sock.setblocking(True)
        assert client.sock.recv(100) == b"still there"


def test_it_can_be_answered_and_closed_instead(make: Make) -> None:
    rig = make()
    client = dial(rig)
    client.send(REQUEST)
    assert until(rig, "http")
    assert rig.traffic.close(client.index, client.uid, "gateway-busy", b"HTTP/1.1 503 No\r\n\r\n")
    rig.turn(3, timeout_ms=5)
    assert client.read() == b"HTTP/1.1 503 No\r\n\r\n"
    assert client.ended
    client.sock.close()
    assert until(rig, "closed") == (client.index, "closed", b"gateway-busy")


@pytest.mark.parametrize("size", [1, 5, len(PREFACE)])
def test_our_own_preface_is_taken_as_ever(make: Make, size: int) -> None:
    rig = make(tls=True)
    client = dial(rig)
    for at in range(0, len(PREFACE), size):
        client.send(PREFACE[at : at + size])
        rig.turn(2, timeout_ms=5)
    assert [event[1] for event in rig.events] == ["preface"]
    assert rig.traffic.descriptor(client.index, client.uid) == -1, "only what is HTTP may be passed on"
    assert not rig.traffic.let_go(client.index, client.uid)


@pytest.mark.parametrize("protocols", [("http/1.1",), ("h2", "http/1.1"), ()])
@pytest.mark.parametrize("pieces", ["whole", "halves", "records"])
def test_tls_goes_where_its_client_hello_says(make: Make, protocols: tuple[str, ...], pieces: str) -> None:
    rig = make(tls=True)
    client = dial(rig)
    hello = client_hello(*protocols)
    if pieces == "records":
        hello = in_records(hello, 100)
    cut = len(hello) // 2 if pieces == "halves" else len(hello)
    client.send(hello[:cut])
    rig.turn(3, timeout_ms=5)
    client.send(hello[cut:])
    event = until(rig, "http" if protocols else "tls")
    assert event[2] == (b"T" if protocols else b"")
    if protocols:
        with socket.socket(fileno=rig.traffic.descriptor(client.index, client.uid)) as passed:
            assert passed.recv(1 << 16) == hello
            passed.detach()


def test_http_within_our_own_tls_gets_an_answer(make: Make, tmp_path: Path) -> None:
    """Its client offered no HTTP, so that it was taken for one of ours; it cannot be passed on any more."""
    rig = make(tls=True)
    client = dial(rig)
    pem = str(certificate(tmp_path)[0])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tls = context.wrap_bio(incoming, outgoing)
    answer = b""
    written = False
    for _ in range(200):
        try:
            if not written:
                tls.do_handshake()
                tls.write(REQUEST)
                written = True
            answer += tls.read(4096)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            break
        client.send(outgoing.read())
        for event in rig.turn(2, timeout_ms=5):
            if event[1] == "tls":
                rig.traffic.secure(client.index, client.uid, TlsFilter(make_context(pem, pem)))
        rig.turn(1, timeout_ms=5)
        incoming.write(client.read())
        client.received.clear()
        if b"ALPN" in answer:
            break
    assert answer.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("first", [b"GE", b"PRI * HTT", b"P", pytest.param(client_hello("h2")[:40], id="tls")])
def test_half_a_beginning_is_waited_for_without_a_sound_and_only_so_long(make: Make, first: bytes) -> None:
    rig = make(tls=True)
    client = dial(rig)
    client.send(first)
    rig.turn(3, timeout_ms=20)
    began_s, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    turns = 0
    while time.monotonic() < began_s + 0.3:
        rig.turn(timeout_ms=100)
        turns += 1
    spent = resource.getrusage(resource.RUSAGE_SELF)
    assert turns <= 5, "epoll must not report what cannot be told apart yet"
    assert spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime < 0.2
    ended = []
    for ms in (4_000, 2_000):
        rig.later(ms)
        assert not client.read()
        ended.append(client.ended)
    assert ended == [False, True]
    client.sock.close()
    assert until(rig, "closed") == (client.index, "closed", b"handshake-timeout")


@pytest.mark.parametrize("first", [b"", b"GE", b"F", pytest.param(client_hello("h2")[:40], id="tls")])
def test_who_hangs_up_in_the_middle_of_it_is_noticed(make: Make, first: bytes) -> None:
    rig = make()
    client = dial(rig)
    if first:
        client.send(first)
        rig.turn(2, timeout_ms=5)
    client.sock.close()
    assert until(rig, "closed")[0] == client.index
    assert rig.statistics()["connections"] == 0


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 "),
        (b"\x16" + bytes(16384), b""),
        (b"GETS", b""),
        (b"\0" * 9, b""),
    ],
)
def test_rubbish_is_closed_as_ever(make: Make, first: bytes, answer: bytes) -> None:
    rig = make()
    client = dial(rig)
    client.send(first)
    for _ in range(10):
        rig.turn(timeout_ms=5)
    assert client.read()[: len(answer) or None] == answer
    assert client.ended
    client.sock.close()
    assert until(rig, "closed") == (client.index, "closed", b"not-a-preface")


def test_without_tunnels_a_browser_is_told_what_this_is(make: Make) -> None:
    rig = make(tunnels=False)
    client = dial(rig)
    client.send(REQUEST)
    rig.turn(4, timeout_ms=5)
    head, _, body = client.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"fairlead://" in body
    assert client.ended
