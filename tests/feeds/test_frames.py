"""Framing of lines: however the bytes are cut, the same frames come out; hostile ones give an error, nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import LocalProtocolError, RemoteProtocolError
from fairlead.feeds import speech, words
from fairlead.feeds.frames import (
    ACCEPTED_BYTES_MAX,
    BLOCK,
    FILL,
    HANDSHAKE_BYTES_MAX,
    WORD,
    Frame,
    FrameParser,
    block_header,
    fill_frame,
    word_frame,
)

BEAT = words.Beat(epoch=3, incarnation=7, role="backup", last=12, positions={"s": (4, 1, 2)})

epochs = st.integers(0, (1 << 64) - 1)
sent = st.lists(
    st.one_of(
        st.builds(lambda text: (WORD, word_frame(words.Closing(why=text)), text), st.text(max_size=40)),
        st.builds(lambda e, b: (BLOCK, block_header(len(b), e) + b, (e, b)), epochs, st.binary(max_size=60)),
        st.builds(
            lambda q, b, last: (FILL, fill_frame(b, q, last), (q, b, last)),
            epochs,
            st.binary(max_size=60),
            st.booleans(),
        ),
    ),
    max_size=12,
)


def told(frame: Frame) -> tuple[int, object]:
    if frame.kind == WORD:
        word = speech.TO_CLIENT.decode(frame.payload)
        assert isinstance(word, words.Closing)
        return WORD, word.why
    if frame.kind == BLOCK:
        return BLOCK, (frame.number, bytes(frame.payload))
    return FILL, (frame.number, bytes(frame.payload), frame.is_last)


@given(sent, st.lists(st.integers(1, 40), max_size=60))
def test_however_the_bytes_are_cut_the_same_frames_come_out(
    frames: list[tuple[int, bytes, object]], cuts: list[int]
) -> None:
    data = b"".join(blob for _, blob, _ in frames)
    parser, found, at = FrameParser(), [], 0
    for cut in [*cuts, len(data) + 1]:
        found += parser.feed(data[at : at + cut])
        at += cut
        assert parser.waiting_bytes <= len(data)
    assert [told(frame) for frame in found] == [(kind, meant) for kind, _, meant in frames]
    assert parser.waiting_bytes == 0


def test_a_whole_frame_is_a_view_of_what_was_fed() -> None:
    data = block_header(4, 9) + b"body"
    (frame,) = FrameParser().feed(data)
    assert frame.payload.obj is data


def test_a_frame_in_pieces_is_put_together_once_and_the_next_begins_afresh() -> None:
    data = block_header(100_000, 1) + bytes(100_000) + word_frame(BEAT)
    parser = FrameParser(ACCEPTED_BYTES_MAX)
    assert parser.feed(data[:50_000]) == []
    assert parser.waiting_bytes == 50_000
    block, word = parser.feed(data[50_000:])
    assert (len(block.payload), speech.TO_CLIENT.decode(word.payload)) == (100_000, BEAT)
    assert bytes(block.payload) == bytes(100_000)  # still what it was, though the parser has gone on


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_hostile_bytes_give_frames_or_an_error_and_little_is_kept(pieces: list[bytes]) -> None:
    parser = FrameParser(100)
    for piece in pieces:
        try:
            frames = parser.feed(piece)
        except RemoteProtocolError:
            return
        assert parser.waiting_bytes <= 104
        for frame in frames:
            assert frame.kind in (WORD, BLOCK, FILL)
            assert len(frame.payload) < 100


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack("<IB", HANDSHAKE_BYTES_MAX + 1, WORD), "at most 65536"),
        (struct.pack("<I", 0xFFFFFFFF), "at most 65536"),
        (struct.pack("<I", 0), "shorter than its own head"),
        (struct.pack("<IB", 8, BLOCK), "shorter than its own head"),
        (struct.pack("<IB", 9, FILL), "shorter than its own head"),
        (struct.pack("<IB", 20, 4), "no frames of kind 4"),
        (struct.pack("<IBQB", 10, FILL, 1, 2), "last one"),
    ],
)
def test_what_is_wrong_is_said_before_the_content_is_waited_for(data: bytes, text: str, one_by_one: bool) -> None:
    parser = FrameParser()
    with pytest.raises(RemoteProtocolError, match=text):
        for piece in [bytes([byte]) for byte in data] if one_by_one else [data]:
            parser.feed(piece)


def test_the_limit_is_raised_when_the_line_is_accepted() -> None:
    data = block_header(HANDSHAKE_BYTES_MAX, 1) + bytes(HANDSHAKE_BYTES_MAX)
    with pytest.raises(RemoteProtocolError):
        FrameParser().feed(data)
    parser = FrameParser()
    parser.set_limit()
    assert len(parser.feed(data)) == 1


def test_a_word_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="divide"):
        word_frame(words.SnapshotPart(id=1, positions={}, bodies=(bytes(ACCEPTED_BYTES_MAX),)))


@given(st.binary(max_size=300))
def test_garbage_is_no_word(data: bytes) -> None:
    for hearing in (
        *(speech.TO_ADAPTER, speech.TO_CLIENT, speech.ANY_LINK, speech.TO_ADMINISTRATION),
        *(speech.FROM_ADMINISTRATION_TO_ADAPTER, speech.FROM_ADMINISTRATION_TO_CLIENT),
        speech.FROM_ADMINISTRATION_TO_OPERATOR,
    ):
        with pytest.raises(RemoteProtocolError, match="This is no word"):
            hearing.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa3say\xa4stop\xa1x" + b"\x91" * 60_000,  # deep
        b"\x82\xa3say\xa4stop\xa1x" + b"\xdd\xff\xff\xff\xff" * 12_000,  # deep, and each as long as can be
        b"\x82\xa3say\xa5start\xa9positions\xdf\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\xa3say\xa4stop",
        b"\x82\xa3say\xa4stop\xa1x\xc6\xff\xff\xff\xff",
    ],
)
def test_words_that_promise_more_than_they_hold_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        speech.TO_ADAPTER.decode(data)


def test_words_are_heard_only_by_those_they_are_for() -> None:
    hello = words.Hello(stream="s", token="t", client="c")
    assert speech.TO_ADAPTER.decode(speech.encode(hello)) == hello
    with pytest.raises(RemoteProtocolError, match="a client on a line"):
        speech.TO_CLIENT.decode(speech.encode(hello))
    with pytest.raises(RemoteProtocolError, match="an adapter"):
        speech.TO_ADAPTER.decode(speech.encode(BEAT))


def test_fields_of_a_later_version_are_ignored() -> None:
    assert speech.TO_ADAPTER.decode(b"\x82\xa3say\xa4stop\xa5later\x01") == words.Stop()


def test_an_administrative_record_is_read_as_it_was_written() -> None:
    admin = words.Admin(id="a-1", kind="text", body=b"hello", intended=7)
    assert speech.decode_admin(speech.encode(admin)) == admin
    with pytest.raises(RemoteProtocolError):
        speech.decode_admin(b"\x00")
