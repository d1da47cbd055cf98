"""The small parts of the client: URLs, pauses, deadlines, identity."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.client.identity import hello
from fairlead.client.pauses import FIRST_S, LONGEST_S, Pauses
from fairlead.client.pending import SWEEP_PAUSE_S, PendingTable
from fairlead.client.target import Address, parse
from fairlead.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "addresses", "tls", "login"),
    [
        ("fairlead://localhost", ["localhost:7400"], False, ("", "")),
        ("fairlead://", ["localhost:7400"], False, ("", "")),
        ("fairleads://ann:s%40crt@h:1", ["h:1"], True, ("ann", "s@crt")),
        ("fairlead://a,b:2,[::1]:3,[::2]", ["a:7400", "b:2", "::1:3", "::2:7400"], False, ("", "")),
        ("fairlead+unix:///run/fairlead%20x.sock", ["/run/fairlead x.sock"], False, ("", "")),
        ("fairlead+unix://ann:p@/s", ["/s"], False, ("ann", "p")),
    ],
)
def test_urls(url: str, addresses: list[str], tls: bool, login: tuple[str, str]) -> None:
    target = parse(url)
    assert [str(address) for address in target.addresses] == addresses
    assert (target.tls, (target.user, target.password)) == (tls, login)


def test_a_host_alone_has_the_known_port() -> None:
    assert parse("fairlead://h").addresses == [Address("h", 7400)]


def test_pauses_grow_and_stay_within_their_turn() -> None:
    longest, shortest = Pauses(lambda: 1.0), Pauses(lambda: 0.0)
    turns = [longest.next_s() for _ in range(10)]
    assert turns[:3] == [FIRST_S, FIRST_S * 2, FIRST_S * 4]
    assert turns[-1] == LONGEST_S
    assert [shortest.next_s() for _ in range(10)] == [turn / 2 for turn in turns]


class Waiting:
    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=30), st.lists(st.floats(0, 12), max_size=10))
def test_every_deadline_is_met_once_and_not_before_its_time(requests: list[Any], times: list[float]) -> None:
    table = PendingTable()
    for key, (deadline_s, answered) in enumerate(requests):
        table.add(key, Waiting(deadline_s))  # type: ignore[arg-type]
        if answered:
            del table.open[key]
    expired = set()
    for now_s in [*sorted(times), 12.0]:
        if now_s >= table.next_s:  # the edge's timer
            for key, pending in table.expire(now_s):
                assert pending.deadline_s <= now_s
                assert key not in expired
                expired.add(key)
            assert table.next_s >= now_s + SWEEP_PAUSE_S
    while table.next_s < inf:
        expired |= {key for key, _ in table.expire(table.next_s)}
    assert expired == {key for key, (_, answered) in enumerate(requests) if not answered}


def test_who_a_client_says_it_is() -> None:
    said: dict[str, Any] = {"org": "", "user": "", "password": "", "credit": 1, "keep_alive_s": 30}
    both = hello(type="pricing", name="a", **said)
    assert (both.type, both.instance) == ("pricing", "a")
    first, second = hello(type=None, name="ui", **said), hello(type="ui", name=None, **said)
    assert first.type == second.type == "ui"
    assert first.instance != second.instance
    assert first.instance.startswith("ui-")
    assert hello(type=None, name=None, **said).type
    with pytest.raises(ConfigError):
        hello(type=None, name="a", **{**said, "credit": -1})
