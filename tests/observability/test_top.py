"""`fairlead top`: rates, keys, and a screen that fits."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from fairlead.observability.facts import Facts
from fairlead.observability.top.rows import Pair
from fairlead.observability.top.screen import away, bar, count, screen, size, span
from fairlead.observability.top.state import COLUMNS, VIEWS, State, keys_of
from tests.observability.given import destination, facts, status


def connection(uid: int, **changed: Any) -> dict[str, Any]:
    row = {
        "uid": uid,
        "manager": 0,
        "state": "live",
        "peer": "127.0.0.1:5",
        "user": "ann",
        "type": "t",
        "instance": "i",
    }
    return row | {"opened_ns": 0} | changed


def update(component: str = "router", **changed: Any) -> dict[str, Any]:
    row = {"component": component, "outcome": "done", "pause_ms": 1.5, "from_version": "1", "to_version": "2"}
    return row | {"when_ns": 900 * 10**9, "reason": ""} | changed


def later(seconds: float = 2.0, **changed: Any) -> Facts:
    return facts(now_s=1000.0 + seconds, **changed)


def drawn(pair: Pair, state: State, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(screen(pair, state, width, height), end="")
    return captured.get().splitlines()


def test_rates_are_growth_over_the_span_between_two_looks() -> None:
    now = status()
    now["managers"][0]["counters"]["messages_in"] += 500
    rest = [destination("?", stored=39, count=2)]
    pair = Pair(facts(), later(status=now, destinations=[destination(stored=29)], others=rest))
    assert [one["in"] for one in pair.managers()] == [250.0, 0.0]
    assert pair.totals()["stored"] == 25.0
    assert [one["in"] for one in pair.destinations()] == [10.0, 15.0]


def test_nothing_is_known_of_rates_at_first_after_a_restart_or_when_a_counter_fell() -> None:
    assert Pair(None, facts()).totals()["in"] == 0.0
    assert Pair(facts(), later(status=status(server_id="other"))).totals()["in"] == 0.0
    assert Pair(facts(), later(destinations=[destination(stored=1)])).destinations()[0]["in"] == 0.0
    assert Pair(facts(), later(destinations=[destination("new", stored=1)])).destinations()[0]["in"] == 0.0
    assert Pair(facts(), facts()).totals()["in"] == 0.0, "no time has passed"


def test_the_others_are_one_row_where_there_are_some() -> None:
    assert [one["destination"] for one in Pair(None, facts()).destinations()] == ["orders", "(2 others)"]
    assert len(Pair(None, facts(others=[destination("?", count=0)])).destinations()) == 1


def test_keys_choose_view_column_and_order() -> None:
    state = State()
    for key, view in VIEWS.items():
        state.press(key)
        assert state.view == view
    state.press("d")
    assert (state.sorted_by, state.descending) == ("in", True)
    state.press("right")
    assert state.sorted_by == "out"
    state.press("s")
    assert not state.descending
    for _ in COLUMNS["destinations"]:
        state.press("left")
    assert (state.sorted_by, state.descending) == ("out", True), "all the way round, and a new column begins as usual"
    state.press("c")
    assert not state.descending
    state.press("d")
    assert state.sorted_by == "out", "each view remembers its own"
    state.press("?")
    assert not state.over
    state.press("q")
    assert state.over


def test_scrolling_stays_within_the_rows() -> None:
    state = State(view="connections")
    known = status(connections=[connection(uid) for uid in range(100)])
    pair = Pair(None, facts(status=known))
    state.press("up")
    assert state.offset == 0
    for _ in range(50):
        state.press("page down")
    lines = drawn(pair, state)
    assert state.offset == 99
    assert any("99" in line for line in lines)
    state.press("home")
    assert state.offset == 0


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"D", ["d"]),
        (b"\x1b[A\x1b[Bs", ["up", "down", "s"]),
        (b"\x1bOC\x1b[D", ["right", "left"]),
        (b"\x1b[15~q", ["q"]),
        (b"\x1b", []),
        (b"\xc3\xa4q", ["q"]),
        (b"\x03", ["\x03"]),
    ],
)
def test_what_a_terminal_sends_for_keys(typed: bytes, keys: list[str]) -> None:
    assert keys_of(typed) == keys


@pytest.mark.parametrize("view", VIEWS.values())
@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 10), (200, 60)])
def test_every_view_fits_and_ends_with_the_keys(view: str, width: int, height: int) -> None:
    known = status(
        connections=[connection(uid, instance="i" * 100) for uid in range(1000)],
        updates=[update(reason="r" * 300) for _ in range(100)],
    )
    many = [destination(f"queue.{number}" * 10) for number in range(200)]
    lines = drawn(Pair(facts(), later(status=known, destinations=many)), State(view=view), width, height)
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("Fairlead 9.9.9")
    assert lines[-1].startswith("[o]verview")


def test_at_80_columns_no_figure_is_cut() -> None:
    known = status(updates=[update()])
    known["managers"][0]["counters"] |= {"messages_in": 99_999, "messages_out": 99_999}
    rows = [destination("some.rather.long.name.of.a.queue", depth=88_888, stored=77_777)]
    text = "\n".join(drawn(Pair(facts(), later(status=known, destinations=rows)), State()))
    assert "88,888" in text
    assert text.count("…") == 1, text


def test_rows_are_sorted_as_asked() -> None:
    rows = [destination("a", depth=1), destination("b", depth=3), destination("c", depth=2)]
    state = State(view="destinations", sort={"destinations": "depth"})
    pair = Pair(None, facts(destinations=rows, others=[]))
    assert [line[0] for line in drawn(pair, state)[4:7]] == ["b", "c", "a"]
    state.press("s")
    assert [line[0] for line in drawn(pair, state)[4:7]] == ["a", "c", "b"]


def test_trouble_is_in_the_head() -> None:
    known = status()
    known["posts"][0] |= {"up": False, "reason": "it died"}
    lines = drawn(Pair(None, facts(status=known, unanswered=["figures: no answer"])), State())
    assert "NOT READY" in lines[0]
    assert lines[2] == "There is no router in service: it died. No answer: figures: no answer"


def test_names_of_clients_are_neither_markup_nor_commands_of_the_terminal() -> None:
    known = status(connections=[connection(7, instance="[bold red]\x1b[2Jx", user="[/]")])
    text = "\n".join(drawn(Pair(None, facts(status=known)), State(view="connections"), 120))
    assert "[bold red]" in text
    assert "\x1b" not in text


def test_no_connections_is_said() -> None:
    assert any("No connections." in line for line in drawn(Pair(None, facts()), State(view="connections")))


def test_numbers_in_few_letters() -> None:
    assert [count(value) for value in (0, 0.5, 12, 99_999, 100_000, 12_345_678, 9e12)] == [
        "0", "0.5", "12", "99,999", "100k", "12M", "9,000G",
    ]  # fmt: skip
    assert [size(value) for value in (0, 9999, 20_000, 3e7, 5e10)] == ["0 B", "9,999 B", "20 kB", "30 MB", "50 GB"]
    assert [span(value) for value in (0.25, 59, 600, 7200, 200_000)] == ["0.2 s", "59 s", "10 min", "2 h", "2 d"]
    assert [bar(share).plain for share in (0.0, 0.5, 1.0, 7.0)] == ["░░░░  0%", "██░░ 50%", "████100%", "████100%"]


def test_a_server_that_is_away_gets_advice() -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(away("No server answers.", "./data"))
    assert "fairlead serve" in captured.get()
