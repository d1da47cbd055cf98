"""Batches into bytes and back: both twins do the same, and no bytes make them stumble."""

from __future__ import annotations

import random
from types import ModuleType

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.journal import records
from fairlead.journal.crc import crc32c, table_crc32c
from fairlead.journal.layout import (
    BATCH_MAGIC,
    FOUND_BAD,
    FOUND_BATCH,
    FOUND_BODY_BAD,
    FOUND_END,
    FOUND_RECORD,
    RECORD_MAGIC,
    place_of,
    seed_of,
)
from fairlead.runtime import extensions

SEED = seed_of(b"an identity of store")
PLACE = place_of(7, 4096)

if extensions.is_pure() or "fairlead.journal._records" in extensions.missing():
    TWINS: list[ModuleType] = [records]
else:
    from fairlead.journal import _records

    TWINS = [records, _records]  # type: ignore[list-item]

bodies = st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=40), st.binary(max_size=300)), max_size=8)


def written(twin: ModuleType, items: list[tuple[int, bytes, bytes]], lead: bytes = b"") -> tuple[bytes, list[int]]:
    batch = twin.Batch(SEED, PLACE, 100, lead)
    places = [batch.add(kind, head, payload, 5, 4) for kind, head, payload in items]
    return bytes(batch.finish(99, 123456)), places


@given(bodies, st.sampled_from([b"", b"l" * 64]))
def test_the_twins_write_the_same_bytes(items: list[tuple[int, bytes, bytes]], lead: bytes) -> None:
    assert len({(data, tuple(places)) for data, places in (written(twin, items, lead) for twin in TWINS)}) == 1


@pytest.mark.parametrize("twin", TWINS)
@given(items=bodies)
def test_what_was_written_is_found(twin: ModuleType, items: list[tuple[int, bytes, bytes]]) -> None:
    data, places = written(twin, items)
    found = twin.scan(data + bytes(64), PLACE, SEED, 0)
    assert found[0][0] == FOUND_BATCH
    assert found[0][3:] == (len(items), 100, 99, 123456)
    assert found[-1] == (FOUND_END, len(data), 0, 0, 0, 0, 0)
    assert [one[0] for one in found[1:-1]] == [FOUND_RECORD] * len(items)
    for one, (kind, head, payload), place, index in zip(found[1:-1], items, places, range(100, 200), strict=False):
        offset = place - PLACE
        assert one[1:] == (offset - 40, len(head + payload), kind, index, 5, 4)
        assert data[offset : offset + one[2]] == head + payload


hostile = st.lists(
    st.one_of(
        st.binary(max_size=64),
        st.just(RECORD_MAGIC.to_bytes(2, "little")),
        st.just(BATCH_MAGIC.to_bytes(2, "little")),
        st.just(bytes(40)),
        st.just(written(records, [(8, b"head", b"payload")])[0]),
    ),
    max_size=12,
).map(b"".join)


@given(hostile)
@settings(max_examples=300)
def test_any_bytes_are_scanned_to_the_end_and_alike(data: bytes) -> None:
    answers = [twin.scan(data, PLACE, SEED, 0) for twin in TWINS]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][-1][0] == FOUND_END
    assert all(twin.read_record(data, PLACE, SEED) == records.read_record(data, PLACE, SEED) for twin in TWINS)


@pytest.mark.parametrize("twin", TWINS)
def test_a_record_is_valid_nowhere_else(twin: ModuleType) -> None:
    data, _ = written(twin, [(8, b"head", b"payload")])
    for place, seed in ((PLACE + 8, SEED), (place_of(8, 4096), SEED), (PLACE, seed_of(b"another store" + bytes(7)))):
        assert [one[0] for one in twin.scan(data, place, seed, 0)] == [FOUND_END]


@pytest.mark.parametrize("twin", TWINS)
def test_followers_of_a_bad_record_are_found(twin: ModuleType) -> None:
    items = [(8, b"first", b""), (8, b"second" * 5, b""), (8, b"third", b"")]
    data, places = written(twin, items)
    for offset, what in ((places[1] - PLACE, FOUND_BODY_BAD), (places[1] - PLACE - 30, FOUND_BAD)):
        changed = bytearray(data)
        changed[offset] ^= 0x10
        found = twin.scan(changed, PLACE, SEED, 0)
        assert [one[0] for one in found] == [FOUND_BATCH, FOUND_RECORD, what, FOUND_RECORD, FOUND_END]


@pytest.mark.parametrize("twin", TWINS)
def test_a_length_beyond_the_end_is_no_reason_to_read_on(twin: ModuleType) -> None:
    data, places = written(twin, [(8, b"x" * 1000, b"")])
    cut = data[: places[0] - PLACE + 10]
    found = twin.scan(cut, PLACE, SEED, 0)
    assert [one[0] for one in found] == [FOUND_BATCH, FOUND_BODY_BAD, FOUND_END]
    assert found[-1][1] == len(cut)


@pytest.mark.parametrize("twin", TWINS)
def test_a_batch_is_read_before_and_after_it_is_finished(twin: ModuleType) -> None:
    batch = twin.Batch(SEED, PLACE, 1)
    place = batch.add(8, b"head", b"payload", 1, 1)
    early = batch.read(place, 11)
    batch.add(8, b"x" * 100_000, b"", 1, 1)
    batch.finish(0, 0)
    assert bytes(early) == bytes(batch.read(place, 11)) == b"headpayload"
    with pytest.raises(ValueError):
        batch.add(8, b"late", b"", 1, 1)
    with pytest.raises(ValueError):
        batch.read(place, 1 << 30)
    with pytest.raises(ValueError):
        batch.read(PLACE - 1, 1)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_is_the_oracles(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == google_crc32c.value(first + second)
    assert table_crc32c(second, table_crc32c(first)) == google_crc32c.value(first + second)


@pytest.mark.skipif(len(TWINS) == 1, reason="the extension is not built")
@pytest.mark.parametrize("soft", [False, True])
def test_the_compiled_checksum_is_right_with_and_without_the_instruction(soft: bool) -> None:
    chance = random.Random(1)
    _records.use_software(soft)
    try:
        for size in [*range(40), 1000, 4099]:
            data = chance.randbytes(size)
            assert _records.crc32c(data) == crc32c(data)
            assert _records.crc32c(data[5:], _records.crc32c(data[:5])) == crc32c(data)
    finally:
        _records.use_software(False)
