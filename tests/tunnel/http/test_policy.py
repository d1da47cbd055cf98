"""What the client driver makes of answers and failures."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tunnel.packets import PAYLOAD_MAX
from fairlead.tunnel.policy import (
    PACKETS,
    Backoff,
    BodyLimit,
    Hold,
    Outage,
    Patience,
    StreamPauses,
    Verdict,
    judge,
    pull_pause_s,
    retry_after_s,
)
from fairlead.tunnel.rules import BODY_MAX

TABLE = [
    (200, PACKETS, 50, Verdict.TAKE),
    (200, PACKETS, 0, Verdict.TAKE),
    (200, "", 0, Verdict.TAKE),
    (200, "", 10, Verdict.LOSS),
    (200, "text/html", 5000, Verdict.LOSS),
    (200, "text/html", 0, Verdict.LOSS),
    (204, PACKETS, 0, Verdict.LOSS),
    (302, "text/html", 100, Verdict.LOSS),
    (400, PACKETS, 0, Verdict.LOSS),
    (401, PACKETS, 0, Verdict.DENIED),
    (403, PACKETS, 0, Verdict.DENIED),
    (403, "text/html", 900, Verdict.LOSS),  # a proxy's page
    (404, PACKETS, 0, Verdict.LOSS),
    (407, "text/html", 900, Verdict.PROXY_LOGIN),
    (410, PACKETS, 40, Verdict.GONE),
    (410, "text/html", 40, Verdict.LOSS),
    (413, "text/html", 40, Verdict.SMALLER),
    (413, PACKETS, 0, Verdict.SMALLER),
    (429, PACKETS, 0, Verdict.LATER),
    (500, PACKETS, 0, Verdict.LOSS),
    (502, "text/html", 900, Verdict.LOSS),
    (503, PACKETS, 0, Verdict.LATER),
    (503, "text/html", 900, Verdict.LATER),
    (504, "text/html", 900, Verdict.LOSS),
]


@pytest.mark.requirement("TUN-36", half="the rule alone")
@pytest.mark.requirement("TUN-35", half="the rule alone")
@pytest.mark.parametrize(("status", "content_type", "size", "verdict"), TABLE)
def test_every_answer_has_its_meaning(status: int, content_type: str, size: int, verdict: Verdict) -> None:
    assert judge(status, content_type, size) is verdict


@given(st.integers(0, 999), st.text(max_size=30), st.integers(0, 1 << 30))
def test_only_a_gateways_own_word_ends_a_tunnel(status: int, content_type: str, size: int) -> None:
    verdict = judge(status, content_type, size)
    if verdict in (Verdict.GONE, Verdict.DENIED, Verdict.TAKE):
        assert content_type == PACKETS or not (content_type or size)


def test_retry_after_is_honoured_within_reason() -> None:
    assert retry_after_s("2") == 2
    assert retry_after_s("86400") == 10
    assert retry_after_s("-1") == 0
    for odd in ("", "soon", "nan", "inf", "Fri, 31 Dec 1999 23:59:59 GMT"):
        assert retry_after_s(odd) is None


@pytest.mark.requirement("TUN-30", state="half", note="the rule; its timing is shown with the driver")
def test_only_an_empty_pull_is_followed_by_the_period() -> None:
    assert pull_pause_s(5, was_empty=True) == 5
    assert pull_pause_s(5, was_empty=False) == 0
    assert pull_pause_s(0, was_empty=True) == pull_pause_s(-3, was_empty=True) == 0


def test_pauses_grow_differ_and_begin_anew() -> None:
    backoff = Backoff(Random(1).random)
    pauses = [backoff.next_s() for _ in range(12)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(1.5 <= pause <= 3 for pause in pauses[-4:])
    assert len(set(pauses)) == len(pauses)
    assert 2 <= backoff.next_s(2.0) <= 2.5
    backoff.well()
    assert backoff.next_s() <= 0.1


@pytest.mark.requirement("TUN-23", state="half", note="the halving; shown over HTTP with the driver")
def test_bodies_are_halved_down_to_one_packet() -> None:
    limit = BodyLimit()
    sizes = [limit.bytes]
    while sizes[-1] > PAYLOAD_MAX + 64:
        limit.on_too_large(sizes[-1])
        sizes.append(limit.bytes)
    assert sizes[:3] == [BODY_MAX, BODY_MAX // 2, BODY_MAX // 4]
    assert not limit.is_hopeless
    for _ in range(5):
        limit.on_too_large(PAYLOAD_MAX)
    assert limit.is_hopeless, "nothing on this way takes even one packet"
    limit.on_taken()
    assert not limit.is_hopeless
    small = BodyLimit()
    small.on_too_large(50_000)
    assert small.bytes == PAYLOAD_MAX + 64, "halved is what was refused, not what might have been sent"


@pytest.mark.requirement("TUN-31", state="half", note="the halving; shown over HTTP with the driver")
def test_the_hold_time_finds_what_a_proxy_bears() -> None:
    hold = Hold(25.0)
    hold.on_failure(0.01)
    assert hold.s == 25, "it failed at once: that was not the hold time"
    while hold.s > 10:  # a proxy that cuts at 10 s
        hold.on_failure(10.0)
    assert hold.s == 6.25
    for _ in range(Hold.GROW_AFTER):
        hold.on_whole()
    assert hold.s == 12.5, "it may have been an accident"
    for _ in range(20):
        hold.on_failure(5)
    assert hold.s == 1.0
    hold.want(0.5)
    hold.on_failure(0.5)
    assert hold.s == 0.5
    hold.want(7)
    assert hold.s == 7


def test_patience_grows_with_slow_lines() -> None:
    patience = Patience(5)
    for _ in range(10):
        patience.on_timeout()
    assert patience.s == 60
    patience.well()
    assert patience.s == 5


@pytest.mark.requirement("TUN-39", state="half", note="when it is tried again")
def test_a_refused_websocket_is_tried_ever_more_rarely() -> None:
    pauses = StreamPauses(lambda: 0.5)
    refused = [pauses.next_s(0) for _ in range(7)]
    assert refused == [30, 60, 120, 240, 480, 900, 900]
    proven = StreamPauses(lambda: 0.5)
    assert [proven.next_s(600) for _ in range(3)] == [1, 1, 1]
    assert [proven.next_s(2) for _ in range(4)] == [2, 4, 8, 16], "one that is cut again and again is no use"


def test_the_way_is_open_again_after_nothing_but_failures_for_a_while() -> None:
    outage = Outage()
    assert not outage.well(0)
    outage.failed(1)
    outage.failed(3)
    assert outage.well(3.1)
    assert not outage.well(3.2)


def test_failures_among_successes_are_loss_and_no_outage() -> None:
    outage = Outage()
    for tenth in range(100):
        outage.failed(tenth / 10)
        assert not outage.well(tenth / 10 + 0.05)
