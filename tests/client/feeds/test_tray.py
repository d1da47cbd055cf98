"""What waits for the application, and the position of what it was given; and the stream's own clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.client.aio.feed_clock import FeedClock
from fairlead.client.aio.feed_line import LineAddress, read_address
from fairlead.client.aio.feed_tray import Entry, Tray
from fairlead.errors import ConfigError
from fairlead.feeds.block_codec import StreamMessage
from fairlead.feeds.events import Fresh, Lost, SnapshotEnded, Succeeded
from fairlead.feeds.records import ADMIN, MESSAGE, Place


def message(source: str, sequence: int, part: int = 1, parts: int = 1, late: bool = False) -> StreamMessage:
    return StreamMessage(sequence, MESSAGE, source, sequence, part, parts, b"", late)


def admin(source: str, sequence: int) -> StreamMessage:
    return StreamMessage(sequence, ADMIN, source, sequence, 1, 1, b"")


def test_the_position_is_what_was_handed_out_and_not_what_waits() -> None:
    tray = Tray({"a": Place(10)})
    tray.put([[message("a", n) for n in range(11, 16)], [message("b", 7, 1, 2), message("b", 7, 2, 2)]], 100)
    assert (tray.messages, tray.bytes, len(tray), tray.position) == (7, 100, 2, {"a": Place(10)})
    assert tray.next() is None
    assert [m.sequence for m in tray.take(2)] == [11, 12]
    assert (tray.position, tray.is_run_done) == ({"a": Place(12)}, False)
    assert [m.sequence for m in tray.take(9)] == [13, 14, 15]
    assert (tray.take(9), tray.is_run_done, tray.bytes) == ([], True, 0)
    tray.next()
    assert tray.position == {"a": Place(15)}
    tray.take(1)
    assert tray.position == {"a": Place(15), "b": Place(7, 1, 2)}


def test_administrative_and_late_messages_move_nothing() -> None:
    tray = Tray()
    runs: list[Entry] = [
        [admin("a", 3)],
        [message("a", 4), message("a", 2, late=True), admin("a", 4)],
        [admin("a", 4)],
    ]
    tray.put(runs, 0)
    tray.next()
    tray.take(1)
    assert tray.position == {}
    for _ in range(4):
        assert len(tray.take(1)) == 1
        assert tray.position == {"a": Place(4)}
    assert tray.is_run_done


def test_small_runs_of_one_source_become_one_and_those_given_stay_as_they_were() -> None:
    tray = Tray()
    runs = [[message("a", 1)], [message("a", 2)], [message("a", 3)], [message("b", 1)], [message("a", 4)]]
    tray.put([*runs, Fresh(), [message("a", 5)]], 7)
    assert [len(run) for run in runs] == [1] * 5
    assert (len(tray), tray.messages, tray.bytes) == (5, 6, 7)
    tray.next()
    assert [m.sequence for m in tray.take(9)] == [1, 2, 3]
    assert (tray.messages, tray.bytes) == (3, 0)


def test_some_events_move_the_position() -> None:
    tray = Tray({"a": Place(10)})
    tray.put(
        [
            Lost(source="a", first=11, last=18, last_part=2, why=""),
            Lost(source="a", first=18, last=20, why=""),
            Lost(source="a", first=5, last=6, why=""),
            Fresh(),
            Succeeded(old="a", new="b", start=1),
            SnapshotEnded(positions={"c": Place(5)}),
        ],
        1,
    )
    positions = []
    while tray:
        assert tray.next() is not None
        positions.append(tray.position)
    assert positions == [{"a": Place(17)}, *([{"a": Place(20)}] * 3), {"b": Place(0)}, {"c": Place(5)}]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5)), max_size=8), st.lists(st.integers(1, 4)))
def test_however_it_is_taken_the_position_is_the_last_one_of_each_source(
    runs: list[tuple[str, int]], takes: list[int]
) -> None:
    tray, reached, entries = Tray(), {"a": 0, "b": 0}, list[Entry]()
    for source, count in runs:
        entries.append([message(source, reached[source] + 1 + i) for i in range(count)])
        reached[source] += count
    tray.put(entries, 0)
    given_: dict[str, Place] = {}
    for count in [*takes, *([5] * len(runs) * 2)]:
        if tray.is_run_done and tray:
            tray.next()
        for one in tray.take(count):
            assert one.sequence == given_.get(one.source, Place(0)).sequence + 1
            given_[one.source] = Place(one.sequence)
        assert tray.position == given_
    assert {source: place.sequence for source, place in given_.items()} == {s: n for s, n in reached.items() if n}


def test_nothing_of_a_cleared_tray_is_handed_out() -> None:
    tray = Tray()
    tray.put([[message("a", 1), message("a", 2)], Fresh()], 10)
    tray.next()
    tray.take(1)
    tray.clear()
    assert (tray.take(5), len(tray), tray.messages, tray.bytes) == ([], 0, 0, 0)
    assert tray.position == {"a": Place(1)}


def test_the_clock_goes_on_only_while_somebody_looks() -> None:
    time = [100.0]
    clock = FeedClock(lambda: time[0], 0.1)
    time[0] += 0.05
    assert clock.now_s() == 0.05 or abs(clock.now_s() - 0.05) < 1e-9
    time[0] += 30.0  # the program was busy
    assert abs(clock.now_s() - 0.15) < 1e-9
    clock.stop()
    for _ in range(10):
        time[0] += 0.09
        clock.now_s()
    assert abs(clock.now_s() - 0.15) < 1e-9
    time[0] += 0.09
    clock.go_on()
    time[0] += 0.01
    assert abs(clock.now_s() - 0.16) < 1e-9


def test_addresses_of_lines() -> None:
    assert read_address("localhost:7500") == LineAddress("localhost", 7500, False)
    assert read_address("fairlead://[::1]:7500/") == LineAddress("::1", 7500, False)
    assert read_address("fairleads://feeds.example:1") == LineAddress("feeds.example", 1, True)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_clear_error(text: str) -> None:
    try:
        address = read_address(text)
    except ConfigError:
        return
    assert address.host
    assert 0 < address.port < 65536
