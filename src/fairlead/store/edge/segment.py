"""Segments as files: where the store lies, how its files are made, mapped and recognised.

A segment is a whole file, mapped whole. Rings, connections and counters get all their memory at creation, so that no
write to them can fail later; arena and routing are sparse, get a first step, and are grown by their one owner with
`posix_fallocate` on `Segment.fd`. The plain twins take their byte-range locks on the same descriptor; such a lock is
gone as soon as the process closes *any* descriptor of the file, so a process maps a segment once and keeps it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead.errors import ConfigError
from fairlead.store import layout

TMPFS: Final = Path("/dev/shm")
ROOM_SPARE_BYTES: Final = 16 << 20  # what others on the same tmpfs are left with


@dataclass(slots=True)
class Segment:
    """One mapped file of the store."""

    path: Path
    kind: int
    index: int
    mode: int
    server_id: int
    size: int
    fd: int
    map: mmap.mmap = field(repr=False)

    @property
    def view(self) -> memoryview:
        """The whole segment; every view must be released before `close`."""
        return memoryview(self.map)

    def close(self) -> None:
        """Unmap. A view somebody still holds keeps the mapping alive, which is no harm."""
        try:
            self.map.close()
        except BufferError:
            pass
        os.close(self.fd)


def store_directory(data: Path, needed_bytes: int, *, tmpfs: Path = TMPFS) -> Path:
    """Where this data directory's store belongs: tmpfs when all of it fits there, else beside the data."""
    if _room(tmpfs) >= needed_bytes + ROOM_SPARE_BYTES:
        return tmpfs_directory(data, tmpfs=tmpfs)
    beside = data / "run" / "store"
    room = _room(data)
    if room < needed_bytes:
        raise ConfigError(
            f"The store needs {_mib(needed_bytes)}, but {tmpfs} has room for {_mib(_room(tmpfs))} and {data} "
            f"for {_mib(room)}. Make room, or lower the sizes of the [store] section."
        )
    return beside


def tmpfs_directory(data: Path, *, tmpfs: Path = TMPFS) -> Path:
    """One directory per user and data directory, always the same one."""
    name = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:12]
    return tmpfs / f"fairlead-{os.getuid()}-{name}"


def make_directory(path: Path) -> None:
    """A directory for our own account only; one that somebody else made is refused."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = path.lstat()
    if facts.st_uid != os.getuid() or path.is_symlink():
        raise ConfigError(f"{path} belongs to another user or is a link; remove it or choose another data directory.")
    path.chmod(0o700)


def remove_directory(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


# --- Creating ---------------------------------------------------------------------------------------------------
def create_ring(path: Path, *, index: int, capacity: int, entries_max: int, mode: int, server_id: int) -> Segment:
    segment = _create(path, layout.KIND_RING, index, layout.ring_bytes(capacity), None, mode, server_id)
    struct.pack_into("<QQ", segment.map, layout.RING_CAPACITY, capacity, entries_max)
    return segment


def create_arena(path: Path, *, index: int, blocks: int, first_blocks: int, mode: int, server_id: int) -> Segment:
    """Sparse: the first `first_blocks` blocks have memory, the owner gives more as it grows."""
    plan = layout.arena_plan(blocks)
    first_blocks = min(first_blocks, blocks)
    first_bytes = plan.first_block + first_blocks * layout.BLOCK_BYTES
    segment = _create(path, layout.KIND_ARENA, index, plan.size, first_bytes, mode, server_id)
    struct.pack_into("<QQ", segment.map, layout.ARENA_BLOCKS, blocks, first_blocks)
    return segment


def create_routing(path: Path, *, area_bytes: int, first_bytes: int, mode: int, server_id: int) -> Segment:
    """Sparse: the commit records and the beginning of area A have memory."""
    size = layout.routing_bytes(area_bytes)
    segment = _create(
        path, layout.KIND_ROUTING, 0, size, min(size, layout.ROUTING_AREAS + first_bytes), mode, server_id
    )
    struct.pack_into("<Q", segment.map, layout.ROUTING_AREA_BYTES, area_bytes)
    return segment


def create_connections(path: Path, *, managers: int, per_manager: int, mode: int, server_id: int) -> Segment:
    size = layout.connections_bytes(managers, per_manager)
    segment = _create(path, layout.KIND_CONNECTIONS, 0, size, None, mode, server_id)
    struct.pack_into("<II", segment.map, layout.CONNECTIONS_MANAGERS, managers, per_manager)
    return segment


def create_counters(path: Path, *, index: int, mode: int, server_id: int) -> Segment:
    return _create(path, layout.KIND_COUNTERS, index, layout.COUNTERS_BYTES, None, mode, server_id)


def _create(
    path: Path, kind: int, index: int, size: int, memory_bytes: int | None, mode: int, server_id: int
) -> Segment:
    """A new file of `size` bytes of which the first `memory_bytes` (all, if None) are sure to have memory."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, size if memory_bytes is None else memory_bytes)
        mapped = mmap.mmap(fd, size)
    except OSError as error:
        os.close(fd)
        path.unlink()
        raise ConfigError(f"No room for {path} ({_mib(size)}): {error.strerror}.") from error
    struct.pack_into(
        layout.HEADER_FORMAT, mapped, 0, layout.MAGIC, layout.LAYOUT_VERSION, kind, mode, index, size, server_id
    )
    return Segment(path, kind, index, mode, server_id, size, fd, mapped)


# --- Mapping ----------------------------------------------------------------------------------------------------
def open_segment(path: Path, kind: int, *, mode: int | None = None, read_only: bool = False) -> Segment:
    """Map an existing segment, refusing what this program does not understand; `mode` None accepts either."""
    try:
        fd = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"Cannot open {path}: {error.strerror}.") from error
    try:
        header = os.pread(fd, layout.HEADER_BYTES, 0)
        found_mode, index, size, server_id = check_header(header, os.fstat(fd).st_size, path, kind, mode)
        access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
        return Segment(path, kind, index, found_mode, server_id, size, fd, mmap.mmap(fd, size, access=access))
    except BaseException:
        os.close(fd)
        raise


def check_header(header: bytes, file_bytes: int, path: Path, kind: int, mode: int | None) -> tuple[int, int, int, int]:
    """Mode, index, size and server id of a segment; ConfigError if it is not what was expected (SRV-15)."""
    if len(header) < layout.HEADER_BYTES or not header.startswith(layout.MAGIC):
        raise ConfigError(f"{path} is not a segment of a Fairlead store.")
    _, version, found_kind, found_mode, index, size, server_id = struct.unpack_from(layout.HEADER_FORMAT, header)
    if version != layout.LAYOUT_VERSION:
        raise ConfigError(
            f"{path} has layout version {version}, this program understands version {layout.LAYOUT_VERSION}. "
            "It was left untouched: go on with the program that made it, or stop the server and start it afresh."
        )
    if found_kind != kind:
        raise ConfigError(
            f"{path} is a {_name(layout.KIND_NAMES, found_kind)}, not a {_name(layout.KIND_NAMES, kind)}."
        )
    if mode is not None and found_mode != mode:
        raise ConfigError(
            f"{path} is used in {_name(layout.MODE_NAMES, found_mode)} mode, this program runs in "
            f"{_name(layout.MODE_NAMES, mode)} mode (FAIRLEAD_PURE, or no compiled modules); they cannot share a store."
        )
    if size != file_bytes:
        raise ConfigError(f"{path} should have {size} bytes and has {file_bytes}.")
    return found_mode, index, size, server_id


def _name(names: dict[int, str], number: int) -> str:
    return names.get(number, f"unknown ({number})")


def _room(path: Path) -> int:
    try:
        facts = os.statvfs(path)
    except OSError:
        return 0
    return facts.f_bavail * facts.f_frsize


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
