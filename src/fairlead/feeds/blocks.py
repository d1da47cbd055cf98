"""Records to blocks and back (docs/feeds.md, section 2): the plain twin of `_blocks.pyx`.

A block is read where it lies. `scan` is the hot loop of a client: rows 1 and 2 of table 5.1, over as many records as
can be judged without asking anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Final, Protocol
from zlib import crc32

from fairlead.errors import LocalProtocolError, RemoteProtocolError
from fairlead.feeds.records import ADMIN, ADMIN_VOID, MESSAGE, SOURCE_GAP, VOID, Place, Record
from fairlead.feeds.words import Admin

__all__ = [
    "BLOCK_BYTES_MAX",
    "BODY_BYTES_MAX",
    "HEAD_BYTES",
    "RECORDS_MAX",
    "RECORD_BYTES",
    "SEQUENCE_MAX",
    "SNAPSHOT",
    "Block",
    "Column",
    "RowReader",
    "StreamMessage",
    "pack",
    "pack_columns",
    "with_first",
]

MAGIC: Final = b"FB"
VERSION: Final = 1
HEAD: Final = Struct("<2sBBIIIQ")
RECORD: Final = Struct("<IBBHHHQQI")
HEAD_BYTES: Final = HEAD.size
RECORD_BYTES: Final = RECORD.size
RECORDS_MAX: Final = 65_535
BODY_BYTES_MAX: Final = 1 << 20
BLOCK_BYTES_MAX: Final = 4 << 20
SEQUENCE_MAX: Final = (1 << 63) - 1
SNAPSHOT: Final = 6
"""The kind of a message that is part of a snapshot; no record has it."""


class RowReader(Protocol):
    """What reads bodies: a `schema.Schema`."""

    def decode(self, body: bytes, /) -> dict[str, Any]: ...


class Column(Protocol):
    """Numbers: a list, an array, or a numpy array of the width its field has."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


class StreamMessage:
    """One message of a stream, as a program gets it."""

    __slots__ = ("admin", "body", "kind", "late", "number", "part", "parts", "schema", "sequence", "source")

    def __init__(
        self,
        number: int,
        kind: int,
        source: str,
        sequence: int,
        part: int,
        parts: int,
        body: bytes,
        late: bool = False,
        admin: Admin | None = None,
        schema: RowReader | None = None,
    ) -> None:
        self.number = number
        self.kind = kind
        self.source = source
        self.sequence = sequence
        self.part = part
        self.parts = parts
        self.body = body
        self.late = late  # it belongs further up, and came only now
        self.admin = admin  # an administrative message: what it says
        self.schema = schema

    @property
    def snapshot(self) -> bool:
        """Is it part of a snapshot?"""
        return self.kind == SNAPSHOT

    def record(self) -> dict[str, Any]:
        """The body by the stream's schema."""
        if self.schema is None or self.kind == ADMIN:
            raise LocalProtocolError("This message has no typed record: read `body`, or `admin` of administrative ones")
        return self.schema.decode(self.body)

    def __repr__(self) -> str:
        kind = {MESSAGE: "", ADMIN: " admin", SNAPSHOT: " snapshot"}.get(self.kind, "")
        late = " late" if self.late else ""
        return f"<StreamMessage {self.number} {self.source}:{self.sequence} {self.part}/{self.parts}{kind}{late}>"


class Block:
    """A block that was found well-formed. Indices count its records from 0."""

    __slots__ = ("_offsets", "count", "data", "first", "last", "mask", "source")

    data: bytes
    source: str
    first: int
    last: int
    count: int
    mask: int

    def __init__(self) -> None:
        raise TypeError("Use Block.parse")

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Block:
        """Raises RemoteProtocolError for anything that is not exactly one block."""
        data = bytes(data)
        if len(data) < HEAD_BYTES or len(data) > BLOCK_BYTES_MAX:
            raise _bad(f"it has {len(data)} bytes")
        magic, version, length, count, size, checksum, first = HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise _bad("it does not begin like one")
        if not length or HEAD_BYTES + length + size != len(data) or not 1 <= count <= RECORDS_MAX:
            raise _bad("its sizes contradict each other")
        if not 1 <= first <= SEQUENCE_MAX - count:
            raise _bad("its number is out of range")
        if crc32(memoryview(data)[HEAD_BYTES:]) != checksum:
            raise _bad("its checksum is wrong")
        block = cls.__new__(cls)
        try:
            block.source = data[HEAD_BYTES : HEAD_BYTES + length].decode()
        except UnicodeDecodeError as error:
            raise _bad("its source id is not UTF-8") from error
        block.data, block.first, block.count, block.last = data, first, count, first + count - 1
        block._index(HEAD_BYTES + length)
        return block

    def _index(self, at: int) -> None:
        data, mask, offsets = self.data, 0, []
        for _ in range(self.count):
            if at + RECORD_BYTES > len(data):
                raise _bad("a record reaches beyond its end")
            size, kind, flags, part, parts, reserved, sequence, previous, _crc = RECORD.unpack_from(data, at)
            if not MESSAGE <= kind <= SOURCE_GAP or flags or reserved or not 1 <= part <= parts:
                raise _bad("a record's fields are out of range")
            if sequence > SEQUENCE_MAX or previous > SEQUENCE_MAX:
                raise _bad("a record's place is out of range")
            if previous >= sequence and kind not in (ADMIN, ADMIN_VOID):
                raise _bad("a record's previous link does not lead back")
            if size > BODY_BYTES_MAX or at + RECORD_BYTES + size > len(data):
                raise _bad("a record reaches beyond its end")
            mask |= 1 << kind
            offsets.append(at)
            at += RECORD_BYTES + size
        if at != len(data):
            raise _bad("there is more than its records")
        self.mask, self._offsets = mask, offsets

    def kind(self, i: int) -> int:
        return self.data[self._at(i) + 4]

    def place(self, i: int) -> Place:
        _size, _kind, _flags, part, parts, _reserved, sequence, _previous, _crc = RECORD.unpack_from(
            self.data, self._at(i)
        )
        return Place(sequence, part, parts)

    def body(self, i: int) -> bytes:
        at = self._at(i) + RECORD_BYTES
        return self.data[at : at + int.from_bytes(self.data[at - RECORD_BYTES : at - RECORD_BYTES + 4], "little")]

    def number(self, i: int) -> int:
        self._at(i)
        return self.first + i

    def record(self, i: int) -> Record:
        _size, kind, _flags, part, parts, _reserved, sequence, previous, checksum = RECORD.unpack_from(
            self.data, self._at(i)
        )
        return Record(self.first + i, kind, self.source, sequence, part, parts, previous, self.body(i), checksum)

    def find(self, sequence: int, part: int) -> int:
        """The first record whose place is beyond this one; `count` if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.place(middle)[:2] <= (sequence, part):
                low = middle + 1
            else:
                high = middle
        return low

    def scan(
        self, i: int, end: int, sequence: int, part: int, parts: int, offset: int = 0
    ) -> tuple[int, int, int, int, int, int]:
        """Judge records from `i` against a position: (begin, next, dropped, and the new position's three).

        Those before `begin` repeat what was delivered (`dropped` of them are messages); those from `begin` to before
        `next` follow the position directly. The one at `next` needs a decision, if it is before `end`.
        """
        data, offsets, dropped = self.data, self._offsets, 0
        i, end = self._range(i, end)
        while i < end:
            _size, kind, _f, k, _parts, _r, s, _previous, _crc = RECORD.unpack_from(data, offsets[i])
            s = _moved(s, offset)
            if (kind != MESSAGE and kind != VOID) or s > sequence or (s == sequence and k > part):
                break
            dropped += kind == MESSAGE
            i += 1
        begin = i
        while i < end:
            _size, kind, _f, k, of, _r, s, previous, _crc = RECORD.unpack_from(data, offsets[i])
            s = _moved(s, offset)
            if kind != MESSAGE and kind != VOID:
                break
            if s == sequence:
                if k != part + 1 or part >= parts:
                    break
            elif part < parts or k != 1 or s < sequence or (previous and _moved(previous, offset) > sequence):
                break
            sequence, part, parts = s, k, of
            i += 1
        return begin, i, dropped, sequence, part, parts

    def messages(
        self,
        i: int,
        j: int,
        schema: RowReader | None = None,
        source: str | None = None,
        offset: int = 0,
        late: bool = False,
    ) -> list[StreamMessage]:
        """The messages of a range, without voids; `source` and `offset` if it goes by the name of an equivalent one."""
        name, data, made = source or self.source, self.data, []
        i, j = self._range(i, j)
        for index in range(i, j):
            at = self._offsets[index]
            size, kind, _f, part, parts, _r, sequence, _previous, _crc = RECORD.unpack_from(data, at)
            if kind == MESSAGE:
                body = data[at + RECORD_BYTES : at + RECORD_BYTES + size]
                sequence = _moved(sequence, offset)
                made.append(
                    StreamMessage(self.first + index, kind, name, sequence, part, parts, body, late, None, schema)
                )
        return made

    def diverging(
        self, i: int, j: int, other: Block, a: int, b: int, offset: int = 0, other_offset: int = 0
    ) -> tuple[int, int]:
        """How many messages of a range have, in a range of another block, another content at the same place.

        And the index of the first one here; both ranges are in the order of the source.
        """
        count, found = 0, -1
        i, j = self._range(i, j)
        a, b = other._range(a, b)
        while i < j and a < b:
            _size, kind, _f, k, _parts, _r, s, _previous, crc = RECORD.unpack_from(self.data, self._offsets[i])
            _size, kind2, _f, k2, _parts, _r, s2, _previous, crc2 = RECORD.unpack_from(other.data, other._offsets[a])
            here, there = (_moved(s, offset), k), (_moved(s2, other_offset), k2)
            if kind != MESSAGE or here < there:
                i += 1
            elif kind2 != MESSAGE or there < here:
                a += 1
            else:
                if crc != crc2:
                    found = i if not count else found
                    count += 1
                i += 1
                a += 1
        return count, found

    def _at(self, i: int) -> int:
        if not 0 <= i < self.count:
            raise IndexError(f"there is no record {i} among {self.count}")
        return self._offsets[i]

    def _range(self, i: int, j: int) -> tuple[int, int]:
        if not 0 <= i <= j <= self.count:
            raise IndexError(f"there is no range {i} to {j} among {self.count} records")
        return i, j


def pack(source: str, first: int, records: Iterable[Record]) -> bytes:
    """Records (their numbers and sources are not looked at) as one block."""
    listed = list(records)
    bodies = [record.body for record in listed]
    ends, end = [], 0
    for body in bodies:
        end += len(body)
        ends.append(end)
    return pack_columns(
        source,
        first,
        [record.kind for record in listed],
        [record.sequence for record in listed],
        [record.previous for record in listed],
        [record.part for record in listed],
        [record.parts for record in listed],
        b"".join(bodies),
        ends,
    )


def pack_columns(
    source: str,
    first: int,
    kinds: Column,
    sequences: Column,
    previous: Column,
    part: Column,
    parts: Column,
    data: bytes | bytearray | memoryview,
    ends: Column,
) -> bytes:
    """Columns as one block; body i is `data[ends[i - 1]:ends[i]]`. Raises ValueError for what no block can hold."""
    count, name = len(kinds), source.encode()
    columns = (sequences, previous, part, parts, ends)
    if not 1 <= count <= RECORDS_MAX or any(len(column) != count for column in columns):
        raise ValueError(f"a block has 1 to {RECORDS_MAX} records, and as many of each field")
    if not 1 <= len(name) <= 255 or not 1 <= first <= SEQUENCE_MAX - count:
        raise ValueError("a source id has 1 to 255 bytes, and numbers count from 1")
    view, begin = memoryview(data).cast("B"), 0
    pieces: list[bytes | memoryview] = [name]
    for kind, sequence, back, k, of, end in zip(kinds, sequences, previous, part, parts, ends, strict=True):
        begin, end = int(begin), int(end)
        if not begin <= end <= len(view) or end - begin > BODY_BYTES_MAX:
            raise ValueError(f"a body has 0 to {BODY_BYTES_MAX} bytes, and they lie one behind the other in the data")
        if not MESSAGE <= kind <= SOURCE_GAP or not 1 <= k <= of <= 65535 or min(sequence, back) < 0:
            raise ValueError("a record's fields are out of range")
        if max(sequence, back) > SEQUENCE_MAX or (back >= sequence and kind not in (ADMIN, ADMIN_VOID)):
            raise ValueError("a record's place is out of range, or its previous link does not lead back")
        body = view[begin:end]
        pieces.append(RECORD.pack(end - begin, int(kind), 0, int(k), int(of), 0, int(sequence), int(back), crc32(body)))
        pieces.append(body)
        begin = end
    content = b"".join(pieces)
    if HEAD_BYTES + len(content) > BLOCK_BYTES_MAX:
        raise ValueError(f"a block has at most {BLOCK_BYTES_MAX} bytes")
    return HEAD.pack(MAGIC, VERSION, len(name), count, len(content) - len(name), crc32(content), first) + content


def with_first(block: bytes | memoryview, first: int) -> bytes:
    """The same block, numbered from `first`."""
    if not 1 <= first <= SEQUENCE_MAX - RECORDS_MAX:
        raise ValueError("numbers count from 1")
    return b"".join((block[:16], first.to_bytes(8, "little"), block[24:]))


def _moved(sequence: int, offset: int) -> int:
    return min(sequence + offset, SEQUENCE_MAX)


def _bad(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"This is not a block of a stream: {why}. Close the line and dial again")
