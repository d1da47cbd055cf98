"""What a node tells those who are no members: its keeper, by a file, and taps, by heads of what it sends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

from fairlead.bus import frames
from fairlead.bus.config import BusConfig
from fairlead.bus.edge.lines import Lines
from fairlead.bus.edge.wire import Wire
from fairlead.bus.membership import Membership
from fairlead.bus.port import Bytes

TAP_BYTES_MAX: Final = 1 << 20  # a tap that does not read misses heads; nobody waits for it


class PeersFile:
    """The addresses of the others, for the keeper, who tells them when we have died."""

    def __init__(self, config: BusConfig) -> None:
        self._path = config.peers_file
        self._buses = [bus.name for bus in config.buses]
        self._log = config.log
        self._written = ""

    def write(self, members: Membership[Wire]) -> None:
        if not self._path:
            return
        found: dict[str, dict[str, str]] = {bus: {} for bus in self._buses}
        for fellow in members.fellows.values():
            for bus, address in fellow.addresses.items():
                found[bus][fellow.name] = address
        text = json.dumps(found, sort_keys=True)
        if text != self._written:
            fresh = Path(f"{self._path}.new")
            try:
                fresh.write_text(text, encoding="utf-8")
                fresh.replace(self._path)
            except OSError as error:  # a death is then noticed later, and nothing else is wrong
                self._log("warning", f"the addresses of the others cannot be kept: {error}", {})
            else:
                self._written = text


class Mirror:
    """Heads for taps, one line each: time, bus, sender, to, port, number, bytes."""

    def __init__(self, node: str, lines: Lines) -> None:
        self._node = node
        self._lines = lines
        self._heads: list[str] = []
        self._number = 0

    def add(self, bus: str, to: str, port: str, pieces: tuple[Bytes, ...]) -> None:
        self._number += 1
        size = sum(map(len, pieces))
        self._heads.append(f"{time.time():.6f} {bus} {self._node} {to} {port} {self._number} {size}")

    def flush(self) -> None:
        if self._heads:
            text = "\n".join(self._heads).encode()
            self._heads.clear()
            for wire in list(self._lines.taps):
                if wire.backlog < TAP_BYTES_MAX:
                    self._lines.put(wire, *frames.pack(frames.TAP, pieces=[text]))
