"""Lines, FIX messages and packets out of a stream of bytes, however it is cut; and the made-up day."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.feeds.sources import lines, mold
from fairlead.feeds.sources.actions import Began, Lost, Ready
from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.lines import FixSplitter, LineSplitter, PacketSplitter, Splitter
from fairlead.feeds.sources.pacing import Pacing
from fairlead.feeds.sources.recorded import Recorded
from tests.feeds.formats.test_texts import fixed
from tests.feeds.sources.test_recovery import DAY, NEXT, packet

GOOD_FIX = [fixed(b"35=D\x0144=1\x01"), fixed(b"35=0\x01"), fixed(b"35=8\x0158=8=FIX.4.2\x019=5\x01\x01")]
CALM = settings(deadline=None, max_examples=60)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


def fed(splitter: Splitter, data: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    runs = [*(splitter.feed(piece) for piece in pieces_of(data, cuts)), splitter.end()]
    return [(number, body) for run in runs for number, body in enumerate(run.bodies(), run.first)]


@CALM
@given(
    data=st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r\n", b"\x00", "ü".encode()]), max_size=60),
    cuts=st.lists(st.integers(0, 99)),
)
def test_lines_however_they_are_cut(data: list[bytes], cuts: list[int]) -> None:
    text = b"".join(data)
    wanted = text.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    assert fed(LineSplitter(), text, cuts) == list(enumerate(wanted, 1))


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100)
    splitter = LineSplitter()
    found = []
    for piece in (b"one\n", b"x" * 90, b"x" * 90, b"x" * 90, b"tail\ntwo\n", b"y" * 150 + b"\nthree\n"):
        found += splitter.feed(piece).bodies()
        assert len(splitter._rest) <= 200
    assert found == [b"one", b"", b"two", b"", b"three"]
    assert splitter.troubles == {"a line that is too long": 2}


@CALM
@given(
    parts=st.lists(st.sampled_from([*GOOD_FIX, b"garbage", b"8=FIX", b"8=FIX.4.4\x019=99999\x01"]), max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_fix_messages_between_garbage(parts: list[bytes], cuts: list[int]) -> None:
    found = [body for _, body in fed(FixSplitter(), b"".join(parts), cuts)]
    assert found == [part for part in parts if part in GOOD_FIX]


@CALM
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_are_survived(data: bytes, cuts: list[int]) -> None:
    for splitter in (LineSplitter(), FixSplitter()):
        fed(splitter, data, cuts)
    packets = PacketSplitter()
    try:
        for piece in pieces_of(data, cuts):
            packets.feed(piece)
    except ValueError as error:
        assert "shorter than its header" in str(error)


@CALM
@given(count=st.integers(1, 9), cuts=st.lists(st.integers(0, 999), max_size=9))
def test_packets_in_a_stream(count: int, cuts: list[int]) -> None:
    wanted = [packet(n * 10 + 1, n * 10 + 10) for n in range(count)]
    data = b"".join(len(one).to_bytes(2, "big") + one for one in wanted)
    splitter = PacketSplitter()
    assert [one for piece in pieces_of(data, cuts) for one in splitter.feed(piece)] == wanted


def test_a_recorded_file_with_a_hole_a_repetition_and_another_session() -> None:
    recorded = Recorded()
    actions = []
    for data in (packet(5, 10), packet(16, 20), packet(8, 12), packet(1, 3, NEXT), packet(30, 31), b"nonsense"):
        actions += recorded.on_packet(data)
    actions += recorded.on_packet(mold.heartbeat(NEXT, 6)) + recorded.on_end()
    told = [(a.session, a.run.first, a.run.last) if isinstance(a, Ready) else a for a in actions]
    assert told == [
        Began("DAY1", "", 5), ("DAY1", 5, 10), ("DAY1", 11, 12), Lost("DAY1", 13, 15), ("DAY1", 16, 20),
        Began("DAY2", "DAY1", 1), ("DAY2", 1, 3), Lost("DAY2", 4, 5),
    ]  # fmt: skip
    assert recorded.troubles == {"a session that is over": 1, "no packet: shorter than its header": 1}
    assert recorded.counters["duplicates"] == 3
    assert DAY == b"DAY1      "


@CALM
@given(seed=st.integers(0, 1 << 70), first=st.integers(1, 5000), count=st.integers(1, 300))
def test_a_day_follows_from_the_seed_and_the_sequence_alone(seed: int, first: int, count: int) -> None:
    day = TradingDay(seed=seed, messages=5000, malformed=500)
    whole = TradingDay(seed=seed, messages=5000, malformed=500).run(max(1, first - 50), count + 100)
    assert day.run(first, count) == whole.cut(first, first + count - 1)


def test_a_day_has_an_end_and_a_beginning() -> None:
    day = TradingDay(messages=1000)
    bodies = day.run(1, 5000).bodies()
    assert len(bodies) == 1000
    events = [(n, body[17:18]) for n, body in enumerate(bodies, 1) if body[:1] == b"S"]
    assert events == [(1, b"O"), (2, b"Q"), (999, b"M"), (1000, b"C")]
    assert day.run(1001, 5).size == 0
    assert TradingDay(seed=2, messages=1000).run(1, 1000) != day.run(1, 1000)


def test_orders_are_added_before_they_are_spoken_of() -> None:
    added: dict[int, bytes] = {}
    for number, body in enumerate(TradingDay(messages=20_000).run(1, 20_000).bodies(), 1):
        if body[:1] == b"A":
            assert int.from_bytes(body[17:25], "big") == number
            added[number] = body[9:17]
        elif body[:1] in b"EXD":
            assert added[int.from_bytes(body[17:25], "big")] == body[9:17]
    assert len(added) > 5000


@pytest.mark.parametrize("wrong", [{"messages": 3}, {"symbols": 0}, {"malformed": 10_001}])
def test_days_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        TradingDay(**wrong)  # type: ignore[arg-type]


def test_pacing() -> None:
    pacing = Pacing(1000.0, 50.0)
    assert pacing.due(49.0) == 0
    assert pacing.wait_s(49.0) == 1.0
    assert pacing.due(50.1) == 100
    assert pacing.due(50.1) == 0
    assert np.isclose(pacing.wait_s(50.1), 0.001)
    assert sum(pacing.due(150.0) for _ in range(20)) == 99_900, "who is late catches up"
    assert Pacing(0.0, 0.0).due(1.0) > 1000
