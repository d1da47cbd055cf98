"""A small journal cut at every byte and with every bit flipped: nothing whole is lost, nothing bad is read as data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.journal.layout import ITEM_BYTES
from tests.journal.small import Small, Written, build

pytestmark = pytest.mark.requirement("CLU-114")


@pytest.fixture(params=["clean", "crashed"])
def small(request: pytest.FixtureRequest) -> Iterator[Small]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield build(Path(folder) / "journal", clean=request.param == "clean")


def test_the_journal_is_whole_to_begin_with(small: Small) -> None:
    found, recovery = small.recover()
    assert found == {one.index: one.body for one in small.written}
    assert recovery.damage == []
    assert recovery.torn is None


def test_a_flipped_bit_anywhere_is_reported_and_loses_one_record_at_most(small: Small) -> None:
    # Every bit of what was written, and some of what was not.
    for name, end in list(small.ends().items())[0 if small.clean else -1 :]:  # only the end differs
        data = small.files[name]
        for offset in range(min(len(data), end + 16)):
            for bit in range(8):
                check_flip(small, name, data, offset, bit)
            small.change(name, data)


def check_flip(small: Small, name: str, data: bytes, offset: int, bit: int) -> None:
    changed = bytearray(data)
    changed[offset] ^= 1 << bit
    small.change(name, bytes(changed))
    if bit == offset % 8:  # the whole of a start, which puts right what it finds
        found, recovery = small.recover()
        assert small.look()[0] == found
        small.put_back()
    else:
        found, recovery = small.look()
    hit = [one for one in small.written if f"{one.segment:08d}.seg" == name and offset in one.span]
    where = f"{name} offset {offset} bit {bit}"
    lost = [one for one in small.written if one.index not in found]
    assert all(found[one.index] == one.body for one in small.written if one.index in found), where
    assert set(found) <= {one.index for one in small.written}, where
    assert lost == hit, where
    findings = [*recovery.damage, *([recovery.torn] if recovery.torn else [])]
    if hit:
        assert any(one.segment == hit[0].segment and one.first <= hit[0].index <= one.last for one in findings), where
    elif is_read(small, name, offset):
        assert findings, where
        assert all(one.segment == int(name[:8]) for one in findings), where


def is_read(small: Small, name: str, offset: int) -> bool:
    """Is the byte part of a header? Padding behind bodies says nothing."""
    records = [one for one in small.written if f"{one.segment:08d}.seg" == name]
    return offset < records[-1].span.stop and not any(one.span.stop <= offset < one.end for one in records)


def test_a_cut_anywhere_loses_only_what_was_behind_it(small: Small) -> None:
    for name in small.ends():
        data = small.files[name]
        for length in range(len(data)):
            small.change(name, data[:length])
            found, recovery = small.recover()
            kept = {one.index: one.body for one in small.written if survives(one, name, length)}
            assert found == kept, f"{name} cut to {length}"
            assert recovery.damage, f"{name} cut to {length}"
            small.put_back()


def survives(one: Written, name: str, length: int) -> bool:
    return f"{one.segment:08d}.seg" != name or one.span.stop <= length


def test_a_missing_segment_is_reported(small: Small) -> None:
    for name in list(small.ends())[:-1]:
        (small.directory / name).unlink()
        found, recovery = small.recover()
        lost = [one.index for one in small.written if one.index not in found]
        assert lost == [one.index for one in small.written if f"{one.segment:08d}.seg" == name]
        assert any(one.first <= lost[0] and lost[-1] <= one.last for one in recovery.damage)
        small.put_back()


def test_what_was_cut_off_does_not_come_back(small: Small) -> None:
    # The last record is torn; the start after that must not find it whole again, whatever is written over it.
    name, end = list(small.ends().items())[-1]
    data = bytearray(small.files[name])
    last = small.written[-1]
    data[last.span.stop - 1] ^= 1
    data[end:] = bytes(len(data) - end)
    small.change(name, bytes(data))
    found, recovery = small.recover()
    assert last.index not in found
    assert recovery.torn is not None
    repaired = (small.directory / name).read_bytes()
    assert not any(repaired[last.span.start + ITEM_BYTES :])  # but for a mark
    again, recovery = small.recover()
    assert again == found
    assert recovery.torn is None
