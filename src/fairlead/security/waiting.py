"""Who waits for a slow password check, and whose turn it is.

Sources take turns, so that whoever sends a hundred guesses waits for them alone. Of one user and source only a few
different passwords are checked at a time: else the pause after wrong ones would come too late for all that were sent at
once. The same password again is no guess, and waits for the answer of the first.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, NamedTuple

from fairlead.security.throttling import FREE

WAITING_MAX: Final = 512
SOURCE_MAX: Final = 256  # of them from one source

Who = tuple[int, int]


class Question(NamedTuple):
    """One check. `mark` is the same for the same user and password, and tells neither."""

    mark: bytes
    user: str
    password: str
    source: str

    def __repr__(self) -> str:
        return f"Question({self.user!r}, from {self.source!r})"  # a secret must not get into a log by way of an error


class WaitingRoom:
    def __init__(
        self, *, waiting_max: int = WAITING_MAX, source_max: int = SOURCE_MAX, guesses_max: int = FREE
    ) -> None:
        self._waiting_max, self._source_max, self._guesses_max = waiting_max, source_max, guesses_max
        self._lines: dict[str, deque[Question]] = {}  # by source; the one whose turn it is first
        self._asking: dict[bytes, list[Who]] = {}  # who wants to know, for each check not yet answered
        self._guesses: Counter[tuple[str, str]] = Counter()
        self._sources: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many checks are not answered yet."""
        return len(self._asking)

    def ask(self, who: Who, question: Question) -> bool:
        """False: too many wait already, or too many of these."""
        same = self._asking.get(question.mark)
        if same is not None:
            same.append(who)
            return True
        guesser = question.user, question.source
        if (
            len(self._asking) >= self._waiting_max
            or self._sources[question.source] >= self._source_max
            or self._guesses[guesser] >= self._guesses_max
        ):
            return False
        self._asking[question.mark] = [who]
        self._guesses[guesser] += 1
        self._sources[question.source] += 1
        self._lines.setdefault(question.source, deque()).append(question)
        return True

    def next(self) -> Question | None:
        """What to check now; its source goes to the end."""
        for source, line in self._lines.items():
            question = line.popleft()
            del self._lines[source]
            if line:
                self._lines[source] = line
            return question
        return None

    def done(self, question: Question) -> list[Who]:
        """It was checked: who wanted to know."""
        guesser = question.user, question.source
        self._guesses[guesser] -= 1
        self._sources[question.source] -= 1
        if not self._guesses[guesser]:
            del self._guesses[guesser]
        if not self._sources[question.source]:
            del self._sources[question.source]
        return self._asking.pop(question.mark)
