"""Message bodies and the words that say when each may go: the plain twin of the arena in `_store.pyx`.

One manager owns an arena and allocates in it; every manager may finish an instruction for a message in it, and
whoever finishes the last one frees the message. Count, comparison and freeing are one change of one word, so they
cannot be torn apart by a crash or doubled by a repetition (SRV-74, SRV-77). Layout: docs/store.md.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Final

from fairlead.store import layout
from fairlead.store.ring import Buffer, Words

COUNTED: Final = 0
FREED: Final = 1
STALE: Final = 2  # counted before, or another generation: nothing was changed
FAULT: Final = 3  # more touches than the limit: an accounting fault

_SLOT = struct.Struct(layout.SLOT_FORMAT)
_GENERATIONS = layout.WORD_GENERATION_MASK
_BLOCK = layout.BLOCK_BYTES


def finished(word: int, generation: int, touch: int, limit: int) -> tuple[int, int]:
    """What a completion word becomes when one instruction is finished: (answer, new word). The whole rule is here."""
    if word >> layout.WORD_GENERATION_SHIFT != generation or not word & layout.WORD_LIVE or word & (1 << touch):
        return STALE, word
    new = word | (1 << touch) | ((limit & layout.WORD_LIMIT_MASK) << layout.WORD_LIMIT_SHIFT)
    known = new >> layout.WORD_LIMIT_SHIFT & layout.WORD_LIMIT_MASK
    done = (new & layout.WORD_TOUCHES_MASK).bit_count()
    if known and done > known:
        return FAULT, word
    if known and done == known:
        return FREED, ((generation + 1) & _GENERATIONS) << layout.WORD_GENERATION_SHIFT
    return COUNTED, new


def format_arena(buffer: Buffer, blocks: int, backed: int = 0) -> None:
    """Lay an empty arena out over a zeroed buffer; the first `backed` blocks have memory already."""
    view = memoryview(buffer).cast("B")
    struct.pack_into("<QQ", view, layout.ARENA_BLOCKS, blocks, backed)


class Arena:
    """One arena as its owner (`owner=True`) or as another manager sees it."""

    def __init__(
        self, buffer: Buffer, fd: int = -1, owner: bool = False, step_bytes: int = 4194304, lock_fd: int = -1
    ) -> None:
        self._w = Words(buffer, lock_fd)
        self.index = self._w.i[layout.HEADER_INDEX // 4]
        self.blocks = self._w.q[layout.ARENA_BLOCKS // 8]
        self._plan = layout.arena_plan(self.blocks)
        self.owner = owner
        self._fd = fd
        self._step_blocks = max(1, step_bytes // _BLOCK)
        self._free: dict[int, list[int]] = {c: [] for c in range(1, len(layout.SIZE_CLASSES))}
        self._free_count: dict[int, int] = {}

    # -- words of the layout

    def _directory(self, block: int) -> int:
        return self._w.i[self._plan.directory // 4 + block]

    def _set_directory(self, block: int, kind: int) -> None:
        self._w.i[self._plan.directory // 4 + block] = kind

    def _generation(self, block: int) -> int:
        return self._w.i[self._plan.generations // 4 + block] & _GENERATIONS

    def _set_generation(self, block: int, generation: int) -> None:
        self._w.i[self._plan.generations // 4 + block] = generation & _GENERATIONS

    def _start(self, block: int) -> int:
        return self._plan.first_block + block * _BLOCK + layout.SLAB_FIRST

    def _block_of(self, offset: int) -> int:
        return (offset - self._plan.first_block) // _BLOCK

    def _slots(self, block: int) -> range:
        """Offsets of the slots in a slab or run."""
        kind = self._directory(block)
        start = self._start(block)
        if kind & layout.DIRECTORY_RUN:
            return range(start, start + 1)
        size = layout.SIZE_CLASSES[kind]
        return range(start, start + (_BLOCK - layout.SLAB_FIRST) // size * size, size)

    @staticmethod
    def _offset(handle: int) -> int:
        return (handle >> layout.HANDLE_SLOT_SHIFT & layout.HANDLE_SLOT_MASK) * layout.HANDLE_SLOT_UNIT

    def _word(self, offset: int) -> int:
        return self._w.q[offset // 8]

    # -- the owner's side

    def _list(self, offset: int, size_class: int) -> None:
        self._w.q[offset // 8] |= layout.WORD_LISTED
        self._free[size_class].append(offset)
        block = self._block_of(offset)
        self._free_count[block] = self._free_count.get(block, 0) + 1

    def _take_blocks(self, count: int) -> int:
        """The first of `count` free neighbouring blocks, or -1; gives them memory if needed."""
        backed = self._w.q[layout.ARENA_BACKED // 8]
        run = 0
        for at in range(backed):
            run = run + 1 if self._directory(at) == layout.DIRECTORY_FREE else 0
            if run == count:
                return at - count + 1
        want = backed + count - run
        if want > self.blocks:
            return -1
        want = min(self.blocks, backed + layout.round_up(want - backed, self._step_blocks))
        if self._fd >= 0:
            try:
                os.posix_fallocate(self._fd, self._plan.first_block + backed * _BLOCK, (want - backed) * _BLOCK)
            except OSError:
                return -1
        self._w.q[layout.ARENA_BACKED // 8] = want
        return backed - run

    def _make_slab(self, size_class: int) -> bool:
        block = self._take_blocks(1)
        if block < 0:
            return False
        generation = self._generation(block)
        self._set_directory(block, size_class)
        self._free_count[block] = 0
        for offset in reversed(self._slots(block)):
            self._w.q[offset // 8] = generation << layout.WORD_GENERATION_SHIFT
            self._list(offset, size_class)
        return True

    def _collect(self, everything: bool) -> None:
        """Take back what others freed: from blocks marked as returned, or from all of them."""
        first = self._plan.returned // 8
        with self._w.locked():
            for w in range((self.blocks + 63) // 64):
                bits = self._w.q[first + w]
                self._w.q[first + w] = 0
                for block in range(w * 64, min(self.blocks, w * 64 + 64)):
                    if everything or bits >> (block - w * 64) & 1:
                        self._collect_block(block)

    def _collect_block(self, block: int) -> None:
        kind = self._directory(block)
        if kind in (layout.DIRECTORY_FREE, layout.DIRECTORY_INSIDE):
            return
        for offset in self._slots(block):
            if not self._word(offset) & (layout.WORD_LIVE | layout.WORD_LISTED):
                if kind & layout.DIRECTORY_RUN:
                    self._free_run(block)
                else:
                    self._list(offset, kind)

    def _free_run(self, block: int) -> None:
        count = self._directory(block) & 0x3FFFFFFF
        self._set_generation(block, self._word(self._start(block)) >> layout.WORD_GENERATION_SHIFT)
        for inside in range(block + count - 1, block - 1, -1):
            self._set_directory(inside, layout.DIRECTORY_FREE)

    def _reclaim(self) -> None:
        """Slabs that are free to the last slot become free blocks again."""
        for block in range(self._w.q[layout.ARENA_BACKED // 8]):
            kind = self._directory(block)
            if not 1 <= kind < len(layout.SIZE_CLASSES):
                continue
            slots = self._slots(block)
            if self._free_count.get(block, 0) < len(slots):
                continue
            newest = max(self._word(offset) >> layout.WORD_GENERATION_SHIFT for offset in slots)
            self._free[kind] = [offset for offset in self._free[kind] if self._block_of(offset) != block]
            self._set_generation(block, newest + 1)
            self._free_count[block] = 0
            self._set_directory(block, layout.DIRECTORY_FREE)

    def alloc(self, body_length: int, connection: int = 0, uid: int = 0) -> int:
        """A live slot for a body of this length: its handle, or 0 when there is no room."""
        size = layout.SLOT_HEADER_BYTES + body_length
        if size <= layout.SIZE_CLASSES[-1]:
            size_class = next(c for c, most in enumerate(layout.SIZE_CLASSES) if most >= size)
            free = self._free[size_class]
            if not free:
                self._collect(False)
            if not free and not self._make_slab(size_class):
                self._collect(True)
                if not free:
                    self._reclaim()
                    if not self._make_slab(size_class):
                        return 0
            offset = self._free[size_class].pop()
            self._free_count[self._block_of(offset)] -= 1
            generation = self._word(offset) >> layout.WORD_GENERATION_SHIFT
        else:
            count = (size + layout.SLAB_FIRST + _BLOCK - 1) // _BLOCK
            block = self._take_blocks(count)
            if block < 0:
                self._collect(True)
                self._reclaim()
                block = self._take_blocks(count)
                if block < 0:
                    return 0
            offset, generation = self._start(block), self._generation(block)
            for inside in range(block + 1, block + count):
                self._set_directory(inside, layout.DIRECTORY_INSIDE)
            self._set_directory(block, layout.DIRECTORY_RUN + count)
        word = generation << layout.WORD_GENERATION_SHIFT | layout.WORD_LIVE
        with self._w.locked():
            _SLOT.pack_into(self._w.bytes, offset, word, layout.NO_POSITION, body_length, connection, uid)
        return self.index << layout.HANDLE_ARENA_SHIFT | offset // 64 << layout.HANDLE_SLOT_SHIFT | generation

    def refer(self, handle: int, ring_position: int) -> None:
        """The router will hear of this slot by the entry at that position of the owner's up ring."""
        self._w.q[(self._offset(handle) + layout.SLOT_RING_POSITION) // 8] = ring_position

    def abandon(self, handle: int) -> None:
        """Take back a slot that was never referred to."""
        self.finish(handle, 0, 1)

    def recover(self, tail: int) -> list[dict[str, Any]]:
        """A successor's start: free what the router never heard of, list what is free. Returns what was given up."""
        given_up = []
        self._free = {c: [] for c in range(1, len(layout.SIZE_CLASSES))}
        self._free_count = {}
        with self._w.locked():
            for block in range(self._w.q[layout.ARENA_BACKED // 8]):
                kind = self._directory(block)
                if kind in (layout.DIRECTORY_FREE, layout.DIRECTORY_INSIDE):
                    continue
                for offset in self._slots(block):
                    word = self._word(offset)
                    position = self._w.q[(offset + layout.SLOT_RING_POSITION) // 8]
                    if word & layout.WORD_LIVE and position >= tail:
                        given_up.append(self._facts(offset))
                        generation = (word >> layout.WORD_GENERATION_SHIFT) + 1 & _GENERATIONS
                        word = self._w.q[offset // 8] = generation << layout.WORD_GENERATION_SHIFT
                    if not word & layout.WORD_LIVE:
                        if kind & layout.DIRECTORY_RUN:
                            self._free_run(block)
                        else:
                            self._list(offset, kind)
            self._free_orphan_blocks()
        return given_up

    def _free_orphan_blocks(self) -> None:
        """Blocks inside a run whose first block was not yet written when the owner died."""
        block, end = 0, self._w.q[layout.ARENA_BACKED // 8]
        while block < end:
            kind = self._directory(block)
            if kind & layout.DIRECTORY_RUN:
                block += kind & 0x3FFFFFFF
                continue
            if kind == layout.DIRECTORY_INSIDE:
                self._set_directory(block, layout.DIRECTORY_FREE)
            block += 1

    # -- everybody's side

    def _is_current(self, handle: int) -> bool:
        word = self._word(self._offset(handle))
        return word >> layout.WORD_GENERATION_SHIFT == handle & _GENERATIONS and bool(word & layout.WORD_LIVE)

    def write(self, handle: int, data: bytes | memoryview, at: int = 0) -> bool:
        if not self._is_current(handle):
            return False
        start = self._offset(handle) + layout.SLOT_HEADER_BYTES + at
        self._w.bytes[start : start + len(data)] = data
        return True

    def view(self, handle: int) -> memoryview | None:
        """The body in place, or None when the handle is stale."""
        if not self._is_current(handle):
            return None
        offset = self._offset(handle)
        length = self._w.i[(offset + layout.SLOT_BODY_LENGTH) // 4]
        start = offset + layout.SLOT_HEADER_BYTES
        return self._w.bytes[start : start + length]

    def read(self, handle: int) -> bytes | None:
        """The body as bytes, or None when the handle is stale."""
        view = self.view(handle)
        return None if view is None else bytes(view)

    def finish(self, handle: int, touch: int, limit: int) -> int:
        """Count one instruction as finished; frees the message when it was the last one."""
        offset = self._offset(handle)
        with self._w.locked():
            answer, word = finished(self._word(offset), handle & _GENERATIONS, touch, limit)
            self._w.q[offset // 8] = word
            if answer == FREED:
                block = self._block_of(offset)
                if not self.owner:
                    self._w.q[self._plan.returned // 8 + block // 64] |= 1 << block % 64
                elif self._directory(block) & layout.DIRECTORY_RUN:
                    self._free_run(block)
                else:
                    self._list(offset, self._directory(block))
        return answer

    def set_limit(self, handle: int, limit: int) -> None:
        """Record the completion condition before its instruction is finished (SRV-73 a)."""
        with self._w.locked():
            if self._is_current(handle):
                self._w.q[self._offset(handle) // 8] |= (limit & layout.WORD_LIMIT_MASK) << layout.WORD_LIMIT_SHIFT

    def _facts(self, offset: int) -> dict[str, Any]:
        word, _, length, index, uid = _SLOT.unpack_from(self._w.bytes, offset)
        generation = word >> layout.WORD_GENERATION_SHIFT
        return {
            "handle": self.index << layout.HANDLE_ARENA_SHIFT | offset // 64 << layout.HANDLE_SLOT_SHIFT | generation,
            "uid": uid,
            "index": index,
            "bytes": length,
            "relinquish_count": (word & layout.WORD_TOUCHES_MASK).bit_count(),
            "relinquish_limit": (word >> layout.WORD_LIMIT_SHIFT & layout.WORD_LIMIT_MASK) or -1,
            "live": bool(word & layout.WORD_LIVE),
        }

    def census(self, details: bool = False) -> tuple[Any, ...]:
        """(live slots, their body bytes), read without changing anything; with details a list of the slots too."""
        found = []
        for block in range(self._w.q[layout.ARENA_BACKED // 8]):
            kind = self._directory(block)
            if kind in (layout.DIRECTORY_FREE, layout.DIRECTORY_INSIDE):
                continue
            found += [self._facts(o) for o in self._slots(block) if self._word(o) & layout.WORD_LIVE]
        total = len(found), sum(slot["bytes"] for slot in found)
        return (*total, found) if details else total

    def describe(self, handle: int) -> dict[str, Any] | None:
        """Counts and limit of one handle, or None when it is not stored any more."""
        return self._facts(self._offset(handle)) if self._is_current(handle) else None
