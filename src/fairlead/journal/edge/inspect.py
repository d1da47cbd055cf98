"""Looking into a journal without changing it, also while a server writes it: `fairlead journal check` and `dump`.

Of a journal in use the end is in motion. What is found beyond the last mark there is what is being written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.errors import ConfigError
from fairlead.journal import sidecar
from fairlead.journal.codec import check_export
from fairlead.journal.edge import cutting, identity, segments
from fairlead.journal.edge.opening import newest_checkpoint, of_the_file, survey
from fairlead.journal.edge.segments import Read, Segment
from fairlead.journal.layout import ITEM, ITEM_BYTES, padded, place_of
from fairlead.journal.ranges import Ranges
from fairlead.journal.recovery import Judged


def check(directory: Path) -> Iterator[dict[str, Any]]:
    """Read every byte: findings with `level` "damage", "torn" or "info", the last one a summary."""
    directory = folder_of(directory)
    store_id = store_id_of(directory)
    in_use = is_in_use(directory)
    gone = identity.read_retired(directory)
    if gone is None:
        yield {"level": "damage", "text": "the file 'retired' is not what was written"}
        gone = Ranges()
    found = survey(directory, store_id, gone)
    for finding in found.findings:
        if not finding.offset and finding.text.endswith("missing"):
            yield {"level": finding.what, **finding._asdict()}
    records = 0
    for segment in found.segments:
        try:
            read, judged = read_and_judge(directory, store_id, segment)
        except FileNotFoundError:  # given up meanwhile
            continue
        records += len(judged.records)
        for finding in of_the_file(read, judged):
            if in_use and not segment.sealed and not finding.below_mark:
                continue
            yield {"level": finding.what, **finding._asdict()}
        path = segments.sidecar_of(directory, segment.number)
        if segment.sealed and path.exists() and sidecar.decode(path.read_bytes(), store_id, segment.number) is None:
            yield {
                "level": "info",
                "segment": segment.number,
                "text": "the sidecar is bad; the segment is read instead",
            }
    newest, covers, bad = newest_checkpoint(directory, store_id)
    for finding in bad:
        yield {"level": finding.what, **finding._asdict()}
    text = (
        f"{records} records in {len(found.segments)} segments up to index {found.last}, epoch {found.epoch}; "
        + (f"{newest.name} covers {covers}" if newest else "no checkpoint")
        + ("; the journal is in use" if in_use else "")
    )
    yield {"level": "info", "store": store_id.hex(), "text": text}


def dump(directory: Path, names: dict[int, str] | None = None) -> Iterator[dict[str, Any]]:
    """Every record, in order; `names` gives words to kinds. A file of what a cut has set aside is read as well."""
    if directory.is_file():
        yield from _set_aside(directory, names or {})
        return
    directory = folder_of(directory)
    store_id = store_id_of(directory)
    gone = identity.read_retired(directory) or Ranges()
    for segment in survey(directory, store_id, gone).segments:
        try:
            read, judged = read_and_judge(directory, store_id, segment)
        except FileNotFoundError:
            continue
        for _, offset, size, kind, index, epoch, _ in judged.records:
            yield {
                "index": index,
                "kind": (names or {}).get(kind, str(kind)),
                "epoch": epoch,
                "segment": segment.number,
                "offset": offset,
                "place": place_of(segment.number, offset + ITEM_BYTES),
                "size": size,
                "body": _shown(bytes(read.data[offset + ITEM_BYTES : offset + ITEM_BYTES + min(size, 64)])),
            }


def _shown(body: bytes) -> str:
    return body.decode("ascii", "backslashreplace") if body.isascii() and body[:1] == b"{" else body.hex()


def _set_aside(path: Path, names: dict[int, str]) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    if not data.startswith(cutting.ASIDE_MAGIC):
        raise ConfigError(f"{path} is no file of records that were set aside.")
    view = memoryview(data)[len(cutting.ASIDE_MAGIC) :]
    try:
        check_export(view, 0)
    except ValueError as error:
        raise ConfigError(f"{path} is not what was written: {error}.") from error
    at = 0
    while at < len(view):
        _, kind, size, _, _, index, epoch, _ = ITEM.unpack_from(view, at)
        body = bytes(view[at + ITEM_BYTES : at + ITEM_BYTES + min(size, 64)])
        yield {
            "index": index,
            "kind": names.get(kind, str(kind)),
            "epoch": epoch,
            "size": size,
            "body": _shown(body),
        }
        at += ITEM_BYTES + padded(size)


def read_and_judge(directory: Path, store_id: bytes, segment: Segment) -> tuple[Read, Judged]:
    read = segments.read(directory, segment.number, store_id)
    beyond = segment.last + 1 if segment.sealed else 0
    return read, segments.judged(read, expected=segment.first, beyond=beyond)


def folder_of(directory: Path) -> Path:
    """The journal itself, or the one in a message manager's folder."""
    for candidate in (directory, directory / "journal"):
        if candidate.is_dir() and segments.numbers_in(candidate):
            return candidate
    raise ConfigError(f"There is no journal in {directory}.")


def is_in_use(directory: Path) -> bool:
    try:
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def store_id_of(directory: Path) -> bytes:
    store_id = identity.read_identity(directory)
    if store_id is None:
        store_id = identity.id_from_segments(directory)
    if store_id is None:
        raise ConfigError(f"{directory}: neither the file 'store' nor any segment says which store this is.")
    return store_id
