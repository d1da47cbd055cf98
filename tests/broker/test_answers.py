"""The frames a manager makes by itself."""

from __future__ import annotations

from fairlead.broker.answers import PREFACE, error_frame, ping_frame, pong_frame, preface_answer
from fairlead.errors import CODES
from tests.broker.rig import ERROR, PING, PONG, Frame


def test_an_error_carries_its_code_and_a_sentence() -> None:
    found = Frame(error_frame("slow-client", "", 3, 4))
    assert (found.kind, found.code, found.number, found.correlation) == (ERROR, "slow-client", 3, 4)
    assert found.body.decode() == CODES["slow-client"].sentence
    assert Frame(error_frame("bad-request", "Because.")).body == b"Because."


def test_pings_and_pongs() -> None:
    assert Frame(ping_frame()).kind == PING
    assert (Frame(pong_frame(9)).kind, Frame(pong_frame(9)).correlation) == (PONG, 9)


def test_the_answer_to_a_preface() -> None:
    assert preface_answer(PREFACE) is None
    assert preface_answer(b"SSH-2.0-") == ("not-a-preface", b"")
    for first in (b"GET / HT", b"CONNECT ", b"PRI * HT"):
        answer = preface_answer(first)
        assert answer is not None
        assert (answer[0], answer[1][:13]) == ("not-a-preface", b"HTTP/1.1 404 "), "a browser is told what this is"
    answer = preface_answer(b"FLD\n\x02\x00\x00\x00")
    assert answer is not None
    assert (answer[0], Frame(answer[1]).code) == ("unsupported-version", "unsupported-version")
