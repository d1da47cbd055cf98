"""What conversion hands to numbering: the records of a batch as columns, without numbers and previous links yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Made"]


class Made(NamedTuple):
    """Records of one source stream, in the order of their source sequences and parts. A void has an empty body."""

    source: str
    kinds: NDArray[np.uint8]  # records.MESSAGE or records.VOID
    sequences: NDArray[np.uint64]
    part: NDArray[np.uint16]  # from 1
    parts: NDArray[np.uint16]
    data: bytes  # the bodies, one behind the other
    ends: NDArray[np.uint64]  # where each body ends in `data`
    first: int  # range of source sequences looked at, those that gave no record included
    through: int
    keys: list[bytes] | None = None  # of a feed with snapshots: what each record replaces; of a void: b""

    @property
    def count(self) -> int:  # type: ignore[override]  # nobody counts columns that are equal
        """How many records."""
        return len(self.kinds)
