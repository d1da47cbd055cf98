"""The tour itself: one step after the other, and in the end everything gone that was there for it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final

from fairlead.demo.edge.screen import Screen
from fairlead.demo.edge.stage import Skipped, Stage
from fairlead.demo.edge.workplace import Workplace
from fairlead.demo.findings import Findings, Outcome, State, state_of
from fairlead.demo.outline import Step

__all__ = ["tour"]

ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WHY_MAX: Final = 1000

Keep = Callable[[Outcome], None]


def tour(
    steps: list[Step], screen: Screen, *, keep: Path | None = None, after: Keep | None = None, pause: bool = False
) -> list[Outcome]:
    """Take these steps; how each of them ended. KeyboardInterrupt for Ctrl-C and its like, when all is cleaned up.

    `after` sees every outcome while the files of its step are still there.
    """
    outcomes: list[Outcome] = []
    killed: list[int] = []
    with _endings():
        place = Workplace(keep)
        try:
            with ExitStack() as stack:
                try:
                    stage = Stage(place, stack, screen.progress)
                    for number, step in enumerate(steps, 1):
                        screen.begin(number, len(steps), step)
                        outcomes.append(take(step, stage))
                        screen.end(outcomes[-1])
                        if after is not None:
                            after(outcomes[-1])
                        if pause and number < len(steps):
                            pause = _has_said_go_on()
                    screen.progress("everything is stopped and removed")
                finally:
                    _undisturbed()
        finally:
            screen.wipe()
            killed = place.close()
    if killed:
        outcomes.append(_unclean(killed))
        screen.end(outcomes[-1])
    return outcomes


def take(step: Step, stage: Stage) -> Outcome:
    """One step; whatever it raises is how it ended."""
    began_s = time.monotonic()
    findings = Findings()
    state: State
    try:
        findings = import_module(step.module).run(stage)
    except Skipped as reason:
        state, why = "skipped", str(reason)
    except Exception as error:
        state, why = "failed", f"{type(error).__name__}: {error}"[:WHY_MAX]
    else:
        state, why = state_of(findings)
    return Outcome(
        name=step.name, title=step.title, state=state, seconds=time.monotonic() - began_s, why=why, findings=findings
    )


def _has_said_go_on() -> bool:
    """Wait for Enter; False if nobody can press it any more (Ctrl-D), and then the tour goes on by itself."""
    try:
        input("      Enter goes on … ")
    except EOFError:
        return False
    return True


def _unclean(killed: list[int]) -> Outcome:
    """Whatever is stopped in order leaves nobody behind; this tour did."""
    why = f"these processes had not ended, and were killed: {', '.join(map(str, killed))}"
    return Outcome(name="clean-up", title="Everything is stopped", state="failed", seconds=0.0, why=why)


@contextmanager
def _endings() -> Iterator[None]:
    """SIGTERM and SIGHUP end the tour as Ctrl-C does, also where a shell has started it in the background."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)  # asyncio may have a handler of its own for it

    before = {number: signal.getsignal(number) for number in ENDINGS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _undisturbed() -> None:
    """From here on an impatient Ctrl-C does not leave half of it behind; what is left takes a few seconds."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
