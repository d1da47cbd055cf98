"""What came of a body and was not taken yet, as it came."""

from __future__ import annotations

from typing import Self

__all__ = ["Pieces"]


class Pieces:
    """Takes the place of the bytearray into which uvicorn copies what comes, and out of which it copies it again.

    For large pieces only: growing such a bytearray costs more than all the rest of a request.
    """

    __slots__ = ("_bytes", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def __iadd__(self, piece: bytes) -> Self:
        self._pieces.append(piece)
        self._bytes += len(piece)
        return self

    def __len__(self) -> int:
        return self._bytes

    def __bytes__(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
