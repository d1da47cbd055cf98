"""Faults on order, for tests: a unix socket takes one JSON object a line and answers with one.

Nothing of this is there unless `fairlead feed run --faults PATH` was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["FaultServer", "Faults"]

LINE_BYTES_MAX: Final = 65_536

Buffers = list[bytes | memoryview]


class Faults:
    """What is wrong at the moment. Nothing, until it is ordered."""

    def __init__(self) -> None:
        self.drop_blocks = 0
        self.corrupt_blocks = 0
        self.delay_lines_s = 0.0
        self.delay_source_s = 0.0
        self.is_mangling = False
        self.is_shifted = False

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def spoil(self, buffers: Buffers) -> Buffers:
        """What of these (head, block, head, block, …) goes out."""
        found: Buffers = []
        for head, block in zip(buffers[::2], buffers[1::2], strict=True):
            if self.drop_blocks:
                self.drop_blocks -= 1
                continue
            if self.corrupt_blocks:
                self.corrupt_blocks -= 1
                bad = bytearray(block)
                bad[-1] ^= 0xFF
                block = bytes(bad)
            found += (head, block)
        return found

    @property
    def spoils_blocks(self) -> bool:
        return bool(self.drop_blocks or self.corrupt_blocks)

    def order(self, words: dict[str, Any]) -> bool:
        """Take an order that concerns blocks, lines or the source; False if it is none."""
        match words.get("do"):
            case "clear":
                self.clear()
            case "lines":
                self.drop_blocks = int(words.get("drop", self.drop_blocks))
                self.corrupt_blocks = int(words.get("corrupt", self.corrupt_blocks))
                self.delay_lines_s = float(words.get("delay_s", self.delay_lines_s))
            case "mangle":
                self.is_mangling = bool(words.get("on", True))
            case "source":
                self.delay_source_s = float(words.get("delay_s", 0.0))
            case _:
                return False
        return True


class FaultServer:
    """Takes orders at a unix socket; `order` answers each."""

    def __init__(self, path: Path, order: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._path = path
        self._order = order
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=LINE_BYTES_MAX)
        self._path.chmod(0o600)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            words = json.loads(line)
            return {"ok": True, **self._order(words)}
        except (ValueError, TypeError, KeyError) as error:
            return {"ok": False, "why": str(error)}
