"""`fairlead top`: a server on the terminal, live. What is drawn is decided in `fairlead.observability.top`."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairlead.cli.options import one_sentence, run_of, which_server
from fairlead.errors import Unavailable
from fairlead.observability.edge.scrape import gather
from fairlead.observability.facts import Facts
from fairlead.observability.top.rows import Pair
from fairlead.observability.top.screen import away, screen, view
from fairlead.observability.top.state import VIEWS, State, keys_of

if TYPE_CHECKING:
    from rich.console import RenderableType

ANSWER_S: Final = 3.0


@click.command()
@which_server
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option(
    "--view", "first", type=click.Choice(list(VIEWS.values())), default="overview", help="What to begin with."
)
@click.option("--once", is_flag=True, help="Print one screen and end; also if the output is no terminal.")
@one_sentence
def top(server: str | None, data: str | None, interval: float, first: str, once: bool) -> None:
    """Watch a running server: rates, rings, queues and topics, connections, processes, updates.

    Keys: o d c p u choose the view, left and right the column it is sorted by, s turns the order round, up and down
    scroll, q quits.

    \b
    Examples:
      fairlead top
      fairlead top --view destinations --server fairlead://127.0.0.1:7401
      fairlead top --once | head -3
    """
    state = State(view=first)
    if once or not sys.stdout.isatty() or not sys.stdin.isatty():
        print_once(run_of(server, data), state, interval)
    else:
        Watching(server, data, state, interval).run()


def print_once(run: Path, state: State, interval_s: float) -> None:
    """Two looks, for the rates between them."""
    from rich.console import Console

    console = Console(highlight=False)
    width, height = console.size
    before = _look(run, state)
    time.sleep(interval_s)
    console.print(*view(Pair(before, _look(run, state)), state, width, height), sep="\n")


def _look(run: Path, state: State) -> Facts:
    return gather(run, timeout_s=ANSWER_S, brief=state.view != "connections")


class Watching:
    """The loop: look, draw, wait for a key or the next look."""

    def __init__(self, server: str | None, data: str | None, state: State, interval_s: float) -> None:
        self._server, self._data = server, data
        self._state, self._interval_s = state, interval_s
        self._before: Facts | None = None
        self._now: Facts | None = None
        self._trouble = ""

    def run(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        with keyboard(), Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
            while not self._state.over:
                self._look()
                deadline_s = time.monotonic() + self._interval_s
                while not self._state.over:
                    live.update(self._drawn(*console.size), refresh=True)
                    shown = self._state.view
                    if not self._wait(deadline_s) or self._state.view != shown:
                        break  # time for a look, or another view wants other figures

    def _look(self) -> None:
        try:
            found = _look(run_of(self._server, self._data), self._state)
        except Unavailable as error:
            self._trouble, self._before, self._now = str(error), None, None
            return
        self._trouble = ""
        if self._now is None or found.now_s - self._now.now_s >= self._interval_s / 2:
            self._before = self._now  # a look out of turn, for a key, keeps the span rates are taken over
        self._now = found

    def _drawn(self, width: int, height: int) -> RenderableType:
        if self._now is None:
            return away(self._trouble, self._data or self._server or "fairlead://127.0.0.1:7400")
        return screen(Pair(self._before, self._now), self._state, width, height)

    def _wait(self, deadline_s: float) -> bool:
        """True: keys came; False: it is time."""
        ready, _, _ = select.select([sys.stdin], [], [], max(deadline_s - time.monotonic(), 0.0))
        if not ready:
            return False
        data = os.read(sys.stdin.fileno(), 64)
        if not data:
            self._state.over = True  # the terminal is gone
        for key in keys_of(data):
            self._state.press(key)
        return True


@contextlib.contextmanager
def keyboard() -> Iterator[None]:
    """Keys one by one, without an echo; the terminal is left as it was."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
