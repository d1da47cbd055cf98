"""The connection table: one entry per client connection, written by the dispatcher, kept by the manager (SRV-11).

Functions over any writable buffer. Every manager has its own range of entries and an `index` counts within it. The
dispatcher alone turns a free entry into a handed-over one and the manager alone moves it on, so there is nothing to
lock: the state word is written last and says whose turn it is. `load` is `handed - closed`, two counters with one
writer each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fairlead.store import layout as at

_ENTRY_WORDS: Final = at.CONNECTION_BYTES // 4
_HEAD: Final = struct.Struct("<IQQII")  # index, uid, opened_ns, descriptor, zero: behind the state word
_LENGTHS: Final = struct.Struct("<5H")


@dataclass(frozen=True, slots=True)
class Connection:
    """One entry as the status report shows it."""

    manager: int
    index: int
    state: str
    uid: int
    opened_ns: int
    descriptor: int
    peer: str
    user: str
    type: str
    instance: str
    org: str


class ConnectionTable:
    """The table over a buffer; each method says whose it is."""

    def __init__(self, buffer: memoryview | bytearray) -> None:
        self._bytes = memoryview(buffer).cast("B")
        self._words = self._bytes.cast("I")
        self._longs = self._bytes.cast("Q")
        self.managers = self._words[at.CONNECTIONS_MANAGERS // 4]
        self.per_manager = self._words[at.CONNECTIONS_PER_MANAGER // 4]
        assert len(self._bytes) >= at.connections_bytes(self.managers, self.per_manager)
        self._cursors = [0] * self.managers  # where the dispatcher looks for a free entry next

    # --- The dispatcher's -----------------------------------------------------------------------------------------
    def begin_uids(self, unix_s: int) -> None:
        """The first uid of a new store: later than any an earlier store on this host can have given (SRV-27)."""
        if self._longs[at.CONNECTIONS_NEXT_UID // 8] == 0:
            self._longs[at.CONNECTIONS_NEXT_UID // 8] = unix_s << 20

    def open(self, manager: int, peer: str, now_ns: int) -> tuple[int, int] | None:
        """Write an entry for a connection about to be handed over: its (uid, index), or None if all are in use."""
        index = self._find_free(manager)
        if index is None:
            return None
        uid = self._longs[at.CONNECTIONS_NEXT_UID // 8]
        self._longs[at.CONNECTIONS_NEXT_UID // 8] = uid + 1  # before use: a dispatcher that dies now wastes one
        used = self._word(manager, at.MANAGER_USED)
        if index >= self._words[used]:
            self._words[used] = index + 1
        start = self._start(manager, index)
        _HEAD.pack_into(self._bytes, start + at.CONNECTION_INDEX, index, uid, now_ns, 0, 0)
        _LENGTHS.pack_into(self._bytes, start + at.CONNECTION_LENGTHS, 0, 0, 0, 0, 0)
        self._write_text(start, 0, peer)
        self._longs[self._manager(manager, at.MANAGER_HANDED)] += 1
        self._words[start // 4] = at.CONNECTION_HANDED
        return uid, index

    def take_back(self, manager: int, index: int) -> None:
        """Free an entry just opened whose packet could not be sent."""
        self._words[self._start(manager, index) // 4] = at.CONNECTION_FREE
        self._longs[self._manager(manager, at.MANAGER_HANDED)] -= 1

    def sweep(self, manager: int, opened_before_ns: int) -> int:
        """Free entries handed over before then and never adopted; only when the manager's socket was read empty."""
        swept = 0
        for index in self._indices(manager, at.CONNECTION_HANDED):
            if self._longs[(self._start(manager, index) + at.CONNECTION_OPENED_NS) // 8] < opened_before_ns:
                self.take_back(manager, index)
                swept += 1
        return swept

    def recount(self, manager: int) -> None:
        """A dispatcher that takes over: make the load true again if its predecessor died between two words."""
        closed = self._longs[self._manager(manager, at.MANAGER_CLOSED)]
        self._longs[self._manager(manager, at.MANAGER_HANDED)] = closed + self.in_use(manager)

    # --- The manager's --------------------------------------------------------------------------------------------
    def adopt(self, manager: int, index: int, uid: int, descriptor: int) -> bool:
        """Take a handed-over entry into service; False if it is no longer (or not yet) this connection's."""
        start = self._start(manager, index)
        word = start // 4
        if self._words[word] != at.CONNECTION_HANDED or self._longs[(start + at.CONNECTION_UID) // 8] != uid:
            return False
        self.set_descriptor(manager, index, descriptor)
        self._words[word] = at.CONNECTION_ADOPTED
        return True

    def set_descriptor(self, manager: int, index: int, descriptor: int) -> None:
        """The number of the connection's socket in the manager."""
        self._words[(self._start(manager, index) + at.CONNECTION_DESCRIPTOR) // 4] = descriptor + 1

    def set_live(self, manager: int, index: int, *, user: str, type: str, instance: str, org: str) -> None:  # noqa: A002
        """The client has answered the confirmation: who it is, as authenticated (SRV-124)."""
        start = self._start(manager, index)
        for number, text in enumerate((user, type, instance, org), 1):
            self._write_text(start, number, text)
        self._words[start // 4] = at.CONNECTION_LIVE

    def set_closing(self, manager: int, index: int) -> None:
        self._words[self._start(manager, index) // 4] = at.CONNECTION_CLOSING

    def close(self, manager: int, index: int) -> None:
        """The connection is gone: free its entry."""
        self._words[self._start(manager, index) // 4] = at.CONNECTION_FREE
        self._longs[self._manager(manager, at.MANAGER_CLOSED)] += 1

    def lost(self, manager: int) -> list[tuple[int, int]]:
        """(uid, index) of all that a dead predecessor had in service; its successor reports and closes them (SRV-115).

        Those still handed over are not among them: their packets wait in the socket.
        """
        found = []
        for state in (at.CONNECTION_ADOPTED, at.CONNECTION_LIVE, at.CONNECTION_CLOSING):
            for index in self._indices(manager, state):
                found.append((self._longs[(self._start(manager, index) + at.CONNECTION_UID) // 8], index))
        return sorted(found)

    def begin_manager(self, manager: int, pid: int) -> None:
        """A manager begins: its pid, not draining, and a true load after a predecessor that died between two words."""
        self._words[self._word(manager, at.MANAGER_DRAINING)] = 0
        self.set_pid(manager, pid)
        handed = self._longs[self._manager(manager, at.MANAGER_HANDED)]
        self._longs[self._manager(manager, at.MANAGER_CLOSED)] = max(0, handed - self.in_use(manager))

    def set_pid(self, manager: int, pid: int) -> None:
        self._words[self._word(manager, at.MANAGER_PID)] = pid

    def set_draining(self, manager: int, draining: bool = True) -> None:
        """No new connections for this manager (SRV-4)."""
        self._words[self._word(manager, at.MANAGER_DRAINING)] = int(draining)

    # --- Everybody's ----------------------------------------------------------------------------------------------
    @property
    def next_uid(self) -> int:
        return self._longs[at.CONNECTIONS_NEXT_UID // 8]

    def load(self, manager: int) -> int:
        """Connections of a manager, those on their way to it included."""
        base = self._manager(manager, 0)
        return max(0, self._longs[base] - self._longs[base + at.MANAGER_CLOSED // 8])

    def draining(self, manager: int) -> bool:
        return self._words[self._word(manager, at.MANAGER_DRAINING)] != 0

    def pid(self, manager: int) -> int:
        return self._words[self._word(manager, at.MANAGER_PID)]

    def in_use(self, manager: int) -> int:
        """Entries that are not free, counted one by one."""
        states = self._states(manager)
        return len(states) - states.count(at.CONNECTION_FREE)

    def read(self, manager: int, index: int) -> Connection | None:
        """One entry, or None if it is free or changed hands while it was read."""
        start = self._start(manager, index)
        state = self._words[start // 4]
        if state == at.CONNECTION_FREE:
            return None
        entry = bytes(self._bytes[start : start + at.CONNECTION_BYTES])
        if self._words[start // 4] == at.CONNECTION_FREE:
            return None
        found_index, uid, opened_ns, descriptor, _ = _HEAD.unpack_from(entry, at.CONNECTION_INDEX)
        texts = [
            entry[offset : offset + min(length, at.CONNECTION_TEXT_BYTES)].decode("utf-8", "replace")
            for offset, length in zip(
                at.CONNECTION_TEXTS, _LENGTHS.unpack_from(entry, at.CONNECTION_LENGTHS), strict=True
            )
        ]
        name = at.CONNECTION_STATE_NAMES[state] if state < len(at.CONNECTION_STATE_NAMES) else str(state)
        return Connection(manager, found_index, name, uid, opened_ns, descriptor - 1, *texts)

    def read_all(self) -> Iterator[Connection]:
        """Every connection, for the status report."""
        for manager in range(self.managers):
            for index, state in enumerate(self._states(manager)):
                if state != at.CONNECTION_FREE and (entry := self.read(manager, index)) is not None:
                    yield entry

    # --- Where things are -----------------------------------------------------------------------------------------
    def _start(self, manager: int, index: int) -> int:
        assert 0 <= manager < self.managers
        assert 0 <= index < self.per_manager
        return at.CONNECTIONS_ENTRIES + (manager * self.per_manager + index) * at.CONNECTION_BYTES

    def _manager(self, manager: int, field: int) -> int:
        """A manager's field as a number of u64s."""
        assert 0 <= manager < self.managers
        return (at.CONNECTIONS_MANAGER_FIRST + manager * at.CONNECTIONS_MANAGER_BYTES + field) // 8

    def _word(self, manager: int, field: int) -> int:
        """A manager's field as a number of u32s."""
        return self._manager(manager, 0) * 2 + field // 4

    def _states(self, manager: int) -> list[int]:
        """The state words of all entries ever used; those beyond are free, and not touched to save their memory."""
        first = self._start(manager, 0) // 4
        used = min(self._words[self._word(manager, at.MANAGER_USED)], self.per_manager)
        return self._words[first : first + used * _ENTRY_WORDS : _ENTRY_WORDS].tolist()

    def _indices(self, manager: int, state: int) -> list[int]:
        return [index for index, found in enumerate(self._states(manager)) if found == state]

    def _find_free(self, manager: int) -> int | None:
        """The next free entry behind the last one given; what is freed rests as long as possible before reuse."""
        words, count = self._words, self.per_manager
        first = self._start(manager, 0) // 4
        cursor = self._cursors[manager]
        for step in range(count):
            index = cursor + step
            if index >= count:
                index -= count
            if words[first + index * _ENTRY_WORDS] == at.CONNECTION_FREE:
                self._cursors[manager] = index + 1 if index + 1 < count else 0
                return index
        return None

    def _write_text(self, start: int, number: int, text: str) -> None:
        data = fit(text)
        offset = start + at.CONNECTION_TEXTS[number]
        self._bytes[offset : offset + len(data)] = data
        struct.pack_into("<H", self._bytes, start + at.CONNECTION_LENGTHS + 2 * number, len(data))


def fit(text: str) -> bytes:
    """A text as it goes into an entry: cut at a whole character when it is longer than its place."""
    data = text.encode("utf-8", "replace")
    if len(data) <= at.CONNECTION_TEXT_BYTES:
        return data
    return data[: at.CONNECTION_TEXT_BYTES].decode("utf-8", "ignore").encode()
