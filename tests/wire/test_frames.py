"""Frames: both twins, one by one and against each other."""

from __future__ import annotations

import itertools
import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import FairleadError, HeaderTooLarge, ProtocolError, RemoteProtocolError, TooLarge
from fairlead.wire import frames as plain
from fairlead.wire import kinds
from fairlead.wire.headers import application_pairs, decode_headers, encode_headers

try:
    from fairlead.wire import _frames as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

BOTH = [plain] if compiled is None else [plain, compiled]
twin = pytest.mark.parametrize("twin", BOTH, ids=lambda module: module.__name__.rpartition(".")[2])

needs_compiled = pytest.mark.skipif(compiled is None, reason="the extension is not built")

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TOPIC = st.one_of(st.sampled_from(["", "a.b", "prices.eur", "a\x1fb.c"]), st.text(max_size=8))
PAIRS = st.lists(st.tuples(st.sampled_from([":from", ":reply", "k", "é"]), st.binary(max_size=6)), max_size=3)
KINDS = st.sampled_from([kind for kind in range(0x50) if kind != kinds.KIND_FRAGMENT])
MESSAGES = st.tuples(
    KINDS, st.integers(0, 255).map(lambda f: f & ~kinds.FLAG_FRAGMENTED), U32, U64, U64, TOPIC, PAIRS,
    st.binary(max_size=60),
)  # fmt: skip


def encode(module: ModuleType, said: tuple[Any, ...], fragment: int = 1 << 20) -> bytes:
    kind, flags, number, correlation, peer, topic, pairs, body = said
    fixed = (kind, flags, number, correlation, peer, topic.encode(errors="surrogatepass"), encode_headers(pairs), body)
    if kinds.KIND_PUBLISH <= kind <= kinds.KIND_SEND:
        return module.encode_message(*fixed, fragment)  # type: ignore[no-any-return]
    return module.encode_frame(*fixed)  # type: ignore[no-any-return]


def seen(message: Any) -> tuple[Any, ...]:
    """Everything one can see of a message."""
    return (
        message.kind, message.flags, message.number, message.correlation, message.sender, message.topic_text,
        message.topic, message.topics, message.headers, message.user, message.reply_to, message.mode, message.body,
        repr(message),
    )  # fmt: skip


def chop(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def parse(parser: Any, pieces: list[bytes]) -> tuple[list[Any], str | None]:
    found: list[Any] = []
    try:
        for piece in pieces:
            found += parser.feed(piece)
        if parser.fault is not None:
            raise parser.fault
    except ProtocolError as error:
        return found, f"{error.code}: {error}"
    return found, None


@twin
@given(st.lists(MESSAGES, max_size=6), st.lists(st.integers(0, 5000), max_size=8), st.sampled_from([1 << 20, 20, 9]))
def test_there_and_back_however_the_bytes_are_split(
    twin: ModuleType, said: list[tuple[Any, ...]], cuts: list[int], fragment: int
) -> None:
    data = b"".join(encode(twin, one, fragment) for one in said)
    found, fault = parse(twin.Parser(), chop(data, cuts))
    assert fault is None
    assert len(found) == len(said)
    for message, (kind, flags, number, correlation, peer, topic, pairs, body) in zip(found, said, strict=True):
        assert (message.kind, message.flags, message.number) == (kind, flags, number)
        assert (message.correlation, message.sender, message.body) == (correlation, peer, body)
        assert message.topic_text == topic
        assert message.topics == topic.split("\x1f")
        assert message.headers == {key: value for key, value in pairs if not key.startswith(":")}


@needs_compiled
@given(st.lists(MESSAGES, max_size=5), st.sampled_from([1 << 20, 20, 9]))
def test_the_twins_write_the_same_bytes(said: list[tuple[Any, ...]], fragment: int) -> None:
    for one in said:
        assert encode(plain, one, fragment) == encode(compiled, one, fragment)
        bodies = [one[-1], b"", one[-1] * 3]
        topic, section = one[5].encode(), encode_headers(one[6])
        assert plain.encode_publishes(topic, section, bodies, fragment) == compiled.encode_publishes(
            topic, section, bodies, fragment
        )


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames, damaged frames, and noise."""
    data = bytearray()
    for _ in range(draw(st.integers(1, 4))):
        frame = bytearray(encode(plain, draw(MESSAGES), draw(st.sampled_from([1 << 20, 20, 9]))))
        for place, value in draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2)):
            frame[place % len(frame)] = value
        data += frame
    return bytes(data + draw(st.binary(max_size=40)))


@needs_compiled
@given(st.one_of(streams(), st.binary(max_size=300)), st.lists(st.integers(0, 2000), max_size=6))
def test_the_twins_read_the_same_from_any_bytes(data: bytes, cuts: list[int]) -> None:
    results = []
    for module in (plain, compiled):
        parser = module.Parser(frame_max=4096, body_max=1000)
        found, fault = parse(parser, chop(data, cuts))
        results.append(([seen(message) for message in found], fault, parser.buffered))
        whole = parse(module.Parser(frame_max=4096, body_max=1000), [data])
        assert ([seen(message) for message in whole[0]], whole[1]) == results[-1][:2]
    assert results[0] == results[1]


@twin
@given(st.lists(MESSAGES, max_size=8))
def test_runs_are_the_messages_grouped_by_kind_and_topic(twin: ModuleType, said: list[tuple[Any, ...]]) -> None:
    data = b"".join(encode(twin, one) for one in said)
    runs = twin.Parser().runs(data)
    flat = [message for run in runs for message in run]
    assert [seen(message) for message in flat] == [seen(message) for message in twin.Parser().feed(data)]
    names = [(run[0].kind, run[0].topic_text) for run in runs]
    assert all(a != b for a, b in itertools.pairwise(names))
    assert all((m.kind, m.topic_text) == name for run, name in zip(runs, names, strict=True) for m in run)


@twin
def test_equal_topics_one_after_another_share_one_text(twin: ModuleType) -> None:
    first, second = twin.Parser().feed(twin.encode_publishes(b"a.b", b"", [b"1", b"2"]))
    assert first.topic is second.topic


@twin
def test_identity_counts_only_with_the_flag_and_in_first_place(twin: ModuleType) -> None:
    for flags, pairs, user in [
        (kinds.FLAG_IDENTITY, [(":from", b"ann")], "ann"),
        (0, [(":from", b"ann")], None),
        (kinds.FLAG_IDENTITY, [("k", b""), (":from", b"ann")], None),
        (kinds.FLAG_IDENTITY, [], None),
    ]:
        (message,) = twin.Parser().feed(twin.encode_frame(0x20, flags, 0, 0, 0, b"a", encode_headers(pairs), b""))
        assert message.user == user


@twin
def test_the_head_is_as_documented(twin: ModuleType) -> None:
    frame = twin.encode_frame(0x21, 1, 2, 3, 4, b"tt", b"\x01k\x00\x00", b"body")
    assert frame == struct.pack("<IBBHIIQQ", 42, 0x21, 1, 2, 4, 2, 3, 4) + b"tt" + b"\x01k\x00\x00" + b"body"


def head(length: int, kind: int = 0x20, flags: int = 0, topic: int = 0, section: int = 0) -> bytes:
    return struct.pack("<IBBHIIQQ", length, kind, flags, topic, section, 0, 0, 0)


FRAGMENTED = kinds.FLAG_FRAGMENTED


@twin
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (head(31), "bad-request"),
        (head(0), "bad-request"),
        (head(5000), "frame-too-large"),
        (head(2**32 - 1), "frame-too-large"),
        (head(40, topic=9) + bytes(8), "bad-request"),
        (head(40, section=2**32 - 1) + bytes(8), "header-too-large"),
        (head(34, topic=2) + b"\xff\xfe", "bad-request"),
        (head(34, section=2) + b"\x01k", "bad-request"),
        (head(36, section=4) + b"\x00\x00\x00\x00", "bad-request"),
        (head(36, section=4) + b"\x01k\x05\x00", "bad-request"),
        (head(36, section=4) + b"\x01\xff\x00\x00", "bad-request"),
        (head(33, kind=0x2F) + b"x", "bad-request"),
        (head(36, flags=FRAGMENTED) + b"1234", "bad-request"),
        (head(40, flags=FRAGMENTED) + struct.pack("<Q", 1001), "body-too-large"),
        (head(42, flags=FRAGMENTED) + struct.pack("<Q", 1) + b"xx", "bad-request"),
        (head(40, flags=FRAGMENTED) + struct.pack("<Q", 9) + head(32), "bad-request"),
    ],
)
def test_broken_rules(twin: ModuleType, data: bytes, code: str) -> None:
    parser = twin.Parser(frame_max=4096, body_max=1000)
    with pytest.raises(RemoteProtocolError) as caught:
        parser.feed(data)
    assert caught.value.code == code
    with pytest.raises(RemoteProtocolError):
        parser.feed(b"")


@twin
def test_what_came_before_the_fault_is_handed_out(twin: ModuleType) -> None:
    parser = twin.Parser()
    (message,) = parser.feed(twin.encode_frame(0x43, 0, 7, 0, 0, b"", b"", b"") + head(1))
    assert message.number == 7
    assert parser.fault is not None
    with pytest.raises(RemoteProtocolError):
        parser.feed(b"more")


@twin
def test_control_frames_may_come_between_fragments(twin: ModuleType) -> None:
    whole = twin.encode_message(0x20, 0, 0, 0, 0, b"t", b"", b"x" * 40, 30)
    first = struct.unpack_from("<I", whole)[0]
    ping = twin.encode_frame(kinds.KIND_PING, 0, 0, 5, 0, b"", b"", b"")
    found = twin.Parser().feed(whole[:first] + ping + whole[first:])
    assert [message.kind for message in found] == [kinds.KIND_PING, 0x20]
    assert found[1].body == b"x" * 40


@twin
def test_a_large_body_in_small_reads_is_whole_and_not_slow(twin: ModuleType) -> None:
    body = bytes(range(256)) * (5 << 12)
    data = twin.encode_message(0x20, 0, 0, 0, 0, b"t", b"", body)
    parser = twin.Parser()
    found = []
    for at in range(0, len(data), 4096):
        found += parser.feed(data[at : at + 4096])
        assert parser.buffered <= kinds.FRAME_BYTES_MAX
    assert [message.body for message in found] == [body]


@twin
def test_what_cannot_be_sent(twin: ModuleType) -> None:
    with pytest.raises(HeaderTooLarge):
        twin.encode_frame(0x20, 0, 0, 0, 0, b"t", bytes(65_536), b"")
    with pytest.raises(HeaderTooLarge):
        twin.encode_publishes(b"t", bytes(65_536), [b""])
    with pytest.raises(TooLarge):
        twin.encode_frame(0x20, 0, 0, 0, 0, b"t", b"", bytes(2 << 20))
    with pytest.raises(TypeError):
        twin.encode_publishes(b"t", b"", [None])


@twin
def test_any_bytes_like_body_will_do(twin: ModuleType) -> None:
    for body in (bytearray(b"abc"), memoryview(b"abc")):
        assert twin.encode_message(0x20, 0, 0, 0, 0, b"t", b"", body).endswith(b"abc")
        assert twin.encode_message(0x20, 0, 0, 0, 0, b"t", b"", body, 2).endswith(b"c")


@given(st.lists(st.tuples(st.text(min_size=1, max_size=20), st.binary(max_size=300)), max_size=5))
def test_headers_there_and_back(pairs: list[tuple[str, bytes]]) -> None:
    assert decode_headers(encode_headers(pairs)) == pairs


@given(st.binary(max_size=80))
def test_any_header_section_is_read_or_refused(section: bytes) -> None:
    try:
        pairs = decode_headers(section)
    except ProtocolError:
        return
    assert encode_headers(pairs) == section


def test_headers_that_cannot_be_sent() -> None:
    for pairs in ([("", b"")], [("k" * 256, b"")], [("k", bytes(65_536))]):
        with pytest.raises(FairleadError):
            encode_headers(pairs)
    with pytest.raises(ProtocolError):
        application_pairs({":from": b"me"})
    assert encode_headers(application_pairs({"k": "é"})) == b"\x01k\x02\x00\xc3\xa9"
