"""What the tour shows while it goes on: lines that can be kept, and on a terminal one that says how far it is."""

from __future__ import annotations

import time
from typing import Final, TextIO

from fairlead.demo.findings import Outcome
from fairlead.demo.outline import Step
from fairlead.demo.words import WIDTH, wrapped

__all__ = ["Screen"]

INDENT: Final = "      "
SHOW_S: Final = 0.1
SPINNER: Final = "|/-\\"
WORDS: Final = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}
COLOURS: Final = {"passed": "32", "failed": "31;1", "skipped": "33"}


class Screen:
    """Plain lines without a terminal; `quiet` shows nothing at all."""

    def __init__(self, out: TextIO, *, width: int = WIDTH, colour: bool = False, quiet: bool = False) -> None:
        self._out = out
        self._is_live = out.isatty() and not quiet
        self._colour = colour and self._is_live
        self._width = max(40, min(width, WIDTH))
        self._quiet = quiet
        self._step = ""
        self._began_s = self._shown_s = 0.0
        self._turn = 0

    def begin(self, number: int, total: int, step: Step) -> None:
        """A step begins: its title, what it shows, and what one would type."""
        self._step, self._began_s = f"[{number}/{total}]", time.monotonic()
        self.lines(self._styled(f"{self._step} {step.title}", "1"))
        self.lines(*wrapped(step.sentence, INDENT, self._width))
        for command in step.commands:
            self.lines(*(self._styled(INDENT + line, "2") for line in f"$ {command}".splitlines()))

    def progress(self, text: str) -> None:
        """The line that is overwritten; nothing where it could not be."""
        now_s = time.monotonic()
        if not self._is_live or now_s - self._shown_s < SHOW_S:
            return
        self._shown_s, self._turn = now_s, self._turn + 1
        sign = SPINNER[self._turn % len(SPINNER)]
        line = f"{INDENT}{sign} {text}, {now_s - self._began_s:.0f} s"
        self._out.write(f"\r{line[: self._width - 1]}\033[K")
        self._out.flush()

    def end(self, outcome: Outcome) -> None:
        """What it found, and whether it is so."""
        self.wipe()
        for text in outcome.findings.said:
            first, *more = wrapped(text, INDENT + "  ", self._width)
            self.lines(f"{INDENT}- {first.strip()}", *more)
        if outcome.why:
            self.lines(*wrapped(outcome.why, INDENT, self._width))
        word = self._styled(WORDS[outcome.state], COLOURS[outcome.state])
        self.lines(f"{INDENT}{word} after {outcome.seconds:.1f} s", "")

    def lines(self, *texts: str) -> None:
        if not self._quiet:
            for text in texts:
                self._out.write(f"{text}\n")
            self._out.flush()

    def wipe(self) -> None:
        """Take the line that is overwritten away."""
        if self._is_live:
            self._out.write("\r\033[K")
            self._out.flush()

    def _styled(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text
