"""Small files beside the segments: who this store is, which segments were given up, and who has the journal open."""

from __future__ import annotations

import fcntl
import json
import os
import struct
from pathlib import Path

from fairlead.journal.crc import crc32c
from fairlead.journal.edge import segments
from fairlead.journal.edge.files import Files
from fairlead.journal.faults import JournalRefused
from fairlead.journal.layout import FILE_HEAD, FORMAT_VERSION, STORE_ID_BYTES, read_file_head
from fairlead.journal.ranges import Ranges

IDENTITY = struct.Struct("<8sHHI20sI")
"""magic, format version, zero, zero, store id, CRC32C of all before it."""
IDENTITY_BYTES = IDENTITY.size
MAGIC = b"FLStorId"


def write_identity(files: Files, directory: Path, store_id: bytes) -> None:
    files.put(directory / "store", identity_bytes(store_id))


def identity_bytes(store_id: bytes) -> bytes:
    head = IDENTITY.pack(MAGIC, FORMAT_VERSION, 0, 0, store_id, 0)[:-4]
    return head + struct.pack("<I", crc32c(head))


def read_identity(directory: Path) -> bytes | None:
    """The store's id; None if there is none, or none that can be believed."""
    try:
        data = (directory / "store").read_bytes()
    except OSError:
        return None
    if len(data) != IDENTITY.size:
        return None
    magic, version, _, _, store_id, checksum = IDENTITY.unpack(data)
    if magic != MAGIC or checksum != crc32c(data[:-4]):
        return None
    if version != FORMAT_VERSION:
        raise JournalRefused(
            f"the journal in {directory} has format version {version}, this software reads version {FORMAT_VERSION}: "
            "start it with the release that wrote it, or see docs/journal.md, 'Upgrading'"
        )
    assert len(store_id) == STORE_ID_BYTES
    return bytes(store_id)


def id_from_segments(directory: Path) -> bytes | None:
    """The store's id, from the first segment that has one."""
    for number in segments.numbers_in(directory):
        with open(segments.path_of(directory, number), "rb") as file:
            head = read_file_head(file.read(FILE_HEAD.size))
        if head is not None:
            return head[0]
    return None


def write_retired(files: Files, directory: Path, gone: Ranges) -> None:
    """Say which segments are needed no more, before their files go."""
    files.put(directory / "retired", retired_bytes(gone))


def retired_bytes(gone: Ranges) -> bytes:
    text = json.dumps([list(one) for one in gone]).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def read_retired(directory: Path) -> Ranges | None:
    """Numbers of segments that were given up; None: it is not what was written."""
    gone = Ranges()
    try:
        data = (directory / "retired").read_bytes()
    except FileNotFoundError:
        return gone
    except OSError:
        return None
    text = data[9:-1]
    if data != b"%08x %s\n" % (crc32c(text), text):
        return None
    for first, beyond in json.loads(text):
        gone.add(first, beyond)
    return gone


def lock(directory: Path) -> int:
    """Keep every other process out for as long as the descriptor is open."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise JournalRefused(f"the journal in {directory} is in use by process {holder or 'unknown'}") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
