"""Whom to call and when: seeds for ever, addresses heard of for a minute, each after growing, uneven pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 0.05
LAST_S: Final = 2.0
FORGET_S: Final = 60.0


@dataclass(slots=True)
class Entry:
    """One address on one bus."""

    is_seed: bool
    heard_s: float
    next_s: float = 0.0
    pause_s: float = FIRST_S
    node: str = ""  # who answered there last
    is_ours: bool = False
    is_calling: bool = False


class AddressBook:
    """All addresses of one bus. `draw` gives numbers from 0 to 1."""

    def __init__(self, seeds: list[str], draw: Callable[[], float]) -> None:
        self._entries = {address: Entry(True, 0.0) for address in seeds}
        self._draw = draw

    def heard(self, address: str, now_s: float, node: str = "") -> None:
        """Somebody says a node is there."""
        if entry := self._entries.get(address):
            entry.heard_s = now_s
            entry.node = node or entry.node
        elif address:
            self._entries[address] = Entry(False, now_s, node=node)

    def hurry(self, address: str, now_s: float) -> None:
        """Call there at once."""
        self.heard(address, now_s)
        if entry := self._entries.get(address):
            entry.next_s, entry.pause_s = 0.0, FIRST_S

    def due(self, now_s: float, is_there: Callable[[str], bool]) -> list[str]:
        """Addresses to call now; those of nodes that are there need no call."""
        found = []
        for address, entry in list(self._entries.items()):
            if entry.is_ours or entry.is_calling or (entry.node and is_there(entry.node)):
                continue
            if not entry.is_seed and now_s - entry.heard_s > FORGET_S:
                del self._entries[address]
            elif now_s >= entry.next_s:
                found.append(address)
        return found

    def calling(self, address: str, now_s: float) -> None:
        if entry := self._entries.get(address):
            entry.is_calling = True
            entry.next_s = now_s + entry.pause_s * (0.5 + self._draw())
            entry.pause_s = min(LAST_S, entry.pause_s * 2)

    def hung_up(self, address: str, now_s: float) -> None:
        """The call has ended, however it went; the next comes after the pause."""
        if entry := self._entries.get(address):
            entry.is_calling = False
            entry.next_s = max(entry.next_s, now_s + FIRST_S * self._draw())

    def answered(self, address: str, node: str) -> None:
        """That node is at that address, also if it was it who called."""
        if entry := self._entries.get(address):
            entry.node = node
            entry.pause_s = FIRST_S

    def ourselves(self, address: str) -> None:
        if entry := self._entries.get(address):
            entry.is_ours = True

    def gone(self, address: str) -> None:
        """Its node has left: not called again unless it is a seed or somebody speaks of it."""
        if (entry := self._entries.get(address)) and not entry.is_seed:
            del self._entries[address]
