"""Types of the compiled twin of `rows.encode`."""

from typing import Any

def encode(
    count: int, columns: list[tuple[int, int, int, list[Any]]], size_max: int
) -> tuple[int, bytes | None, bytes | None]: ...
