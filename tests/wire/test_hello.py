"""What kind of connection the first bytes begin: every kind, every prefix, bytes of every kind."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.answers import PREFACE
from fairlead.wire.hello import HELLO_MAX, METHODS, RECORDS_MAX, Hello, Look, begins_http, look


def client_hello(*protocols: str, name: str = "example.org") -> bytes:
    """What a real client would send first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """The same ClientHello in records of so many bytes."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2) + piece for piece in pieces)


@pytest.mark.parametrize("method", METHODS)
def test_requests_are_told_from_each_other_as_soon_as_their_method_is_there(method: bytes) -> None:
    request = method + b"/tunnel HTTP/1.1\r\n\r\n"
    assert look(request, tls=False).kind is Hello.HTTP
    for length in range(1, len(method)):
        assert look(request[:length], tls=True) == Look(Hello.MORE, length + 1)


def test_prior_knowledge_of_http_2_is_http() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert look(preface, tls=False).kind is Hello.HTTP
    assert look(preface[:6], tls=False) == Look(Hello.MORE, 7)


@pytest.mark.parametrize("first", [PREFACE, b"F", b"FLD\n\x09\0\0\0", b"FLAP"])
def test_what_may_be_ours_is_left_to_those_who_know_our_preface(first: bytes) -> None:
    assert look(first, tls=True).kind is Hello.NATIVE


@pytest.mark.parametrize(
    "first", [b"CONNECT a:1 HTTP/1.1\r\n", b"get / HTTP/1.1\r\n", b"GETX", b"\0", b"SSH-2.0-x\r\n"]
)
def test_all_else_is_rubbish(first: bytes) -> None:
    assert look(first, tls=True).kind is Hello.RUBBISH


def test_who_would_understand_an_answer_in_http() -> None:
    assert all(begins_http(first) for first in (b"GET / HT", b"CONNECT ", b"OPTIONS ", b"PRI * HT"))
    assert not any(begins_http(first) for first in (PREFACE, b"\x16\x03\x01\0\0\0\0\0", b"GETX    ", bytes(8)))


@pytest.mark.parametrize(
    ("protocols", "kind"),
    [
        ((), Hello.TLS),
        (("fairlead",), Hello.TLS),
        (("http/1.1",), Hello.TLS_HTTP),
        (("h2", "http/1.1"), Hello.TLS_HTTP),
        (("acme", "h2"), Hello.TLS_HTTP),
        (("http/1.0", "http/1.12"), Hello.TLS),
    ],
)
def test_tls_is_told_by_what_its_client_hello_offers(protocols: tuple[str, ...], kind: Hello) -> None:
    hello = client_hello(*protocols)
    assert look(hello, tls=True) == Look(kind)
    assert look(hello + b"early data", tls=True) == Look(kind)
    assert look(in_records(hello, 97), tls=True) == Look(kind)
    assert look(hello, tls=False).kind is Hello.RUBBISH


@pytest.mark.parametrize("size", [100, 1 << 14])
def test_a_part_of_a_client_hello_says_how_much_is_missing(size: int) -> None:
    hello = in_records(client_hello("h2"), size)
    length = 1
    looks = 0
    while (found := look(hello[:length], tls=True)).kind is Hello.MORE:
        assert length < found.wanted <= len(hello)
        assert look(hello[: found.wanted - 1], tls=True) == found, "less than that is not worth a look"
        length = found.wanted
        looks += 1
    assert (found.kind, length) == (Hello.TLS_HTTP, len(hello))
    assert looks <= 2 * RECORDS_MAX


@pytest.mark.parametrize(
    "hello",
    [
        b"\x16\x02\x01\x02\0",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\0\x05\x02\0\0\0\0",
        b"\x16\x03\x01\x40\0\x01\0\xff\xff" + bytes(20_000),
        b"\x16" + bytes(range(256)) * 64,
        in_records(client_hello("h2"), 1),
    ],
    ids=["version", "record too long", "empty record", "no ClientHello", "longer than looked at", "rubbish", "crumbs"],
)
def test_what_only_looks_like_tls_is_left_to_those_who_read_it(hello: bytes) -> None:
    assert look(hello, tls=True) == Look(Hello.TLS)


@given(
    st.binary(max_size=400), st.booleans(), st.sampled_from([b"", b"\x16\x03\x01", b"\x16\x03\x01\0\x60\x01\0\0\x5c"])
)
def test_no_bytes_are_too_much_for_it(rest: bytes, tls: bool, beginning: bytes) -> None:
    first = beginning + rest
    kind, wanted = look(first, tls=tls)
    assert (kind is Hello.MORE) == (wanted > 0)
    assert wanted == 0 or len(first) < wanted <= HELLO_MAX


@given(st.data())
def test_a_damaged_client_hello_is_no_trouble(data: st.DataObject) -> None:
    hello = bytearray(client_hello("http/1.1"))
    for at in data.draw(st.lists(st.integers(0, len(hello) - 1), max_size=8)):
        hello[at] = data.draw(st.integers(0, 255))
    kind, wanted = look(bytes(hello), tls=True)
    assert wanted == 0 or len(hello) < wanted <= HELLO_MAX or kind is not Hello.MORE
