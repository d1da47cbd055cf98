"""What a journal is told about the records in it, to know which files are still needed: no more than numbers.

The journal itself does not read bodies. Whoever opens it hands in a `Describer`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

Bytes = bytes | bytearray | memoryview
WAITING: Final = 2**64 - 1
"""A `source` that says: these messages get their order numbers by a later record."""


class Facts(NamedTuple):
    """Messages in a record: order numbers of one destination, and where in the body they begin."""

    destination: int
    base: int  # order number of the first
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    size: int  # bytes from `skip` to the end of the body
    flags: int = 0
    arrival_ms: int = 0
    skip: int = 0  # bytes of the body before what is meant
    source: int = 0  # WAITING, or the index of the waiting record these order numbers are for


class Describer(Protocol):
    """Says what is in a record."""

    kinds: frozenset[int]  # of which there is anything to say
    moved: frozenset[int]  # kinds that hold messages that lay elsewhere before

    def __call__(self, kind: int, body: Bytes, size: int = -1) -> list[Facts]:
        """The body may end where its messages begin; then `size` says how long it is."""


class Nothing:
    """For journals whose records are of no concern to anybody: every file is kept until a checkpoint covers it."""

    kinds: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()

    def __call__(self, kind: int, body: Bytes, size: int = -1) -> list[Facts]:
        return []
