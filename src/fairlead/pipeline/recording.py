"""A stream in a directory of Parquet files, each message once, however often the recorder is killed.

Every file says, in its own metadata, which position the recording has reached with it: a file and its position appear
in one step, the renaming, and whoever goes on reads the newest one. There is nothing else that could disagree.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from fairlead.errors import ConfigError
from fairlead.feeds.events import Lost
from fairlead.feeds.records import Place
from fairlead.feeds.schema import Schema
from fairlead.pipeline.feed_records import decoded
from fairlead.pipeline.feed_types import plain_schema
from fairlead.pipeline.registry import claim

if TYPE_CHECKING:
    from fairlead.feeds.blocks import StreamMessage
    from fairlead.feeds.events import Event

__all__ = ["BODY", "IDENTITY", "Recording", "State", "state_of"]

IDENTITY: Final = pa.schema(
    [
        pa.field("stream_id", pa.string(), nullable=False),  # these four are as `fairlead pipeline run reconcile` wants
        pa.field("stream_sequence", pa.int64(), nullable=False),
        pa.field("order_number", pa.int64(), nullable=False),
        pa.field("digest", pa.int64(), nullable=False),
        pa.field("arrived", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("parts", pa.int32(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("late", pa.bool_(), nullable=False),
        pa.field("admin_id", pa.string()),
        pa.field("admin_kind", pa.string()),
    ]
)
"""Before the columns of the records. A message made by an adapter itself has an `admin_id`, and no record."""
BODY: Final = pa.field("body", pa.binary())
"""Behind them: of what has no record, or none that can be read, the bytes."""

METADATA: Final = b"fairlead.recording"
NAME: Final = re.compile(r"part-(\d{8})\.parquet")
WRITING: Final = "_writing.parquet"
LOCK: Final = "_lock"
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 64 << 20
ADMINS_KEPT: Final = 4096
LOST_KEPT: Final = 10_000


class State(NamedTuple):
    """What a recording has reached."""

    stream: str
    files: int
    rows: int
    position: dict[str, Place]
    admins: tuple[str, ...]  # the last ones that were recorded: going on may bring them again
    lost: tuple[tuple[str, int, int], ...]  # ranges of source sequences the stream said are lost, by source


def state_of(directory: Path) -> State | None:
    """Of the recording in a directory; None if there is none. ConfigError for a file that is not one of ours."""
    numbers = sorted(int(found[1]) for file in directory.glob("part-*") if (found := NAME.fullmatch(file.name)))
    if not numbers:
        return None
    file = directory / _name(numbers[-1])
    try:
        said = json.loads((pq.read_metadata(file).metadata or {})[METADATA])
        return State(
            str(said["stream"]),
            numbers[-1] + 1,
            int(said["rows"]),
            {str(source): Place(*map(int, place)) for source, place in said["position"].items()},
            tuple(map(str, said["admins"])),
            tuple((str(source), int(first), int(last)) for source, first, last in said["lost"]),
        )
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{file} is no file of a recording: {error}. Move it away, or take another directory."
        ) from None


class Recording:
    """Writes to a directory: `add` what came, `commit` now and then. Only one at a time may have the directory."""

    def __init__(self, directory: Path, stream: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock: IO[str] = claim(directory / LOCK, f"Something else is recording to {directory}.")
        try:
            before = state_of(directory)
            if before is not None and before.stream != stream:
                raise ConfigError(f"{directory} has a recording of {before.stream}: take another directory.")
            (directory / WRITING).unlink(missing_ok=True)
        except BaseException:
            self._lock.close()
            raise
        self.state = before or State(stream, 0, 0, {}, (), ())
        self.is_new = before is None
        self._directory = directory
        self._schema: Schema | None = None
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._written = 0
        self._is_dirty = False
        self._admins = dict.fromkeys(self.state.admins)
        self._lost = list(self.state.lost)
        self._position = dict(self.state.position)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def uncommitted(self) -> int:
        """Rows that would be asked for again if the recorder died now."""
        return self._written + self._rows

    @property
    def is_dirty(self) -> bool:
        """Is there something to commit?"""
        return self._is_dirty

    def add(
        self,
        items: Iterable[StreamMessage | Event],
        position: Mapping[str, Place],
        schema: Schema | None,
        now: datetime,
    ) -> int:
        """What came, in order, and the position behind all of it; answers how many of them are recorded."""
        if schema != self._schema and self.uncommitted:
            self.commit()  # a file has one schema
        self._schema = schema
        messages = []
        for item in items:
            if isinstance(item, Lost):
                self._lost.append((item.source, item.first, item.last))
                self._is_dirty = True
            elif not isinstance(item, Struct) and self._is_new(item):
                messages.append(item)
        if messages:
            batch = self._made(messages, now)
            self._batches.append(batch)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            self._is_dirty = True
        self._position = dict(position)
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._group()
        return len(messages)

    def _is_new(self, message: StreamMessage) -> bool:
        if message.snapshot:
            return False  # a state, and not what happened
        if message.admin is None:
            return True
        if message.admin.id in self._admins:
            return False
        self._admins[message.admin.id] = None
        while len(self._admins) > ADMINS_KEPT:
            del self._admins[next(iter(self._admins))]
        return True

    def _made(self, messages: Sequence[StreamMessage], now: datetime) -> pa.RecordBatch:
        count = len(messages)
        begin = self.state.rows + self.uncommitted
        admins = [message.admin for message in messages]
        has_admins = any(admin is not None for admin in admins)
        bodies = [message.body if message.admin is None else message.admin.body for message in messages]
        sequences = pa.array([message.sequence for message in messages], pa.int64())
        sources = pa.array([message.source for message in messages], pa.string())
        parts = pa.array([message.part for message in messages], pa.int32())
        is_plain = not has_admins and parts.to_numpy().max() == 1
        identity = [
            sources if is_plain else pa.array([_identity(message) for message in messages], pa.string()),
            sequences,
            pa.array(np.arange(begin, begin + count, dtype=np.int64)),
            pa.array([zlib.crc32(body) for body in bodies], pa.int64()),
            pa.array(np.full(count, round(now.timestamp() * 1e6), "M8[us]")).cast(pa.timestamp("us", "UTC")),
            sources,
            sequences,
            parts,
            pa.array([message.parts for message in messages], pa.int32()),
            pa.array([message.number for message in messages], pa.int64()),
            pa.array([message.late for message in messages], pa.bool_()),
            pa.array([None if admin is None else admin.id for admin in admins], pa.string()),
            pa.array([None if admin is None else admin.kind for admin in admins], pa.string()),
        ]
        typed: list[pa.Array] = []
        rest = pa.array(bodies, pa.binary())
        if self._schema is not None:
            is_record = np.array([admin is None for admin in admins])
            records, unread = decoded(_masked(bodies, is_record) if has_admins else rest, self._schema)
            typed = records.columns
            rest = pc.if_else(pa.array(is_record), unread, rest) if has_admins else unread
        return pa.RecordBatch.from_arrays([*identity, *typed, rest], schema=self._columns())

    def _columns(self) -> pa.Schema:
        """A column of the records that has the name of one of ours has an underscore behind it."""
        taken = {*IDENTITY.names, BODY.name}
        records = plain_schema(self._schema) if self._schema is not None else ()
        typed = [field.with_name(f"{field.name}_") if field.name in taken else field for field in records]
        return pa.schema([*IDENTITY, *typed, BODY])

    def _group(self) -> None:
        """What waits becomes a row group of the file that is being written."""
        if self._writer is None:
            columns = self._columns()
            names = ["stream_id", "source", "admin_id", "admin_kind"]
            names += [field.name for field in columns if field.type == pa.string() and field.name not in names]
            self._writer = pq.ParquetWriter(
                self._directory / WRITING, columns, compression="zstd", use_dictionary=names, version="2.6"
            )
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=GROUP_ROWS)
        self._written += self._rows
        self._batches, self._rows, self._bytes = [], 0, 0

    def commit(self) -> Path:
        """What was added is recorded for good from here on, also when there is none: then the position is."""
        self._group()
        assert self._writer is not None
        state = State(
            self.state.stream,
            self.state.files + 1,
            self.state.rows + self._written,
            self._position,
            tuple(self._admins),
            tuple(self._lost[-LOST_KEPT:]),
        )
        self._writer.add_key_value_metadata({METADATA: json.dumps(state._asdict())})
        self._writer.close()
        self._writer = None
        writing, target = self._directory / WRITING, self._directory / _name(self.state.files)
        with open(writing, "rb") as file:
            os.fsync(file.fileno())
        writing.rename(target)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.state, self._written, self._is_dirty = state, 0, False
        return target

    def close(self) -> None:
        """What was not committed is dropped: it will be asked for again."""
        if self._writer is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                self._writer.close()
            self._writer = None
        (self._directory / WRITING).unlink(missing_ok=True)
        self._lock.close()


def _name(number: int) -> str:
    return f"part-{number:08}.parquet"


def _identity(message: StreamMessage) -> str:
    """With the sequence it is one message's alone: parts of a source message have the same one."""
    if message.admin is not None:
        return f"admin:{message.admin.id}"
    return message.source if message.part == 1 else f"{message.source}#{message.part}"


def _masked(bodies: Sequence[bytes], wanted: Any) -> pa.Array:
    return pa.array([body if is_wanted else None for body, is_wanted in zip(bodies, wanted, strict=True)], pa.binary())
