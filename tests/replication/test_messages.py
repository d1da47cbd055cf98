"""Messages come through the bus as they were, records uncopied; whatever else comes is refused and does no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.replication import messages as m
from fairlead.cluster.replication.record import ControlRecord
from fairlead.errors import RemoteProtocolError

RECORD = ControlRecord(5, 2, "a1.9f", frozenset({"a1.9f", "a2.03"}), frozenset({"a1.0", "a2.0", "c1.0"}), 2)
DATA = memoryview(b"records")
ALL = [
    m.PromiseAsk(6, "a1.9f"),
    m.PromiseAsk(6, "a1.9f", trial=True),
    m.Willing("c1.0", 6, RECORD),
    m.RecordAsk(RECORD, 12.25, 3),
    m.StepDown(5, "a1.9f"),
    m.Promised("c1.0", 6, RECORD),
    m.Recorded("c1.0", 5, 2, 12.25),
    m.Refused("", 7),
    m.Append(5, RECORD, 9, 3, 10, 4, ((2, 4), (1, 5)), DATA),
    m.Append(5, RECORD, 9, 3, 10, 4, (), memoryview(b"")),
    m.Stored(5, "a2.03", 12, 0),
    m.JoinAsk(6),
    m.Joined(6, "a2.03", 5, 12),
    m.FetchAsk(6, 13, 5),
    m.Fetched(6, "a2.03", 5, 14, 3, 0, 13, 5, ((2, 5),), DATA),
    m.TakeOver(5),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_every_message_comes_through(message: m.Message) -> None:
    assert m.decode(m.encode(message)) == message


def test_records_are_not_copied_when_they_come_in() -> None:
    received = m.encode(m.Append(5, RECORD, 9, 3, 10, 5, ((1, 5),), memoryview(bytes(1 << 20))))
    append = m.decode(received)
    assert isinstance(append, m.Append)
    assert append.batch.data.obj is received  # type: ignore[union-attr]
    assert (append.batch.first, append.batch.last) == (10, 10)


@pytest.mark.parametrize("size", [0, 1, m.PIECE_BYTES - 1, m.PIECE_BYTES, 1 << 20])
def test_pieces_are_the_same_bytes(size: int) -> None:
    data = memoryview(bytes(size))
    runs = ((1, 5),) if size else ()
    for message in (
        m.Append(5, RECORD, 9, 3, 10, 5, runs, data),
        m.Fetched(6, "a2.03", 5, 14, 3, 0, 13, 5, runs, data),
        m.JoinAsk(6),
    ):
        pieces = m.encode_pieces(message)
        assert m.decode(b"".join(pieces)) == message
        assert size < m.PIECE_BYTES or isinstance(message, m.JoinAsk) or pieces[-1] is data.obj


@pytest.mark.parametrize(
    "append",
    [
        m.Append(5, RECORD, 9, 3, 0, 4, (), memoryview(b"")),
        m.Append(5, RECORD, 9, 3, 10, -1, (), memoryview(b"")),
        m.Append(5, RECORD, 9, 3, 10, 4, ((0, 5),), DATA),
        m.Append(5, RECORD, 9, 3, 10, 4, ((-3, 5),), DATA),
        m.Append(5, RECORD, 9, 3, 10, 4, ((1, 5), (1, 4)), DATA),
        m.Append(5, RECORD, 9, 3, 10, 4, ((1, 5),), memoryview(b"")),
        m.Append(5, RECORD, 9, 3, 10, 4, (), DATA),
    ],
)
def test_records_numbered_wrongly_are_refused(append: m.Append) -> None:
    with pytest.raises(RemoteProtocolError):
        m.decode(m.encode(append))


@given(st.binary(max_size=300))
def test_hostile_bytes_are_refused(data: bytes) -> None:
    try:
        m.decode(data)
    except RemoteProtocolError:
        pass


@given(st.sampled_from(ALL), st.data())
def test_a_message_with_a_wrong_byte_is_another_message_or_none(message: m.Message, data: st.DataObject) -> None:
    sent = bytearray(m.encode(message))
    sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    try:
        m.encode(m.decode(sent))
    except RemoteProtocolError:
        pass
