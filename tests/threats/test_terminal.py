"""Words of others on a terminal: shown, never obeyed, and in pipes and JSON still what was said."""

from __future__ import annotations

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fairlead.cli import terminal

ORDERS = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202e\r[/red][link=http://there]x[/link]\\"


def test_a_body_on_a_terminal_orders_nothing_and_in_a_pipe_is_as_it_was() -> None:
    body = f"one\ttwo\n{ORDERS}".encode() + b"\xff\xfe"
    assert terminal.content(body, is_terminal=False) == body
    shown = terminal.content(body, is_terminal=True).decode()
    assert shown.startswith("one\ttwo\n")
    assert "mine" in shown
    assert all(letter.isprintable() or letter in "\n\t" for letter in shown)


@settings(deadline=None)
@given(st.text(max_size=60) | st.just(ORDERS))
def test_cells_have_no_markup_and_no_orders(text: str) -> None:
    out = io.StringIO()
    Console(file=out, width=10_000, force_terminal=True, color_system=None, emoji=False).print(
        terminal.cell(text), soft_wrap=True
    )
    printed = out.getvalue().removesuffix("\n")
    assert printed.isprintable()
    assert printed.rstrip("\\ ") == terminal.plain(text).rstrip("\\ ")  # Rich doubles a backslash at the end


@settings(deadline=None)
@given(st.text(max_size=60) | st.just(ORDERS))
def test_json_says_the_same_without_orders(text: str) -> None:
    for indent in (None, 2):
        written = terminal.as_json({text: [text, 1, None]}, indent)
        assert json.loads(written) == {text: [text, 1, None]}
        assert not any(letter in written for letter in "\x1b\x07\x7f\x9b\u202e\u2028\u200b\ufeff")
