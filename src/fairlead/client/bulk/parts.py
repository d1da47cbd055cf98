"""A list of stages cut into as many `publish` commands as it takes: one has at most 64 KiB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

__all__ = ["PART_BYTES", "parts_of"]

PART_BYTES: Final = 48 << 10
"""Of a part's list; the rest is for the query's name, and what a manager adds."""
COUNTS_MAX: Final = 128  # of one item; a stage with more destinations is several, one after another

Named = list[Any]
"""stage, {destination: count}."""


def parts_of(stages: Iterable[tuple[str, Mapping[str, int]]]) -> list[list[Named]]:
    """In their order; at least one part, be it empty."""
    parts: list[list[Named]] = [[]]
    room = PART_BYTES
    for stage, counts in stages:
        for piece in _pieces(counts):
            item = [stage, piece]
            size = len(msgspec.json.encode(item)) + 1
            goes_on = bool(parts[-1]) and parts[-1][-1][0] == stage  # only a new part can go on with a stage
            if parts[-1] and (size > room or goes_on):
                parts.append([])
                room = PART_BYTES
            parts[-1].append(item)
            room -= size
    return parts


def _pieces(counts: Mapping[str, int]) -> Iterable[dict[str, int]]:
    if len(counts) <= COUNTS_MAX:
        yield dict(counts)
        return
    left = iter(counts.items())
    while piece := dict(islice(left, COUNTS_MAX)):
        yield piece
