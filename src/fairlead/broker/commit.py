"""The router's commit records: one small write that makes a whole turn happen, or not happen at all (SRV-87, SRV-88).

A turn reads references, changes state and writes instructions, all beyond what anybody else can see. Then one record
says: so far have I read, so far have I written. Two places take turns, so a record torn by death leaves the other.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from fairlead.store import layout

_HEAD = struct.Struct(layout.COMMIT_FORMAT)
_MANAGER = struct.Struct(layout.COMMIT_MANAGER_FORMAT)
_U64 = struct.Struct("<Q")
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF


class Positions(NamedTuple):
    """How far one manager's two rings are read and written."""

    up_head: int
    up_popped: int
    down_tail: int
    down_counted: int


class Commit(NamedTuple):
    """Everything a starting router has to know; `flips` counts log areas, its lowest bit says which is in use."""

    sequence: int
    flips: int
    log_end: int
    next_request: int
    managers: tuple[Positions, ...]


def checksum(data: bytes | memoryview) -> int:
    """FNV-1a over 64-bit words."""
    total = _FNV_OFFSET
    for (word,) in _U64.iter_unpack(data):
        total = (total ^ word) * _FNV_PRIME & _MASK
    return total


def write(segment: memoryview, commit: Commit) -> None:
    """Write a record into the place its sequence number gives it: the older of the two."""
    head = _HEAD.pack(commit.sequence, commit.flips, len(commit.managers), commit.log_end, commit.next_request)
    data = head + b"".join(_MANAGER.pack(*positions) for positions in commit.managers)
    at = layout.ROUTING_COMMITS[commit.sequence & 1]
    segment[at : at + len(data) + 8] = data + _U64.pack(checksum(data))


def newest(segment: memoryview) -> Commit | None:
    """The newest record that is whole, or None in a fresh segment."""
    found = [commit for at in layout.ROUTING_COMMITS if (commit := _read(segment, at)) is not None]
    return max(found, default=None)


def _read(segment: memoryview, at: int) -> Commit | None:
    data = bytes(segment[at : at + layout.ROUTING_COMMIT_BYTES_MAX])
    sequence, flips, managers, log_end, next_request = _HEAD.unpack_from(data)
    end = _HEAD.size + managers * _MANAGER.size
    if not sequence or managers > layout.MANAGERS_MAX or _U64.unpack_from(data, end)[0] != checksum(data[:end]):
        return None
    positions = tuple(Positions(*p) for p in _MANAGER.iter_unpack(data[_HEAD.size : end]))
    return Commit(sequence, flips, log_end, next_request, positions)
