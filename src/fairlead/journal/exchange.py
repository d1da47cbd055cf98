"""Records on their way from one journal to another: the plain twin of what `_records.pyx` has for it.

A record goes as it lies in its file, but for its magic and its checksums, which begin with 0 instead of store and
place. So it is complete in itself: index, epoch, epoch of the record before (docs/journal.md, "Records for others").
"""

from __future__ import annotations

from collections.abc import Container

from fairlead.journal.crc import crc32c
from fairlead.journal.layout import BATCH_MAGIC, EXCHANGE_MAGIC, ITEM, ITEM_BYTES, padded
from fairlead.journal.records import PLACE, Bytes, item_at, sealed

__all__ = ["Seen", "check_export", "export", "first_of", "walk"]

Seen = tuple[int, int, int, int, int, int]
"""index, place of the body, kind, offset of the body in the data, its length, epoch."""


def walk(
    data: Bytes, offset: int, place: int, seed: int, first: int, last: int, most_bytes: int
) -> tuple[list[Seen], int]:
    """Records from index `first` to `last` in bytes that lie at `place`: what they are, and where it stopped.

    It stops before what would make it more than `most_bytes`, though not before the first, and at anything bad.
    """
    view = memoryview(data)
    found: list[Seen] = []
    gathered = 0
    while len(view) - offset >= ITEM_BYTES:
        item = item_at(view, offset, place, seed)
        if item is None:
            break
        magic, kind, length, _, body_crc, index, epoch, _ = item
        if magic == BATCH_MAGIC:
            offset += ITEM_BYTES
            continue
        need = ITEM_BYTES + padded(length)
        if need > len(view) - offset or index > last:
            break
        if index >= first:
            if gathered and gathered + need > most_bytes:
                break
            body = offset + ITEM_BYTES
            start = crc32c(PLACE.pack(place + offset), seed)
            if crc32c(view[body : body + length], start) != body_crc:
                break
            found.append((index, place + body, kind, body, length, epoch))
            gathered += need
        offset += need
    return found, offset


def export(
    data: Bytes, offset: int, place: int, seed: int, first: int, last: int, most_bytes: int, verify: bool
) -> tuple[bytes, int, int]:
    """The same records as they go to another journal: the bytes, how many, and where it stopped in the data.

    `verify` is for what comes from a file; what was made in this process is not looked at twice.
    """
    view = memoryview(data)
    seen, end = walk(view, offset, place, seed, first, last, most_bytes)
    out = bytearray()
    for _, _, _, body, length, _ in seen:
        _, kind, _, _, _, index, epoch, previous = ITEM.unpack_from(view, body - ITEM_BYTES)
        header = ITEM.pack(EXCHANGE_MAGIC, kind, length, 0, crc32c(view[body : body + length]), index, epoch, previous)
        out += sealed(header, 0)
        out += view[body : body + padded(length)]
    return bytes(out), len(seen), end


def check_export(data: Bytes, skip: int) -> tuple[int, int, tuple[tuple[int, int], ...], int, int]:
    """Of records of another journal: (first index, epoch before it, runs of epochs, longest body, where to go on).

    Where to go on: behind the first `skip` of them. Raises ValueError when anything is not as it was sent.
    """
    view = memoryview(data)
    offset = count = first = before = longest = start = 0
    runs: list[tuple[int, int]] = []
    while offset < len(view):
        if len(view) - offset < ITEM_BYTES:
            raise ValueError(f"the data ends inside a header, at {offset}")
        header = bytes(view[offset : offset + ITEM_BYTES])
        magic, _, length, checksum, body_crc, index, epoch, previous = ITEM.unpack(header)
        if magic != EXCHANGE_MAGIC or crc32c(header[12:], crc32c(header[:8])) != checksum:
            raise ValueError(f"there is no record at {offset}")
        need = ITEM_BYTES + padded(length)
        if need > len(view) - offset:
            raise ValueError(f"the data ends inside the record at {offset}")
        if crc32c(view[offset + ITEM_BYTES : offset + ITEM_BYTES + length]) != body_crc:
            raise ValueError(f"the record at {offset} is not what was sent")
        if not count:
            first, before = index, previous
            if not first:
                raise ValueError("indexes begin with 1")
        elif index != first + count or previous != runs[-1][1]:
            raise ValueError(f"the record at {offset} does not follow the one before it")
        if runs and runs[-1][1] == epoch:
            runs[-1] = (runs[-1][0] + 1, epoch)
        else:
            runs.append((1, epoch))
        count += 1
        offset += need
        if count == skip:
            start = offset
        longest = max(longest, length)
    if skip > count:
        raise ValueError(f"there are only {count} records")
    return first, before, tuple(runs), longest, start


def first_of(kinds: Container[int], data: Bytes, offset: int) -> int:
    """Where the first record of these kinds begins, from that offset on; the end, if there is none."""
    while offset < len(data):
        _, kind, length, *_ = ITEM.unpack_from(data, offset)
        if kind in kinds:
            return offset
        offset += ITEM_BYTES + padded(length)
    return offset
