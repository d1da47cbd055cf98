"""Entries: both twins, one by one and against each other, and any bytes at all."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import BadEntries, BadParameter, HeaderTooLarge, RemoteProtocolError
from fairlead.wire import durable, entry_codec
from fairlead.wire import entries as plain
from fairlead.wire.properties import encode_properties

try:
    from fairlead.wire import _entries as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

BOTH = [plain] if compiled is None else [plain, compiled]
twin = pytest.mark.parametrize("twin", BOTH, ids=lambda module: module.__name__.rpartition(".")[2])

BASE = bytes(range(12)) + (5).to_bytes(8)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
)
NAMES = st.sampled_from(["a", "amount", "é", "x-y", "_1"])
OWN = st.dictionaries(st.sampled_from([":type", ":correlation", ":reply-to", ":dedup", ":cron"]), st.text(max_size=4))
HEADERS = st.builds(encode_properties, st.dictionaries(NAMES, VALUES, max_size=3), OWN)
TIMES = st.one_of(st.just(0), st.integers(0, plain.TIME_MS_MAX))
MESSAGES = st.fixed_dictionaries(
    {"body": st.binary(max_size=40)},
    optional={
        "headers": HEADERS,
        "key": st.text(max_size=6).map(str.encode),
        "priority": st.integers(0, 9),
        "ttl_ms": TIMES,
        "delay_ms": TIMES,
        "flags": st.sampled_from([0, durable.ENTRY_VOLATILE]),
    },
)
BATCHES = st.lists(MESSAGES, min_size=1, max_size=6)


def encode(module: ModuleType, messages: list[dict[str, Any]]) -> bytes:
    return b"".join(module.encode(**message) for message in messages)


def chunk(entries: bytes, count: int, *, order: int = 1, deliveries: int = 1, base: bytes = BASE) -> bytes:
    return durable.CHUNK.pack(order, count, deliveries, 1000, 2000, base, len(entries), 0) + entries


def seen(message: Any) -> tuple[Any, ...]:
    """Everything one can see of a message."""
    return (
        message.body, message.order, message.handle, message.delivery_count, message.redelivered, message.priority,
        message.key, message.id, message.id_text, message.timestamp_ms, message.arrival_ms, message.flags,
        dict(message.properties), message.headers_raw, message.correlation_id, message.reply_to, message.type,
        message.user, message.body_kind, message.expiration_ms, message.delivery_time_ms, message.persistent,
        message.ttl_ms, message.delay_ms, message.large, repr(message),
    )  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BadEntries:
        return BadEntries


@twin
@given(BATCHES)
def test_there_and_back(twin: ModuleType, messages: list[dict[str, Any]]) -> None:
    data = b"before" + encode(twin, messages) + b"after"
    start, end = 6, len(data) - 5
    found = twin.details(data, start, end)
    count, flags, low, high = twin.survey(memoryview(data), start, end)
    assert count == len(messages) == len(found)
    assert (low, high) == (min(e.priority for e in found), max(e.priority for e in found))
    assert flags == sum({bit for e in found for bit in (1, 2, 4, 8) if e.flags & bit})
    at = start
    for message, entry in zip(messages, found, strict=True):
        assert entry.start == at
        assert data[entry.body_start : entry.body_end] == message["body"]
        assert entry.headers == message.get("headers", b"")
        assert entry.key == message.get("key", b"")
        assert entry.priority == message.get("priority", 4)
        assert (entry.ttl_ms, entry.delay_ms) == (message.get("ttl_ms", 0), message.get("delay_ms", 0))
        at = entry.end
    assert at == end
    assert twin.keys(data, start, end) == [entry.key for entry in found]
    assert not twin.forged(data, start, end)


@twin
@given(BATCHES, st.integers(0, 6), st.integers(0, 6))
def test_a_part_of_a_batch(twin: ModuleType, messages: list[dict[str, Any]], first: int, count: int) -> None:
    data = encode(twin, messages)
    everything = twin.details(data, 0, len(data))
    if first + count > len(messages):
        for call in (twin.span, twin.details, twin.keys):
            with pytest.raises(BadEntries):
                call(data, 0, len(data), first, count)
        return
    lo, hi = twin.span(data, 0, len(data), first, count)
    assert data[lo:hi] == encode(twin, messages[first : first + count])
    assert twin.details(data, 0, len(data), first, count) == everything[first : first + count]
    assert twin.details(data, 0, len(data), first) == everything[first:]
    assert twin.keys(data, 0, len(data), first, count) == [e.key for e in everything[first : first + count]]


@twin
@given(
    st.lists(st.binary(max_size=30), max_size=5), HEADERS, st.integers(0, 9), TIMES, TIMES, st.sampled_from([0, 4, 8])
)
def test_many_at_once_are_the_same_as_one_by_one(
    twin: ModuleType, bodies: list[bytes], headers: bytes, priority: int, ttl_ms: int, delay_ms: int, flags: int
) -> None:
    more = {"flags": flags, "ttl_ms": ttl_ms, "delay_ms": delay_ms}
    one_by_one = b"".join(plain.encode(body, headers=headers, priority=priority, **more) for body in bodies)
    assert twin.encode_many(tuple(bodies), headers, priority, **more) == one_by_one


@twin
@pytest.mark.requirement("CLU-18", state="half")
def test_what_a_consumer_sees_of_a_message(twin: ModuleType) -> None:
    headers = encode_properties(
        {"amount": 3, "rate": 0.5, "paid": True, "name": "Ada", "raw": b"\x00"},
        {":correlation": "c-1", ":reply-to": "answers", ":type": "order", ":from": "ada", ":body": "text"},
    )
    entry = twin.encode(b"hello", headers=headers, key="ключ".encode(), priority=7, ttl_ms=500, delay_ms=30)
    body = chunk(twin.encode(b"other") + entry, 2, order=41, deliveries=2)
    first, message = twin.deliveries(body, 9)
    assert (first.body, first.order, first.key, first.expiration_ms) == (b"other", 41, None, None)
    assert first.properties == {}
    assert (first.correlation_id, first.user, first.body_kind, first.large) == (None, None, "bytes", None)
    assert (message.body, message.order, message.handle, message.priority, message.key) == (b"hello", 42, 9, 7, "ключ")
    assert message.properties == {"amount": 3, "rate": 0.5, "paid": True, "name": "Ada", "raw": b"\x00"}
    assert (message.correlation_id, message.reply_to, message.type) == ("c-1", "answers", "order")
    assert (message.user, message.body_kind, message.own(":body")) == ("ada", "text", "text")
    assert (message.delivery_count, message.redelivered, message.persistent) == (2, True, True)
    assert (message.timestamp_ms, message.arrival_ms) == (1000, 2000)
    assert (message.delivery_time_ms, message.expiration_ms) == (2030, 2530)
    assert message.id == BASE[:12] + (6).to_bytes(8)
    assert message.id_text == message.id.hex()
    with pytest.raises(TypeError):
        message.properties["amount"] = 4  # properties are read-only on receipt
    with pytest.raises(TypeError):
        twin.Delivered()


@twin
def test_a_large_message_names_what_has_to_be_fetched(twin: ModuleType) -> None:
    named = durable.LARGE.pack(7, 10**9, b"h" * 32)
    (message,) = twin.deliveries(chunk(twin.encode(named, flags=durable.ENTRY_LARGE), 1), 1)
    assert message.large == (7, 10**9, b"h" * 32)


@twin
def test_messages_of_a_class_of_ones_own(twin: ModuleType) -> None:
    class Mine(twin.Delivered):  # type: ignore[name-defined, misc]
        __slots__ = ()

        def shout(self) -> bytes:
            return bytes(self.body.upper())

    owner = object()
    (message,) = twin.deliveries(chunk(twin.encode(b"a"), 1), 3, Mine, owner)
    assert type(message) is Mine
    assert (message.shout(), message.owner, message.handle) == (b"A", owner, 3)


@given(
    st.lists(st.tuples(BATCHES, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=3),
    st.binary(min_size=20, max_size=20),
)
def test_the_twins_see_the_same_deliveries(chunks: list[tuple[list[dict[str, Any]], int, int]], base: bytes) -> None:
    body = b"".join(
        chunk(encode(plain, messages), len(messages), order=order, deliveries=times, base=base)
        for messages, order, times in chunks
    )
    shown = [[seen(message) for message in module.deliveries(body, 5)] for module in BOTH]
    assert len(shown[0]) == sum(len(messages) for messages, _, _ in chunks)
    assert shown[0] == shown[-1]


@twin
@given(st.dictionaries(NAMES, VALUES, max_size=4), st.lists(NAMES, unique=True, max_size=3))
def test_only_the_properties_asked_for(twin: ModuleType, properties: dict[str, Any], names: list[str]) -> None:
    section = encode_properties(properties) + encode_properties({"a": "the first one counts"})
    expected = [{"a": "the first one counts", **properties}.get(name) for name in names]
    found = twin.pick(section, tuple(name.encode() for name in names))
    assert (found, [type(value) for value in found]) == (expected, [type(value) for value in expected])


def everything(module: ModuleType, data: bytes) -> list[Any]:
    end = len(data)
    return [
        outcome(lambda: module.survey(data, 0, end)),
        outcome(lambda: module.forged(data, 0, end)),
        outcome(lambda: module.details(data, 0, end)),
        outcome(lambda: module.keys(data, 0, end)),
        outcome(lambda: module.span(data, 0, end, 0, 2)),
        outcome(lambda: module.pick(data, (b"a", b":type"))),
        outcome(lambda: module.details(data, 0, end, 1, 1)),
        outcome(lambda: [seen(message) for message in module.deliveries(data, 1)]),
        outcome(lambda: [seen(message) for message in module.deliveries(chunk(data, 1), 1)]),
    ]


@settings(max_examples=300)
@given(BATCHES, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 40))
def test_damaged_entries_do_no_harm(messages: list[dict[str, Any]], hits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(encode(plain, messages))
    for place, value in hits:
        data[place % len(data)] = value
    spoilt = bytes(data[: len(data) - cut])
    results = [everything(module, spoilt) for module in BOTH]
    assert results[0] == results[-1]


@given(st.binary(max_size=200) | HEADERS)
def test_any_bytes_do_no_harm(data: bytes) -> None:
    results = [everything(module, data) for module in BOTH]
    assert results[0] == results[-1]


HEAD = durable.ENTRY
PLAIN = HEAD.pack(17, 0, 4, 0, 0, 0) + b"x"
HOSTILE = {
    "nothing": b"",
    "half a head": PLAIN[:9],
    "shorter than its head": HEAD.pack(15, 0, 4, 0, 0, 0),
    "longer than the frame": HEAD.pack(18, 0, 4, 0, 0, 0) + b"x",
    "longest": HEAD.pack(0xFFFFFFFF, 0, 4, 0, 0, 0) + b"x",
    "a length of zero": bytes(32),
    "a flag nobody knows": HEAD.pack(16, 64, 4, 0, 0, 0),
    "priority 10": HEAD.pack(16, 0, 10, 0, 0, 0),
    "something in the reserved field": HEAD.pack(16, 0, 4, 0, 0, 1),
    "a key that is not flagged": HEAD.pack(17, 0, 4, 1, 0, 0) + b"k",
    "a flag without a key": HEAD.pack(17, 1, 4, 0, 0, 0) + b"k",
    "a key beyond the end": HEAD.pack(17, 1, 4, 2, 0, 0) + b"k",
    "a key that is not text": HEAD.pack(18, 1, 4, 2, 0, 0) + b"\xff\xfe",
    "headers beyond the end": HEAD.pack(17, 0, 4, 0, 0xFFFFFFFF, 0) + b"x",
    "timed without times": HEAD.pack(17, 2, 4, 0, 0, 0) + b"x",
    "a time for ever": HEAD.pack(32, 2, 4, 0, 0, 0) + struct.pack("<QQ", 0, 2**64 - 1),
    "large without a name": HEAD.pack(20, 4, 4, 0, 0, 0) + b"body",
    "an empty header name": HEAD.pack(19, 0, 4, 0, 3, 0) + b"\x00\x00\x00",
    "half a header name": HEAD.pack(18, 0, 4, 0, 2, 0) + b"\x05a",
    "half a header value": HEAD.pack(21, 0, 4, 0, 5, 0) + b"\x01a\x09\x00s",
    "a header without a type": HEAD.pack(20, 0, 4, 0, 4, 0) + b"\x01a\x00\x00",
    "a header of an unknown type": HEAD.pack(21, 0, 4, 0, 5, 0) + b"\x01a\x01\x00z",
    "an integer of two bytes": HEAD.pack(23, 0, 4, 0, 7, 0) + b"\x01a\x03\x00i12",
    "a bool of two bytes": HEAD.pack(23, 0, 4, 0, 7, 0) + b"\x01a\x03\x00b12",
    "dedup without its header": HEAD.pack(16, 16, 4, 0, 0, 0),
    "cron without its header": HEAD.pack(22, 32, 4, 0, 6, 0) + b"\x01a\x02\x00sx",
    "rubbish behind a good one": PLAIN + b"\x00",
    "too many": PLAIN * (durable.COUNT_MAX + 1),
}


@twin
@pytest.mark.parametrize("name", HOSTILE)
def test_a_survey_lets_nothing_pass(twin: ModuleType, name: str) -> None:
    data = HOSTILE[name]
    with pytest.raises(BadEntries) as caught:
        twin.survey(data, 0, len(data))
    assert isinstance(caught.value, RemoteProtocolError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == "bad-request"


@twin
@pytest.mark.requirement("CLU-22", state="half")
def test_priorities_are_0_to_9_and_4_if_nobody_says(twin: ModuleType) -> None:
    data = twin.encode(b"") + b"".join(twin.encode(b"", priority=priority) for priority in range(10))
    assert [entry.priority for entry in twin.details(data, 0, len(data))] == [4, *range(10)]
    assert twin.survey(data, 0, len(data))[2:] == (0, 9)
    with pytest.raises(BadParameter, match="priority"):
        twin.encode(b"", priority=10)


@twin
def test_as_many_as_a_frame_may_hold(twin: ModuleType) -> None:
    data = PLAIN * durable.COUNT_MAX
    assert twin.survey(data, 0, len(data)) == (durable.COUNT_MAX, 0, 4, 4)


@twin
@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 18), (5, 4), (18, 18)])
def test_places_outside_the_buffer_are_refused(twin: ModuleType, start: int, end: int) -> None:
    for call in (twin.survey, twin.details, twin.keys, twin.forged):
        with pytest.raises(BadEntries):
            call(PLAIN, start, end)
    with pytest.raises(BadEntries):
        twin.span(PLAIN, start, end, 0, 0)


@twin
@pytest.mark.parametrize(
    "body",
    [
        b"short",
        chunk(PLAIN, 2),
        chunk(PLAIN, 0),
        chunk(PLAIN + PLAIN, 1),
        chunk(PLAIN, 1)[:-1],
        chunk(PLAIN, 1) + b"\x00",
        durable.CHUNK.pack(1, 0xFFFFFFFF, 1, 0, 0, BASE, 0, 0),
        chunk(HOSTILE["a header without a type"], 1),
    ],
    ids=range(8),
)
def test_a_hostile_delivery_is_refused(twin: ModuleType, body: bytes) -> None:
    with pytest.raises(BadEntries):
        twin.deliveries(body, 1)


@twin
@pytest.mark.requirement("CLU-18", state="half")
@pytest.mark.parametrize("name", [":from", ":dead-reason", ":dead-id"])
def test_headers_of_the_server_brought_by_a_client_are_noticed(twin: ModuleType, name: str) -> None:
    good = twin.encode(b"", headers=encode_properties({"from": "x"}, {":type": "x"}))
    bad = twin.encode(b"", headers=encode_properties({"a": 1}, {name: "root"}))
    assert not twin.forged(good, 0, len(good))
    assert twin.forged(good + bad, 0, len(good + bad))


@twin
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"priority": 10}, BadParameter),
        ({"priority": -1}, BadParameter),
        ({"ttl_ms": -1}, BadParameter),
        ({"delay_ms": 2**70}, BadParameter),
        ({"flags": durable.ENTRY_KEY}, BadParameter),
        ({"flags": 64}, BadParameter),
        ({"key": b"k" * 65_536}, BadParameter),
        ({"headers": b"h" * 65_537}, HeaderTooLarge),
    ],
)
def test_what_cannot_be_said_is_refused(twin: ModuleType, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        twin.encode(b"", **wrong)
    if "key" not in wrong:
        with pytest.raises(error):
            twin.encode_many([b""], **wrong)
    with pytest.raises(TypeError):
        twin.encode_many(["text"])


def test_the_chosen_twin() -> None:
    module = compiled if entry_codec.COMPILED else plain
    for name in entry_codec.__all__:
        if name != "COMPILED":
            assert getattr(entry_codec, name) is getattr(module, name)
