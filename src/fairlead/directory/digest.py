"""One short text for all links of a broker: whether the directory and the broker know of the same ones (DIR-21).

The digests of rows are added up, so that their order means nothing and a row comes or goes at the cost of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_MASK: Final = 2**64 - 1


def row_sum(app: str, identity: str, label: str) -> int:
    return int.from_bytes(blake2b(f"{app}\n{identity}\n{label}".encode(), digest_size=8).digest(), "little")


def digest_of(count: int, total: int) -> str:
    return f"{count}:{total & _MASK:016x}"


def links_digest(rows: Iterable[tuple[str, str, str]]) -> str:
    """Of rows (application, identity, label); a label that is not known yet is empty, and not the same."""
    count = total = 0
    for app, identity, label in rows:
        count += 1
        total += row_sum(app, identity, label)
    return digest_of(count, total)
