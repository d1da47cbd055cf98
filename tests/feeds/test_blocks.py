"""Blocks: both twins make and read the same, and nothing that is not a block is taken for one."""

from __future__ import annotations

import os
from array import array
from types import ModuleType
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import LocalProtocolError, RemoteProtocolError
from fairlead.feeds import block_codec, blocks
from fairlead.feeds.records import ADMIN, ADMIN_VOID, MESSAGE, SOURCE_GAP, VOID, Place, Record

TWINS: list[ModuleType] = [blocks]
if os.environ.get("FAIRLEAD_PURE", "0") in ("", "0") and block_codec.COMPILED:
    from fairlead.feeds import _blocks

    TWINS.append(_blocks)  # type: ignore[arg-type]
SEQUENCES = st.integers(1, 40) | st.integers(1, blocks.SEQUENCE_MAX)


@st.composite
def records(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from([MESSAGE, MESSAGE, MESSAGE, ADMIN, VOID, ADMIN_VOID, SOURCE_GAP]))
    sequence = draw(SEQUENCES)
    previous = draw(st.integers(0, sequence - 1) | st.just(sequence - 1))
    parts = draw(st.integers(1, 4) | st.just(65_535))
    part = draw(st.integers(1, parts))
    body = draw(st.binary(max_size=24))
    return Record(0, kind, "s", sequence, part, parts, previous, body)


BLOCKS = st.lists(records(), min_size=1, max_size=30)
NUMBERS = st.integers(1, 1 << 62)
OFFSETS = st.sampled_from([0, 0, 3, -3, 1 << 40, -(1 << 61), 1 << 61])


def fields(message: blocks.StreamMessage) -> tuple[object, ...]:
    names = ("number", "kind", "source", "sequence", "part", "parts", "body", "late", "admin", "snapshot")
    return tuple(getattr(message, name) for name in names)


@given(BLOCKS, NUMBERS, st.text(min_size=1, max_size=60))
def test_twins_pack_the_same_and_read_it_back(listed: list[Record], first: int, source: str) -> None:
    packed = {twin.pack(source, first, listed) for twin in TWINS}
    assert len(packed) == 1
    (data,) = packed
    for twin in TWINS:
        block = twin.Block.parse(memoryview(data))
        assert (block.source, block.first, block.count) == (source, first, len(listed))
        assert block.last == first + len(listed) - 1
        assert block.data == data
        for i, record in enumerate(listed):
            expected = record._replace(number=first + i, source=source, checksum=crc32(record.body))
            assert block.record(i) == expected
            assert block.place(i) == expected.place
            assert (block.kind(i), block.body(i), block.number(i)) == (record.kind, record.body, first + i)
            assert block.mask & 1 << record.kind
        again = twin.with_first(data, 7)
        assert twin.Block.parse(again).first == 7
        assert again[24:] == data[24:]


@given(BLOCKS, st.data())
def test_twins_scan_find_compare_and_deliver_alike(listed: list[Record], data: st.DataObject) -> None:
    packed = blocks.pack("s", 5, listed)
    mine = [twin.Block.parse(packed) for twin in TWINS]
    i = data.draw(st.integers(0, len(listed)))
    end = data.draw(st.integers(i, len(listed)))
    offset = data.draw(OFFSETS)
    position = data.draw(SEQUENCES | st.just(0)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    assert len({block.scan(i, end, *position, offset) for block in mine}) == 1
    assert len({block.find(position[0], position[1]) for block in mine}) == 1
    made = [block.messages(i, end, None, "other", offset, True) for block in mine]
    assert len({tuple(fields(message) for message in each) for each in made}) == 1
    other = blocks.pack("s", 9, data.draw(BLOCKS))
    found = {
        block.diverging(i, end, twin.Block.parse(other), 0, twin.Block.parse(other).count, offset, 0)
        for twin, block in zip(TWINS, mine, strict=True)
    }
    assert len(found) == 1


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])
class TestEach:
    def test_columns_may_be_arrays(self, twin: ModuleType) -> None:
        columns = ([1, 3, 1], [4, 5, 6], [2, 4, 5], [1, 1, 1], [1, 1, 1])
        codes = "BQQHH"
        bodies, ends = b"aaccc", [2, 2, 5]
        of_lists = twin.pack_columns("s", 3, *columns, bodies, ends)
        arrays = [array(code, column) for code, column in zip(codes, columns, strict=True)]
        of_arrays = twin.pack_columns("s", 3, *arrays, memoryview(bodies), array("Q", ends))
        assert of_lists == of_arrays
        assert [message.body for message in twin.Block.parse(of_lists).messages(0, 3)] == [b"aa", b"ccc"]

    def test_a_run_stops_where_a_decision_is_needed(self, twin: ModuleType) -> None:
        kinds = [MESSAGE, MESSAGE, VOID, MESSAGE, ADMIN, MESSAGE, MESSAGE]
        sequences, previous = [4, 5, 6, 9, 9, 10, 13], [3, 4, 5, 6, 9, 9, 12]
        ones = [1] * 7
        block = twin.Block.parse(twin.pack_columns("s", 1, kinds, sequences, previous, ones, ones, b"", [0] * 7))
        assert block.scan(0, 7, 4, 1, 1) == (1, 4, 1, 9, 1, 1)  # one repeat, three that follow (one is a void)
        assert block.scan(5, 7, 9, 1, 1) == (5, 6, 0, 10, 1, 1)
        assert block.scan(6, 7, 10, 1, 1) == (6, 6, 0, 10, 1, 1)  # a gap
        assert block.scan(6, 7, 12, 1, 2) == (6, 6, 0, 12, 1, 2)  # a part is missing
        assert [message.sequence for message in block.messages(1, 4)] == [5, 9]

    @pytest.mark.parametrize(
        "change",
        [
            {"first": 0},
            {"kinds": [9]},
            {"part": [2]},
            {"parts": [0]},
            {"previous": [5]},
            {"sequences": [1 << 63]},
            {"ends": [9]},
            {"source": ""},
            {"source": "x" * 256},
            {"kinds": []},
        ],
        ids=str,
    )
    def test_what_no_block_can_hold_is_not_packed(self, twin: ModuleType, change: dict[str, object]) -> None:
        good = {"source": "s", "first": 1, "kinds": [1], "sequences": [5], "previous": [4], "part": [1], "parts": [1]}
        twin.pack_columns(**good, data=b"abc", ends=[3])
        with pytest.raises(ValueError, match=r"record|block|body|source"):
            twin.pack_columns(**{**good, "data": b"abc", "ends": [3], **change})

    def test_bounds_of_size(self, twin: ModuleType) -> None:
        body = bytes(blocks.BODY_BYTES_MAX)
        record = Record(0, 1, "s", 1, 1, 1, 0, body)
        assert twin.Block.parse(twin.pack("s", 1, [record] * 3)).count == 3
        with pytest.raises(ValueError, match="body"):
            twin.pack("s", 1, [record._replace(body=body + b"x")])
        with pytest.raises(ValueError, match="block"):
            twin.pack("s", 1, [record] * 4)

    def test_indices_out_of_range(self, twin: ModuleType) -> None:
        block = twin.Block.parse(twin.pack("s", 1, [Record(0, 1, "s", 1, 1, 1, 0, b"")]))
        for call in (lambda: block.record(1), lambda: block.place(-1), lambda: block.scan(0, 2, 0, 1, 1)):
            with pytest.raises(IndexError):
                call()
        with pytest.raises(TypeError):
            twin.Block()

    @given(data=st.data())
    @settings(max_examples=300)
    def test_damaged_blocks_are_refused(self, twin: ModuleType, data: st.DataObject) -> None:
        good = blocks.pack("source", 77, data.draw(BLOCKS))
        spoilt = bytearray(good)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(spoilt) - 1))
            spoilt[at] ^= data.draw(st.integers(1, 255))
        cut = data.draw(st.integers(0, len(spoilt)) | st.just(len(spoilt)))
        if data.draw(st.booleans()) and len(spoilt) > 24:  # as somebody would who knows about the checksum
            spoilt[12:16] = crc32(bytes(spoilt[24:cut])).to_bytes(4, "little")
        try:
            block = twin.Block.parse(bytes(spoilt[:cut]))
        except RemoteProtocolError:
            return
        for i in range(block.count):  # what is taken for a block is one
            record = block.record(i)
            assert 1 <= record.part <= record.parts
            assert record.kind in range(1, 6)
        assert twin.pack(block.source, block.first, [block.record(i) for i in range(block.count)])

    @given(content=st.binary(max_size=200))
    def test_noise_is_refused(self, twin: ModuleType, content: bytes) -> None:
        with pytest.raises(RemoteProtocolError):
            twin.Block.parse(b"FB\x01" + content)

    def test_typed_records(self, twin: ModuleType) -> None:
        class Reader:
            def decode(self, body: bytes) -> dict[str, object]:
                return {"body": body}

        block = twin.Block.parse(twin.pack("s", 1, [Record(0, 1, "s", 1, 1, 1, 0, b"x")]))
        assert block.messages(0, 1, Reader())[0].record() == {"body": b"x"}
        with pytest.raises(LocalProtocolError, match="body"):
            block.messages(0, 1)[0].record()
        assert repr(block.messages(0, 1)[0]) == "<StreamMessage 1 s:1 1/1>"
        assert block.place(0) == Place(1, 1, 1)


def test_refusals_are_the_same_in_both_twins() -> None:
    good = bytearray(blocks.pack("s", 1, [Record(0, 1, "s", 1, 1, 1, 0, b"abc")]))
    texts = []
    for at in range(len(good)):
        spoilt = bytearray(good)
        spoilt[at] ^= 0xFF
        for fixed in (False, True):
            if fixed:
                spoilt[12:16] = crc32(bytes(spoilt[24:])).to_bytes(4, "little")
            each = []
            for twin in TWINS:
                try:
                    twin.Block.parse(bytes(spoilt))
                    each.append("")
                except RemoteProtocolError as error:
                    each.append(str(error))
            assert len(set(each)) == 1, (at, each)
            texts.append(each[0])
    assert len(set(texts)) > 6
