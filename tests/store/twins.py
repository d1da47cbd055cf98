"""Both twins of rings and arenas under one name, for tests that must hold for either."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.store import arena as plain_arena
from fairlead.store import layout
from fairlead.store import ring as plain_ring

PLAIN = SimpleNamespace(
    name="plain", Producer=plain_ring.Producer, Consumer=plain_ring.Consumer, Arena=plain_arena.Arena
)
try:
    from fairlead.store import _store

    COMPILED: Any = SimpleNamespace(
        name="compiled", Producer=_store.Producer, Consumer=_store.Consumer, Arena=_store.Arena
    )
    TWINS = [PLAIN, COMPILED]
except ImportError:
    TWINS = [PLAIN]

both_twins = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)


def new_ring(capacity: int = 4096, entries_max: int = 0) -> bytearray:
    buffer = bytearray(layout.ring_bytes(capacity))
    plain_ring.format_ring(buffer, capacity, entries_max)
    return buffer


def new_arena(blocks: int = 4, index: int = 0) -> bytearray:
    buffer = bytearray(layout.arena_plan(blocks).size)
    struct.pack_into("<I", buffer, layout.HEADER_INDEX, index)
    plain_arena.format_arena(buffer, blocks, 0)
    return buffer
