"""The administration's file: epochs, adapters and passes, in one small file that is replaced in one step.

A line with a checksum comes before the content, so that a damaged file is never taken for another truth: it is put
aside, and the administration learns from adapters what was.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from fairlead.cluster.configuration.edge.files import write_file
from fairlead.feeds.administration.kept import Kept

__all__ = ["FILE", "Store"]

FILE: Final = "streams.state"
_MAGIC: Final = b"fairlead-streams 1 "


class Store:
    """`damaged` says what was wrong with the file, if it could not be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(Kept)
        self.damaged = ""

    def read(self) -> Kept | None:
        """None: there is none, or none that can be used."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        head, _, body = data.partition(b"\n")
        if not head.startswith(_MAGIC):
            self.damaged = "it does not begin as such a file does"
        elif head != _head(body):
            self.damaged = "its checksum is wrong"
        else:
            try:
                return self._decoder.decode(body)
            except msgspec.MsgspecError as error:
                self.damaged = str(error)
        with suppress(OSError):
            self._path.replace(self._path.with_name(f"{FILE}.damaged"))
        return None

    def write(self, kept: Kept) -> None:
        """Durable when it returns."""
        body = msgspec.json.encode(kept)
        write_file(self._path, _head(body) + b"\n" + body)


def _head(body: bytes) -> bytes:
    return _MAGIC + b"%08x" % zlib.crc32(body)
