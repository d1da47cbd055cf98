"""What is shown, with a terminal and without one."""

from __future__ import annotations

import io

import pytest

from fairlead.demo.edge.screen import Screen
from fairlead.demo.findings import Findings, Outcome
from fairlead.demo.outline import STEPS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, **options: bool) -> str:
    screen = Screen(out, **options)
    for number, step in enumerate(STEPS, 1):
        screen.begin(number, len(STEPS), step)
        screen.progress("half of it " + "and a long word about it " * 5)
        said = ["a sentence that is long enough to be continued on the line after this one, and a little more"]
        found = Findings(said=said)
        screen.end(Outcome(name="x", title="X", state="failed", seconds=1.0, why="not so: x: 1 lost", findings=found))
    return out.getvalue()


def test_plain_lines_of_eighty_columns_without_a_terminal() -> None:
    text = shown(io.StringIO(), colour=True)
    assert all(len(line) <= 80 for line in text.splitlines()), max(text.splitlines(), key=len)
    assert "\r" not in text
    assert "\033" not in text
    assert "half of it" not in text
    assert text.count("FAILED after 1.0 s") == len(STEPS)


def test_a_terminal_has_a_line_that_is_overwritten() -> None:
    text = shown(Terminal(), colour=True)
    assert "half of it" in text
    line = next(one for one in text.replace("\r", "\n").splitlines() if "half of it" in one)
    assert len(line.removesuffix("\033[K")) <= 79
    assert "\033[31;1mFAILED" in text


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    assert "\033[31" not in shown(Terminal(), colour=False)


def test_quiet_is_quiet() -> None:
    out = Terminal()
    assert shown(out, quiet=True) == ""


def test_progress_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("fairlead.demo.edge.screen.time.monotonic", lambda: now_s)
    out = Terminal()
    screen = Screen(out)
    for _ in range(100):
        screen.progress("many")
    assert out.getvalue().count("many") == 1
