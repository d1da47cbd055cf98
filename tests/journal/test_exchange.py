"""Records from one journal to another: both twins do the same, and what comes is what was sent or is refused."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.journal import exchange, records
from fairlead.journal.edge.journal import Journal
from fairlead.journal.epochs import Epochs
from fairlead.journal.faults import JournalDamaged, StoreFull
from fairlead.journal.layout import place_of, segment_of
from fairlead.runtime import extensions
from tests.journal.small import Hasty
from tests.journal.test_journal import checkpoint, open_journal, until
from tests.journal.test_records import PLACE, SEED, bodies


class Plain:
    """The plain twins under the names of the compiled module."""

    Batch = records.Batch
    walk, export, check_export = (
        staticmethod(exchange.walk),
        staticmethod(exchange.export),
        staticmethod(exchange.check_export),
    )


if extensions.is_pure() or "fairlead.journal._records" in extensions.missing():
    TWINS: list[Any] = [Plain]
else:
    from fairlead.journal import _records

    TWINS = [Plain, _records]

Items = list[tuple[int, bytes, bytes]]


def sent(twin: Any, items: Items, first: int = 100, most_bytes: int = 1 << 20, *, verify: bool = True) -> Any:
    batch = twin.Batch(SEED, PLACE, 100)
    for number, (kind, head, payload) in enumerate(items):
        batch.add(kind, head, payload, 5 + number // 2, 5 + (number - 1) // 2 if number else 4)
    data = bytes(batch.finish(99, 1))
    return twin.export(data, 0, PLACE, SEED, first, 1 << 60, most_bytes, verify)


@given(bodies, st.integers(100, 104), st.integers(0, 400), st.booleans())
def test_the_twins_send_the_same(items: Items, first: int, most_bytes: int, verify: bool) -> None:
    assert len({sent(twin, items, first, most_bytes, verify=verify) for twin in TWINS}) == 1


@pytest.mark.parametrize("twin", TWINS)
@given(items=bodies, skip=st.integers(0, 3))
def test_what_is_sent_can_be_taken(twin: Any, items: Items, skip: int) -> None:
    data, count, _ = sent(twin, items)
    assert count == len(items)
    if skip > count:
        with pytest.raises(ValueError):
            twin.check_export(data, skip)
        return
    first, previous, runs, longest, start = twin.check_export(data, skip)
    assert (first, previous) == ((100, 4) if items else (0, 0))
    assert sum(one for one, _ in runs) == count
    assert longest == max((len(head + payload) for _, head, payload in items), default=0)
    batch = twin.Batch(SEED + 1, PLACE + 8000, 100 + skip)
    out: list[Any] = []
    assert batch.take(data, start, 1 << 30, out) == len(data)
    whole = batch.finish(0, 0)
    for (_, place, kind, at, size), (wanted, head, payload) in zip(out, items[skip:], strict=True):
        assert kind == wanted
        assert data[at : at + size] == head + payload == bytes(whole[place - PLACE - 8000 :][:size])
    found, _ = twin.walk(whole, 0, PLACE + 8000, SEED + 1, 1, 1 << 60, 1 << 30)
    assert [one[:5] for one in found] == [(i, p, k, p - PLACE - 8000, s) for i, p, k, _, s in out]


@given(bodies, st.data())
@settings(max_examples=300)
def test_what_was_changed_on_its_way_is_refused_and_nothing_falls_over(items: Items, data: st.DataObject) -> None:
    good = bytearray(sent(Plain, items)[0])
    what = data.draw(st.sampled_from(["flip", "cut", "swap", "noise", "twice"]))
    if what == "flip" and good:
        good[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif what == "cut":
        del good[data.draw(st.integers(0, len(good))) :]
    elif what == "swap":
        middle = data.draw(st.integers(0, len(good) // 8)) * 8
        good = good[middle:] + good[:middle]
    elif what == "noise":
        good += data.draw(st.binary(max_size=80))
    else:
        good = good + good
    answers = []
    for twin in TWINS:
        try:
            answers.append(twin.check_export(bytes(good), 0))
        except ValueError as error:
            answers.append(str(error))
        for offset in (0, 8, len(good)):
            batch = twin.Batch(SEED, PLACE, 100)
            try:  # unchecked, it may refuse but must not fall over
                batch.take(bytes(good), offset, 1 << 20, [])
            except ValueError:
                pass
    assert all(answer == answers[0] for answer in answers)


def fill(journal: Journal, count: int, chance: random.Random, epoch: int = 0) -> list[tuple[int, bytes, int]]:
    journal.epoch = epoch or journal.epoch
    out = []
    for _ in range(count):
        body = chance.randbytes(chance.choice((0, 3, 200, 900)))
        journal.append(7, body[:2], body[2:])
        out.append((7, body, journal.epoch))
    return out


def carry(source: Journal, target: Journal, most_bytes: int = 4096) -> None:
    """Everything the target does not have."""
    while target.last < source.last:
        found = source.export(target.last + 1, most_bytes)
        if found is None:
            source.collect()
            continue
        assert found.first == target.last + 1
        assert found.previous == target.epoch_at(target.last)
        target.take(found.data)
        assert target.last == found.first + sum(count for count, _ in found.epochs) - 1


def log_of(journal: Journal) -> list[tuple[int, bytes, int]]:
    return [(one.kind, bytes(one.body), one.epoch) for one in journal.replay(journal.first_readable, journal.last)]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_journal_feeds_another_from_memory_and_from_the_files(tmp_path: Path, sealed: bool) -> None:
    chance = random.Random(1)
    source, _ = open_journal(tmp_path / "a", files=Hasty(), cache_bytes=2000)
    wanted = fill(source, 50, chance, 1)
    if sealed:
        source.flush()
    for epoch in (2, 5):
        wanted += fill(source, 40, chance, epoch)
        source.submit()
    target, _ = open_journal(tmp_path / "b", files=Hasty(), segment_bytes=8192)
    carry(source, target)
    assert log_of(source) == log_of(target) == wanted
    target.flush()
    target.close()
    target, found = open_journal(tmp_path / "b", files=Hasty(), segment_bytes=8192)
    assert [(one.kind, bytes(one.body), one.epoch) for one in found.records()] == wanted
    assert not found.damage
    assert [target.epoch_at(i) for i in range(132)] == [source.epoch_at(i) for i in range(132)]
    assert [target.epoch_at(i) for i in (0, 1, 51, 91, 131)] == [0, 1, 2, 5, -1]
    target.close()
    source.close()


def test_what_does_not_follow_is_not_taken(tmp_path: Path) -> None:
    source, _ = open_journal(tmp_path / "a", files=Hasty())
    target, _ = open_journal(tmp_path / "b", files=Hasty())
    fill(source, 5, random.Random(1), 3)
    found = source.export(2, 1 << 20)
    assert found is not None
    with pytest.raises(ValueError, match="does not follow"):
        target.take(found.data)
    target.append(7, b"of another epoch")
    with pytest.raises(ValueError, match="does not follow"):
        target.take(found.data)
    assert target.last == 1
    whole = source.export(1, 1 << 20)
    assert whole is not None
    with pytest.raises(ValueError, match=r"(not what was sent|no record)"):
        target.take(whole.data[:60] + b"?" + whole.data[61:])
    for one in (source, target):
        one.abort()


def test_records_that_were_taken_are_known_to_the_room(tmp_path: Path) -> None:
    """What a backup has in its files counts as its own writing does."""
    from tests.journal.test_journal import store

    source, _ = open_journal(tmp_path / "a", files=Hasty())
    target, _ = open_journal(tmp_path / "b", files=Hasty())
    for order in range(1, 60):
        source.append(8, *store(order))
    carry(source, target)
    target.flush()
    checkpoint(target)
    assert target.reclaim(lambda number, first, beyond: True) == 0
    gone = target.reclaim(lambda number, first, beyond: beyond > 40)
    assert gone > 0
    until(target, lambda: target.first_readable > 1)
    with pytest.raises(IndexError):
        target.export(1, 100)
    assert target.epoch_at(1) == source.epoch_at(1)
    for one in (source, target):
        one.abort()


def test_the_epoch_of_the_last_record_outlives_its_file(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, files=Hasty())
    fill(journal, 3, random.Random(1), 4)
    fill(journal, 3, random.Random(1), 9)
    journal.flush()
    checkpoint(journal)
    journal.close()
    for path in tmp_path.glob("*.seg"):
        if path.name != "00000001.seg":
            path.unlink()
    (tmp_path / "00000001.seg").unlink()
    journal, found = open_journal(tmp_path, files=Hasty())
    assert found.damage  # that was hardly an orderly way to lose a file
    found.finish()
    assert journal.last == 6
    assert [journal.epoch_at(index) for index in (3, 4, 6, 7)] == [4, 9, 9, -1]
    journal.abort()


def test_a_checkpoint_counts_when_all_of_it_is_safe_in_the_group(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, files=Hasty())
    journal.stable = 0
    fill(journal, 6, random.Random(1), 1)
    journal.flush()
    under_way = journal.checkpoint()
    under_way.add(b"state", b"x")
    under_way.finish(4)
    journal.stable = 5
    journal.collect()
    assert not under_way.done
    assert not journal._room.is_settling
    journal.stable = 6
    until(journal, lambda: under_way.done)
    assert journal.covers == 4
    journal.close()


def test_no_file_goes_on_the_word_of_what_may_be_undone(tmp_path: Path) -> None:
    from tests.journal.test_journal import settle, store

    journal, _ = open_journal(tmp_path, files=Hasty())
    journal.stable = 0
    for order in range(1, 60):
        journal.append(8, *store(order))
    journal.flush()
    journal.stable = journal.last
    checkpoint(journal)
    journal.append(12, settle(1))
    assert journal.reclaim(lambda number, first, beyond: False) == 0
    journal.flush()
    assert journal.reclaim(lambda number, first, beyond: False) == 0, "the record is not safe in the group"
    journal.stable = journal.last
    journal.append(12, settle(2))
    assert journal.reclaim(lambda number, first, beyond: False) > 0
    journal.abort()


def test_a_state_leaves_out_a_file_that_is_being_given_up(tmp_path: Path) -> None:
    from tests.journal.test_journal import settle, store

    journal, _ = open_journal(tmp_path, files=Hasty())
    for order in range(1, 60):
        journal.append(8, *store(order))
    journal.append(12, settle(59))
    journal.flush()
    checkpoint(journal)
    assert journal.reclaim(lambda number, first, beyond: False) > 0
    first = tmp_path / "00000001.seg"
    deadline = time.monotonic() + 10
    while first.exists() and time.monotonic() < deadline:  # the thread takes it away; the journal has not heard of it
        time.sleep(0.001)
    state = journal.state()
    assert "journal/00000001.seg" not in [part.name for part in state.parts]
    journal.release(state)
    journal.abort()


def test_a_damaged_file_is_not_fed_to_anybody(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, files=Hasty(), cache_bytes=1)
    fill(journal, 60, random.Random(1), 1)
    journal.flush()
    places = [one.place for one in journal.replay(1, 60)]
    path = tmp_path / f"{segment_of(places[3]):08d}.seg"
    data = bytearray(path.read_bytes())
    data[places[3] - place_of(segment_of(places[3]), 0) - 10] ^= 1
    path.write_bytes(data)
    journal.close()
    journal, _ = open_journal(tmp_path, files=Hasty(), cache_bytes=1)
    with pytest.raises((JournalDamaged, IndexError)):
        while (found := journal.export(4, 4096)) is None:
            journal.collect()
        raise AssertionError(found)
    journal.abort()


def test_a_full_disk_takes_what_it_can_and_says_so(tmp_path: Path) -> None:
    source, _ = open_journal(tmp_path / "a", files=Hasty())
    target, _ = open_journal(tmp_path / "b", files=Hasty(), segment_bytes=4096, quota_bytes=3 * 4096)
    wanted = fill(source, 60, random.Random(1), 1)
    found = source.export(1, 1 << 20)
    assert found is not None
    out: list[Any] = []
    with pytest.raises(StoreFull):
        target.take(found.data, 0, out)
    assert 0 < target.last == len(out) < 60
    assert log_of(target) == wanted[: target.last]
    for one in (source, target):
        one.abort()


@pytest.mark.requirement("CLU-113", state="half", note="the journal's part")
def test_a_full_disk_still_takes_what_frees_room(tmp_path: Path) -> None:
    message, settlement = 8, 10
    source, _ = open_journal(tmp_path / "a", files=Hasty())
    target, _ = open_journal(tmp_path / "b", files=Hasty(), segment_bytes=4096, quota_bytes=3 * 4096)
    for _ in range(60):
        source.append(message, bytes(300))
    source.flush()
    found = source.export(1, 1 << 20)
    assert found is not None
    with pytest.raises(StoreFull):
        target.take(found.data)
    target.flush()
    last = target.last
    assert 0 < last < 60
    assert target.full
    other, _ = open_journal(tmp_path / "c", files=Hasty())
    for kind in (*[message] * last, *[settlement] * 9, message, settlement):
        other.append(kind, bytes(300))
    other.flush()
    found = other.export(last + 1, 1 << 20)
    assert found is not None
    with pytest.raises(StoreFull):
        target.take(found.data)
    assert target.last == last + 9
    for one in (source, target, other):
        one.abort()


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=20))
def test_epochs_are_what_was_told(steps: list[tuple[int, int]]) -> None:
    epochs, model, epoch = Epochs(), [0], 0
    for count, more in steps:
        epoch += more
        for _ in range(count):
            epochs.note(len(model), epoch)
            model.append(epoch)
    again = Epochs.of_blob(epochs.blob(len(model) - 1))
    assert again is not None
    for one in (epochs, again):
        assert [one.at(index) for index in range(len(model) + 1)] == [*model, -1]
        runs = one.runs(1, len(model) - 1)
        assert [e for count, e in runs for _ in range(count)] == model[1:]
    assert Epochs.of_blob(b"{}") is None is Epochs.of_blob(b"\xff")


def test_the_twins_are_what_the_codec_chose() -> None:
    from fairlead.journal import codec

    assert codec.export is TWINS[-1].export
