"""What the event log hears of logins and refusals: each kind a few times, then summed up.

A flood of refusals is one line with a number, so that nobody can wash an event out of the log by making others. Never
in it: passwords, tokens, hashes, or what somebody typed where a password belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

SINGLY_MAX: Final = 3  # of one kind from one user in a window, before the rest is summed up
WINDOW_S: Final = 10.0
KINDS_MAX: Final = 500  # different ones in a window; what is beyond is summed up together
TEXT_MAX: Final = 300

Tell = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class _Kind:
    seen: int = 0
    last: dict[str, Any] = field(default_factory=dict)


class Ledger:
    """Told of everything, tells what is worth a line."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._kinds: dict[tuple[str, str, str], _Kind] = {}
        self._until_s = 0.0

    def note(self, code: str, text: str, now_s: float, *, level: str = "info", user: str = "", **facts: Any) -> None:
        """Something happened; `action` among the facts tells kinds of refusals apart."""
        self.tick(now_s)
        key = code, user, str(facts.get("action", facts.get("reason", "")))
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = code, "", ""
        kind = self._kinds.setdefault(key, _Kind())
        if not self._until_s:
            self._until_s = now_s + WINDOW_S
        kind.seen += 1
        kind.last = {"level": level, "code": code, "text": text[:TEXT_MAX], "user": user[:64], **facts}
        if kind.seen <= SINGLY_MAX:
            self._tell(kind.last)

    def tick(self, now_s: float) -> None:
        """Sum up, if the window is over."""
        if not self._until_s or now_s < self._until_s:
            return
        kinds, self._kinds, self._until_s = self._kinds, {}, 0.0
        for kind in kinds.values():
            more = kind.seen - SINGLY_MAX
            if more > 0:
                text = f"{kind.last['text']} (and {more} more of the kind in {WINDOW_S:.0f} s)"
                self._tell(kind.last | {"text": text, "more": more})
