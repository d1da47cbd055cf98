"""LIKE: `%` stands for any letters or none, `_` for exactly one.

A pattern is cut at its `%` into pieces; the first has to be at the beginning, the last at the end, and those between
are each taken at the first place they fit, which finds a match wherever there is one. So there is nothing to go back
for, and a hostile pattern costs no more than another one of its length.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["BadEscape", "matcher"]


class BadEscape(ValueError):
    """What escapes is followed by nothing that could be escaped; `at` is its place in the pattern."""

    def __init__(self, at: int) -> None:
        super().__init__("what escapes stands before %, _ or itself")
        self.at = at


class Piece:
    """Letters in a row, some of which (None) may be any letter."""

    def __init__(self, letters: list[str | None]) -> None:
        self.size = len(letters)
        fixed = [letter for letter in letters if letter is not None]
        self._text = "".join(fixed) if len(fixed) == self.size else None
        self._fixed = [(place, letter) for place, letter in enumerate(letters) if letter is not None]
        # For find: bit n of a letter's mask says that it may stand at place n.
        self._any = sum(1 << place for place, letter in enumerate(letters) if letter is None)
        self._masks: dict[str, int] = {}
        for place, letter in self._fixed:
            self._masks[letter] = self._masks.get(letter, self._any) | 1 << place

    def is_at(self, text: str, at: int) -> bool:
        """Does it stand there? There is room for it."""
        if self._text is not None:
            return text.startswith(self._text, at)
        return all(text[at + place] == letter for place, letter in self._fixed)

    def find(self, text: str, at: int, end: int) -> int:
        """The first place from `at` on where it stands and ends before `end`; -1: nowhere."""
        if self._text is not None:
            return text.find(self._text, at, end)
        # Bit n of `begun` says that the last n+1 letters are the first n+1 of this piece.
        begun, last = 0, 1 << self.size - 1
        masks, any_letter = self._masks, self._any
        for place in range(at, end):
            begun = (begun << 1 | 1) & masks.get(text[place], any_letter)
            if begun & last:
                return place - self.size + 1
        return -1


def matcher(pattern: str, escape: str = "") -> Callable[[str], bool]:
    """Says of a text whether it is like the pattern."""
    pieces = [Piece(letters) for letters in _cut(pattern, escape)]
    head, *between = pieces
    if not between:
        return lambda text: len(text) == head.size and head.is_at(text, 0)
    tail = between.pop()
    middle = [piece for piece in between if piece.size]
    shortest = sum(piece.size for piece in pieces)

    def is_like(text: str) -> bool:
        if len(text) < shortest or not head.is_at(text, 0):
            return False
        end = len(text) - tail.size
        if not tail.is_at(text, end):
            return False
        at = head.size
        for piece in middle:
            found = piece.find(text, at, end)
            if found < 0:
                return False
            at = found + piece.size
        return True

    return is_like


def _cut(pattern: str, escape: str) -> list[list[str | None]]:
    pieces: list[list[str | None]] = [[]]
    places = iter(range(len(pattern)))
    for at in places:
        letter = pattern[at]
        if letter == escape:
            following = pattern[at + 1 : at + 2]
            if not following or following not in ("%", "_", escape):
                raise BadEscape(at)
            pieces[-1].append(following)
            next(places)
        elif letter == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if letter == "_" else letter)
    return pieces
