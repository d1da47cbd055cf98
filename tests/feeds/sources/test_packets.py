"""Packets of a numbered feed: both twins agree, whatever the bytes are."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.feeds.sources import mold, mold_codec
from fairlead.feeds.sources.runs import Run, rows_of, run_of

compiled = pytest.importorskip("fairlead.feeds.sources._mold") if mold_codec.COMPILED else mold
SESSION = b"DAY0000001"
bodies_strategy = st.lists(st.binary(max_size=60), max_size=40)


@settings(deadline=None)
@given(bodies=bodies_strategy, first=st.integers(1, mold.SEQUENCE_MAX - 100), count=st.integers(1, 7))
def test_what_is_packed_comes_out_again(bodies: list[bytes], first: int, count: int) -> None:
    run = run_of(first, bodies)
    packets = mold.pack(SESSION, first, run.lengths, run.data, count, 200)
    assert packets == compiled.pack(SESSION, first, run.lengths, run.data, count, 200)
    assert all(len(packet) <= 200 for packet in packets)
    found, expected = [], first
    for packet in packets:
        for split in (mold.split, compiled.split):
            session, sequence, number, lengths, data = split(packet)
            assert (session, sequence) == (SESSION, expected)
            assert number <= count
        found += Run(sequence, lengths, data).bodies()
        expected += number
    assert found == bodies


def outcome(split: object, packet: bytes) -> object:
    try:
        return split(packet)  # type: ignore[operator]
    except mold.BadPacket as error:
        return str(error)


@settings(deadline=None, max_examples=500)
@given(packet=st.binary(max_size=120))
@example(packet=mold.HEADER.pack(SESSION, 0, 1) + b"\0\1x")
@example(packet=mold.HEADER.pack(SESSION, 1 << 63, 1) + b"\0\1x")
@example(packet=mold.HEADER.pack(SESSION, 5, 0xFFFE) + b"\0\0" * 3)
@example(packet=mold.HEADER.pack(SESSION, 5, 2) + b"\xff\xffabc")
@example(packet=mold.HEADER.pack(SESSION, 5, 0) + b"x")
def test_garbage_is_told_from_packets_by_both_twins_alike(packet: bytes) -> None:
    assert outcome(mold.split, packet) == outcome(compiled.split, packet)


@settings(deadline=None)
@given(head=st.tuples(st.integers(1, 1000), st.integers(0, 6)), rest=st.binary(max_size=40))
def test_counts_and_lengths_that_lie(head: tuple[int, int], rest: bytes) -> None:
    packet = mold.HEADER.pack(SESSION, *head) + rest
    result = outcome(mold.split, packet)
    assert result == outcome(compiled.split, packet)
    if not isinstance(result, str):
        assert isinstance(result, tuple)
        assert len(result[4]) + 2 * head[1] == len(rest)


def test_heartbeat_and_end_of_session() -> None:
    assert mold_codec.split(mold.heartbeat(SESSION, 7))[:3] == (SESSION, 7, mold.HEARTBEAT)
    assert mold_codec.split(mold.heartbeat(SESSION, 7, is_end=True))[:3] == (SESSION, 7, mold.END_OF_SESSION)


def test_a_question_has_the_form_of_a_packet_without_messages() -> None:
    assert mold.HEADER.unpack(mold.request(SESSION, 5, 100_000)) == (SESSION, 5, mold.COUNT_MAX)


def test_the_compiled_pack_refuses_lengths_that_lie() -> None:
    if not mold_codec.COMPILED:
        pytest.skip("only the compiled twin looks at raw memory")
    with pytest.raises(ValueError, match="fewer bytes"):
        compiled.pack(SESSION, 1, (100).to_bytes(4, "little"), b"short")
    with pytest.raises(ValueError, match="at most"):
        compiled.pack(SESSION, 1, (-1).to_bytes(4, "little", signed=True), b"short")
    with pytest.raises(ValueError, match="ten bytes"):
        compiled.pack(b"DAY", 1, b"", b"")


@settings(deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=9), min_size=1, max_size=12),
    cuts=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_a_run_can_be_cut_anywhere(bodies: list[bytes], cuts: tuple[int, int]) -> None:
    run = run_of(5, bodies)
    piece = run.cut(*cuts)
    kept = [(n, body) for n, body in enumerate(bodies, 5) if cuts[0] <= n <= cuts[1]]
    assert piece.bodies() == [body for _, body in kept]
    if kept:
        assert (piece.first, piece.last) == (kept[0][0], kept[-1][0])


@settings(deadline=None)
@given(
    parts=st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=5), min_size=1, max_size=5),
    gap=st.integers(0, 3),
)
def test_runs_become_one_batch(parts: list[list[bytes]], gap: int) -> None:
    runs, first = [], 10
    for bodies in parts:
        runs.append(run_of(first, bodies))
        first += len(bodies) + gap
    rows = rows_of(runs)
    rows.validate(full=True)
    assert rows.column(1).to_pylist() == [body for bodies in parts for body in bodies]
    assert rows.column(0).to_pylist() == [n for run in runs for n in range(run.first, run.last + 1)]
