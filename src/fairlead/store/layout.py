"""Where everything lies in the segments of the state store: the numbers of `docs/store.md`, once.

Only numbers and arithmetic on them; whoever reads or writes a segment imports its offsets from here, so that two
programs cannot disagree about a layout without `LAYOUT_VERSION` having changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAGIC: Final = b"FLSTORE\n"
LAYOUT_VERSION: Final = 1

# --- The 64 bytes at the beginning of every segment -------------------------------------------------------------
HEADER_FORMAT: Final = "<8sIIIIQQ"  # magic, layout version, kind, mode, index, size, server id
HEADER_BYTES: Final = 64
HEADER_MAGIC: Final = 0
HEADER_VERSION: Final = 8
HEADER_KIND: Final = 12
HEADER_MODE: Final = 16
HEADER_INDEX: Final = 20
HEADER_SIZE: Final = 24
HEADER_SERVER_ID: Final = 32

KIND_RING: Final = 1
KIND_ARENA: Final = 2
KIND_ROUTING: Final = 3
KIND_CONNECTIONS: Final = 4
KIND_COUNTERS: Final = 5
KIND_NAMES: Final = {
    KIND_RING: "ring",
    KIND_ARENA: "arena",
    KIND_ROUTING: "routing",
    KIND_CONNECTIONS: "connections",
    KIND_COUNTERS: "counters",
}

MODE_COMPILED: Final = 1  # atomics
MODE_PLAIN: Final = 2  # byte-range lock
MODE_NAMES: Final = {MODE_COMPILED: "compiled", MODE_PLAIN: "plain"}


# --- File names -------------------------------------------------------------------------------------------------
def up_name(manager: int) -> str:
    return f"up-{manager}"


def down_name(manager: int) -> str:
    return f"down-{manager}"


def arena_name(manager: int) -> str:
    return f"arena-{manager}"


ROUTING_NAME: Final = "routing"
CONNECTIONS_NAME: Final = "connections"


def counters_name(role: str, index: int = 0) -> str:
    """Managers have one each; router and dispatcher share one with their successors, of which one at a time writes."""
    return f"counters-manager-{index}" if role == "manager" else f"counters-{role}"


# --- Ring -------------------------------------------------------------------------------------------------------
RING_CAPACITY: Final = 64
RING_ENTRIES_MAX: Final = 72
RING_TAIL: Final = 128
RING_PUSHED: Final = 136  # counted total at the tail, a hint
RING_HEAD: Final = 192
RING_POPPED: Final = 200
RING_SLEEPING: Final = 256
RING_WANTING: Final = 320
RING_DATA: Final = 4096

ENTRY_FORMAT: Final = "<IBBHQ"  # size, kind, flags, zero, counted
ENTRY_HEADER_BYTES: Final = 16
ENTRY_ALIGN: Final = 8
ENTRY_PAD: Final = 255
FLAG_COUNTED: Final = 1
FLAG_ROUND: Final = 2

UP_FORMAT: Final = "<QQIIII"  # uid, handle, index, body_length, content_length, zero
UP_CONTENT: Final = 48  # from the start of the entry
UP_MESSAGE: Final = 1
UP_CONTROL: Final = 2
UP_ATTACH: Final = 3
UP_RESPONSE: Final = 4
UP_GONE: Final = 5
UP_ROUND: Final = 6
UP_UNDELIVERED: Final = 7

DOWN_FORMAT: Final = "<QBBHIII"  # handle, touch, limit, zero, recipients, content_length, body_length
DOWN_RECIPIENTS: Final = 40  # from the start of the entry
DOWN_DELIVER: Final = 1
DOWN_DELETE: Final = 2
DOWN_PLAIN: Final = 3
DOWN_DETACH: Final = 4


def ring_bytes(capacity: int) -> int:
    """Size of a ring's file."""
    assert capacity >= 4096
    assert capacity & (capacity - 1) == 0, "a ring's capacity is a power of two"
    return RING_DATA + capacity


# --- Arena ------------------------------------------------------------------------------------------------------
ARENA_BLOCKS: Final = 64
ARENA_BACKED: Final = 72  # blocks given memory so far
ARENA_DIRECTORY: Final = 4096
BLOCK_BYTES: Final = 65536
DIRECTORY_FREE: Final = 0
DIRECTORY_RUN: Final = 0x80000000  # + number of blocks: the first of a run
DIRECTORY_INSIDE: Final = 0x40000000
SIZE_CLASSES: Final = (
    0, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32704,
)  # fmt: skip
SLAB_FIRST: Final = 64  # bytes unused at the start of a slab or run

SLOT_FORMAT: Final = "<QQIIQ"  # word, ring_position, body_length, index, uid
SLOT_HEADER_BYTES: Final = 32
SLOT_WORD: Final = 0
SLOT_RING_POSITION: Final = 8
SLOT_BODY_LENGTH: Final = 16
SLOT_INDEX: Final = 20
SLOT_UID: Final = 24
NO_POSITION: Final = 0xFFFFFFFFFFFFFFFF

WORD_TOUCHES_MASK: Final = 0xFFFFFFFF
WORD_LIMIT_SHIFT: Final = 32
WORD_LIMIT_MASK: Final = 0x3F
WORD_LIVE: Final = 1 << 38
WORD_LISTED: Final = 1 << 39  # free, and on its owner's list
WORD_GENERATION_SHIFT: Final = 40
WORD_GENERATION_MASK: Final = 0xFFFFFF
HANDLE_ARENA_SHIFT: Final = 56
HANDLE_SLOT_SHIFT: Final = 24
HANDLE_SLOT_MASK: Final = 0xFFFFFFFF
HANDLE_SLOT_UNIT: Final = 64


class ArenaPlan(NamedTuple):
    """Offsets of an arena with a given number of blocks."""

    directory: int
    returned: int  # bitmap of u64, a bit per block
    generations: int  # u32 per block
    first_block: int
    size: int


def arena_plan(blocks: int) -> ArenaPlan:
    assert blocks > 0
    returned = round_up(ARENA_DIRECTORY + 4 * blocks, 64)
    generations = round_up(returned + 8 * ((blocks + 63) // 64), 64)
    first_block = round_up(generations + 4 * blocks, BLOCK_BYTES)
    return ArenaPlan(ARENA_DIRECTORY, returned, generations, first_block, first_block + blocks * BLOCK_BYTES)


# --- Routing ----------------------------------------------------------------------------------------------------
ROUTING_AREA_BYTES: Final = 64
ROUTING_COMMITS: Final = (128, 1152)
ROUTING_COMMIT_BYTES_MAX: Final = 1024
ROUTING_AREAS: Final = 4096
COMMIT_FORMAT: Final = "<QIIQQ"  # sequence, area, managers, log_end, next_request
COMMIT_MANAGER_FORMAT: Final = "<QQQQ"  # up_head, up_popped, down_tail, down_counted
MANAGERS_MAX: Final = (
    30  # a commit record has room for as many, and so has the completion word (touches <= managers + 1)
)


def routing_bytes(area_bytes: int) -> int:
    """Size of the routing file: two areas behind the commit records."""
    assert area_bytes % 4096 == 0
    return ROUTING_AREAS + 2 * area_bytes


# --- Connections ------------------------------------------------------------------------------------------------
CONNECTIONS_NEXT_UID: Final = 64
CONNECTIONS_MANAGERS: Final = 72
CONNECTIONS_PER_MANAGER: Final = 76
CONNECTIONS_MANAGER_FIRST: Final = 128  # + 64 * manager
CONNECTIONS_MANAGER_BYTES: Final = 64
MANAGER_HANDED: Final = 0  # u64, written by the dispatcher
MANAGER_CLOSED: Final = 8  # u64, written by the manager
MANAGER_DRAINING: Final = 16  # u32, written by the manager
MANAGER_PID: Final = 20  # u32, written by the manager
MANAGER_USED: Final = 24  # u32, written by the dispatcher: no entry from here on was ever used
CONNECTIONS_ENTRIES: Final = 8192
CONNECTION_BYTES: Final = 512

CONNECTION_STATE: Final = 0  # u32, written last
CONNECTION_INDEX: Final = 4  # u32, counted within its manager
CONNECTION_UID: Final = 8  # u64
CONNECTION_OPENED_NS: Final = 16  # u64, wall clock
CONNECTION_DESCRIPTOR: Final = 24  # u32, number in the manager + 1; 0 until adopted
CONNECTION_LENGTHS: Final = 32  # u16 each: peer, user, type, instance, org
CONNECTION_TEXTS: Final = (64, 128, 192, 256, 320)  # in the same order
CONNECTION_TEXT_BYTES: Final = 64

CONNECTION_FREE: Final = 0
CONNECTION_HANDED: Final = 1
CONNECTION_ADOPTED: Final = 2
CONNECTION_LIVE: Final = 3
CONNECTION_CLOSING: Final = 4
CONNECTION_STATE_NAMES: Final = ("free", "handed over", "adopted", "live", "closing")

HANDOVER_FORMAT: Final = "<QII"  # uid, index, zero; the peer's text follows
HANDOVER_BYTES: Final = 16


def connections_bytes(managers: int, per_manager: int) -> int:
    """Size of the connections file."""
    assert 0 < managers <= MANAGERS_MAX
    assert per_manager > 0
    return CONNECTIONS_ENTRIES + managers * per_manager * CONNECTION_BYTES


# --- Counters ---------------------------------------------------------------------------------------------------
COUNTERS_FIRST: Final = 64  # u64 each, see `runtime/counters.py`
COUNTERS_BYTES: Final = 4096


def round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit
