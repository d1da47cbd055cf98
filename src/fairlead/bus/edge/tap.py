"""The bus tap: prints the head of every message that nodes send, and takes part in nothing.

Nodes mirror heads to taps only while there is one. A tap is in no view; one that reads too slowly misses lines.
"""

from __future__ import annotations

import dataclasses
import select
import time
from collections.abc import Callable

import msgspec

from fairlead.bus import frames, records
from fairlead.bus.config import BusConfig
from fairlead.bus.edge.lines import Lines
from fairlead.bus.edge.wire import Wire
from fairlead.bus.frames import Malformed
from fairlead.bus.membership import Membership

TICK_S = 0.1


class Tap:
    """Calls `show` with one line per message: time, bus, sender, to (a channel has a `#`), port, number, bytes."""

    def __init__(self, config: BusConfig, show: Callable[[str], None]) -> None:
        config = dataclasses.replace(config, role="tap")
        config.check()
        members: Membership[Wire] = Membership(config.node, config.start, (), {}, time.time_ns)
        self._show = show
        self._lines = Lines(config, members, self._take, lambda wire: None)
        self._next_s = 0.0

    def fileno(self) -> int:
        return self._lines.epoll.fileno()

    @property
    def nodes(self) -> set[str]:
        """Those that mirror to us."""
        return {wire.node for wire in self._lines.wires.values() if wire.node}

    def patience_s(self, now_s: float) -> float:
        return max(0.0, self._next_s - now_s)

    def turn(self, now_s: float) -> None:
        self._lines.turn(now_s)
        if now_s >= self._next_s:
            self._next_s = now_s + TICK_S
            self._lines.tick(now_s)
        self._lines.out.flush()

    def close(self) -> None:
        self._lines.close()

    def _take(self, wire: Wire, body: memoryview) -> None:
        for kind, _, _, content in frames.parse(body):
            if kind == frames.TAP:
                for line in str(content, "utf-8", "replace").splitlines():
                    self._show(line)
            elif kind == frames.INFO:
                try:
                    self._lines.heard(wire.bus, records.decode_info(content).peers)
                except msgspec.MsgspecError as error:
                    raise Malformed(str(error)) from None


def run_tap(config: BusConfig, show: Callable[[str], None] = print, until: Callable[[], bool] = lambda: False) -> None:
    """Show what goes over the buses until told to stop, or interrupted."""
    tap = Tap(config, show)
    try:
        while not until():
            now_s = time.monotonic()
            select.select([tap], [], [], tap.patience_s(now_s))
            tap.turn(time.monotonic())
    except KeyboardInterrupt:
        pass
    finally:
        tap.close()
