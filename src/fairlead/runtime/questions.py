"""Questions of local tools that a child answers: who asked, and what to say if no answer comes."""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec

from fairlead.errors import ConfigError
from fairlead.runtime.admin import Asker
from fairlead.runtime.children import Child
from fairlead.runtime.loop import Loop

PATIENCE_S: Final = 120.0
ARGUMENT_BYTES_MAX: Final = 60_000  # they travel in one packet


class Questions:
    """Those under way."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Asker, Child]] = {}

    def ask(self, child: Child, asker: Asker, name: str, args: dict[str, Any]) -> None:
        """Pass it on; the answer comes to `on_answer`, or a refusal goes to the asker when time is up."""
        if len(msgspec.json.encode(args)) + len(name) > ARGUMENT_BYTES_MAX:
            raise ConfigError(f"The arguments of a command are at most {ARGUMENT_BYTES_MAX} bytes long.")
        number = next(self._numbers)
        if not child.send("admin", number=number, name=name, args=args):
            raise ConfigError("The message manager cannot be asked just now.")
        self._open[number] = asker, child
        self._loop.call_after(1.0, lambda: self._look(number, self._loop.now_s() + PATIENCE_S))

    def on_answer(self, number: int, answer: dict[str, Any]) -> None:
        """The child has answered; `ok` says whether it is a yes."""
        found = self._open.pop(number, None)
        if found is None:
            return
        result = answer.get("answer")
        said: dict[str, Any] = result if isinstance(result, dict) else {}
        if answer.get("ok"):
            found[0].answer(result=said.get("ok", said))
        else:
            refusal: dict[str, Any] = said.get("error") or {}
            text = refusal.get("text") or "The message manager said no."
            found[0].tell(ok=False, error=text, code=refusal.get("code", "internal"))

    def _look(self, number: int, until_s: float) -> None:
        """Nobody waits for a child that has ended."""
        found = self._open.get(number)
        if found is None:
            return
        asker, child = found
        if child.sock is None or self._loop.now_s() >= until_s:
            del self._open[number]
            asker.refuse("The message manager ended, or was not able to answer in time.")
        else:
            self._loop.call_after(1.0, lambda: self._look(number, until_s))
