"""Which directory server is asked next, and how quick they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.directory.servers import COOL_MAX_S, Servers


def answer(servers: Servers, server: int, now_s: float, took_s: float = 0.001) -> None:
    question = servers.asked(now_s - took_s)
    servers.answered(server, question, now_s)
    servers.settled(server)


def fail(servers: Servers, server: int, now_s: float, took_s: float = 0.001) -> None:
    servers.failed(server, servers.asked(now_s - took_s), now_s, "down")


def test_the_one_that_answered_last_is_asked_first() -> None:
    servers = Servers(["a", "b", "c"])
    assert servers.round(0) == [0, 1, 2]
    answer(servers, 1, 1.0)
    assert servers.first == "b"
    assert servers.round(1) == [1, 2, 0]


def test_one_that_failed_is_asked_last_for_a_while_and_longer_each_time() -> None:
    servers = Servers(["a", "b", "c"])
    fail(servers, 0, 10.0)
    assert servers.round(10.5) == [1, 2, 0]
    assert servers.round(11.5) == [0, 1, 2]
    fail(servers, 0, 20.0)
    assert servers.round(21.5) == [1, 2, 0]
    for _ in range(20):
        fail(servers, 0, 30.0)
    assert servers.is_cooling(0, 30.0 + COOL_MAX_S - 0.1)
    assert not servers.is_cooling(0, 30.0 + COOL_MAX_S + 0.1)
    answer(servers, 0, 31.0)
    assert not servers.is_cooling(0, 31.0)
    assert [one["failures"] for one in servers.facts(31.0)] == [22, 0, 0]


def test_latency_is_that_of_the_last_answers_and_of_open_questions() -> None:
    servers = Servers(["a"])
    assert servers.latency_s(5.0) is None
    for number in range(9):
        answer(servers, 0, 10.0 + number, took_s=0.002)
    assert abs((servers.latency_s(20.0) or 0) - 0.002) < 1e-9
    open_question = servers.asked(20.0)
    assert servers.latency_s(23.0) == 3.0, "a question nobody answers is slow before it fails"
    servers.sent(open_question, 22.5)
    assert servers.latency_s(23.0) == 0.5, "opening the connection is not counted"
    servers.given_up(open_question)
    assert abs((servers.latency_s(23.0) or 0) - 0.002) < 1e-9
    for number in range(5):
        fail(servers, 0, 30.0 + number, took_s=2.0)
    assert servers.latency_s(40.0) == 2.0, "silence is slow"
    for number in range(9):
        answer(servers, 0, 50.0 + number, took_s=0.004)
    assert abs((servers.latency_s(60.0) or 0) - 0.004) < 1e-9


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.floats(0, 100)), max_size=60),
)
def test_every_round_has_every_server_once(count: int, story: list[tuple[int, bool, float]]) -> None:
    servers = Servers([str(number) for number in range(count)])
    now_s = 0.0
    for server, well, pause_s in story:
        now_s += pause_s
        (answer if well else fail)(servers, server % count, now_s)
        assert sorted(servers.round(now_s)) == list(range(count))
        cooling = [servers.is_cooling(number, now_s) for number in servers.round(now_s)]
        assert cooling == sorted(cooling), "those that failed come after those that did not"
        assert servers.facts(now_s)[server % count]["reason"] == ("" if well else "down")
