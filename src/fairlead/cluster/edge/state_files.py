"""The files of a whole state: read on the host, written on the target, both in threads, a piece at a time.

`StateRoad` joins the two machines of `replication/state_transfer.py` with the bus, the journal and a member's home. The
loop only passes pieces on. The host's files are pinned for as long as somebody takes them over; what came is read as a
start would read it before anybody is told that it is complete.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.bus.port import Bus
from fairlead.cluster.edge.member_home import MemberHome
from fairlead.cluster.replication import state_transfer as machine
from fairlead.cluster.replication.state_transfer import Begin, Finish, Host, Prepare, Read, Release, StateFile, Target
from fairlead.errors import FairleadError, RemoteProtocolError
from fairlead.journal.edge.contents import State
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.options import Options
from fairlead.journal.edge.room import StatePart

MANIFEST: Final = "manifest.json"
HASH_BYTES: Final = 1 << 20

Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Run a job in a thread, then the second in the loop with its result or the exception."""


@dataclass(slots=True)
class Held:
    """A state that somebody takes over."""

    journal: Journal
    state: State
    parts: list[StatePart]
    jobs: int = 0  # threads that read in it
    over: bool = False

    def ended(self) -> None:
        """One of the threads has; the last one lets the files go."""
        self.jobs -= 1
        self.let_go()

    def let_go(self) -> None:
        if self.over and not self.jobs:
            self.journal.release(self.state)


class StateRoad:
    """One member's end of port `state:GROUP`; turned by the loop with `tick`."""

    def __init__(
        self,
        bus: Bus,
        group: str,
        work: Work,
        home: MemberHome,
        journal: Callable[[], Journal | None],
        options: Options,
        clock_s: Callable[[], float],
        number: int,
    ) -> None:
        """`number`: higher than any of an earlier life of this node, so that late answers are known as such."""
        self.host = Host()
        self.target = Target(number)
        self.strange = 0  # messages that were none
        self.error = ""  # why what came was not taken
        self._bus, self._port, self._work, self._home = bus, f"state:{group}", work, home
        self._journal, self._options, self._clock_s = journal, options, clock_s
        self._held: dict[tuple[str, int], Held] = {}
        self._writing: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._is_writing = False
        self._checking = False
        self._done: Callable[[int, int], None] = lambda last, epoch: None
        bus.listen(self._port, self._on_message)

    # --- What the member asks -------------------------------------------------------------------------------------
    def on_epoch(self, epoch: int) -> None:
        """The epoch of the primary we follow, or ours: of it we can give our state. 0: we are not in sync."""
        self.host.on_epoch(epoch)
        self._carry_out()

    def take_over(self, hosts: list[str], epoch: int, done: Callable[[int, int], None]) -> None:
        """Bring a whole state to `incoming/`; `done(last, its epoch)` when it is complete and was read through.

        May be called again when hosts or epoch change; what is there already is kept where it still fits.
        """
        self._done = done
        if self._checking and epoch == self.target.epoch:
            return
        self.target.start(hosts, epoch, self._clock_s())
        self._carry_out()

    def stop(self) -> None:
        """Nothing is needed any more; what came so far stays for the next time."""
        self.target.stop()
        self._carry_out()

    def lost(self, node: str) -> None:
        """The node is gone, or order from and to it begins anew."""
        self.host.lost(node)
        self.target.lost(node, self._clock_s())
        self._carry_out()

    def tick(self) -> None:
        now_s = self._clock_s()
        self.host.tick(now_s)
        self.target.tick(now_s)
        self._carry_out()

    def close(self) -> None:
        self._bus.deaf(self._port)
        for held in self._held.values():
            held.over = True
            held.let_go()
        self._held.clear()

    def facts(self) -> dict[str, Any]:
        """For status: how far it has come."""
        target = self.target
        return {
            "giving_to": len(self.host),
            "taking": target.is_active and not target.complete,
            "host": target.host,
            "received_bytes": target.received_bytes,
            "total_bytes": target.total_bytes,
            "trouble": self.error or target.why,
        }

    # --- The bus --------------------------------------------------------------------------------------------------
    def _on_message(self, sender: str, data: memoryview) -> None:
        try:
            message, piece = machine.decode(data)
        except RemoteProtocolError:
            self.strange += 1
            return
        now_s = self._clock_s()
        if isinstance(message, machine.StateAsk | machine.StateWant | machine.StateDone):
            self.host.on_message(sender, message, now_s)
        else:
            self.target.on_message(sender, message, bytes(piece), now_s)
        self._carry_out()

    def _carry_out(self) -> None:
        host, target = self.host, self.target
        while host.jobs or target.jobs:
            to_host, host.jobs = host.jobs, []
            for job in to_host:
                self._give(job)
            to_target, target.jobs = target.jobs, []
            for one in to_target:
                self._take(one)
        for side in (host, target):
            out, side.out = side.out, []
            for node, message, piece in out:
                if not self._bus.send(node, self._port, machine.encode(message), piece):
                    host.lost(node)
                    target.lost(node, self._clock_s())
        if target.complete and target.is_active and not self._checking:
            self._check()

    # --- Giving ---------------------------------------------------------------------------------------------------
    def _give(self, job: Prepare | Read | Release) -> None:
        key = job.target, job.number
        if isinstance(job, Release):
            held = self._held.pop(key, None)
            if held is not None:
                held.over = True
                held.let_go()
        elif isinstance(job, Prepare):
            self._prepare(job)
        else:
            held = self._held[key]
            part = held.parts[job.file]
            held.jobs += 1

            def loaded(result: Any) -> None:
                held.ended()
                self.host.loaded(job, None if isinstance(result, Exception) else result)
                self._carry_out()

            self._work(lambda: read_part(part, job.offset, job.size), loaded)

    def _prepare(self, job: Prepare) -> None:
        journal = self._journal()
        if journal is None:
            self.host.prepared(job.target, job.number, 0, 0, None, "this member has no journal")
            return
        state = journal.state()
        held = self._held[job.target, job.number] = Held(journal, state, list(state.parts), jobs=1)
        large = self._home.path / "large"

        def list_files() -> tuple[StateFile, ...]:
            held.parts += side_parts(large)
            return tuple(StateFile(one.name, one.size, one.full, digest(one)) for one in held.parts)

        def listed(result: Any) -> None:
            held.ended()
            files, why = (None, str(result)) if isinstance(result, Exception) else (result, "")
            self.host.prepared(job.target, job.number, state.last, state.epoch, files, why)
            self._carry_out()

        self._work(list_files, listed)

    # --- Taking ---------------------------------------------------------------------------------------------------
    def _take(self, job: Begin | machine.Write | Finish) -> None:
        target, number = self.target, job.number
        if number != target.number or target.offer is None:
            return  # of a state that is no longer wanted
        if isinstance(job, Begin):
            self.error = ""
            self._queue(
                lambda: begin_files(self._home, job.files),
                lambda have, why: target.begun(number, have, self._clock_s(), why),
            )
            return
        folder, file = self._home.incoming, target.offer.files[job.file]
        if isinstance(job, Finish):
            self._queue(
                lambda: finish_file(folder, file, gone=job.gone),
                lambda good, why: target.finished(number, bool(good), why, self._clock_s()),
            )
        else:
            self._queue(
                lambda: write_piece(folder, file, job.offset, job.data),
                lambda beyond, why: target.written(number, beyond or 0, why, self._clock_s()),
            )

    def _queue(self, job: Callable[[], Any], then: Callable[[Any, str], None]) -> None:
        """Files are written one job after the other, so that each finds what the one before has left."""

        def done(result: Any) -> None:
            self._is_writing = False
            if isinstance(result, Exception):
                self.error = result.text if isinstance(result, FairleadError) else str(result)
                then(None, self.error)
            else:
                then(result, "")
            self._next_write()
            self._carry_out()

        self._writing.append((job, done))
        self._next_write()

    def _next_write(self) -> None:
        if self._writing and not self._is_writing:
            self._is_writing = True
            self._work(*self._writing.popleft())

    def _check(self) -> None:
        """All files are here: read them as a start would, then tell."""
        self._checking = True
        number = self.target.number

        def checked(result: tuple[int, int] | None, why: str) -> None:
            self._checking = False
            if number != self.target.number:
                return  # meanwhile another state is wanted
            self.target.stop()
            if result is None:
                self._home.drop_incoming()
                self.target.why = why
                self.target.start(self.target.hosts, self.target.epoch, self._clock_s())
            else:
                self._done(*result)

        self._queue(lambda: self._home.complete_incoming(self._options), checked)


# --- What the threads do ----------------------------------------------------------------------------------------------


def side_parts(large: Path) -> list[StatePart]:
    """The side files there are; one that grows is taken as far as it is."""
    if not large.is_dir():
        return []
    parts = []
    for entry in sorted(os.scandir(large), key=lambda one: one.name):
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            continue
        parts.append(StatePart(f"large/{entry.name}", Path(entry.path), size, size))
    return parts


def read_part(part: StatePart, offset: int, size: int) -> bytes:
    """Bytes of it; none: the file is gone."""
    if isinstance(part.source, bytes):
        return part.source[offset : offset + size]
    if isinstance(part.source, int):
        return os.pread(part.source, size, offset)
    try:
        fd = os.open(part.source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if part.name.startswith("large/"):
            return b""
        raise
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def digest(part: StatePart) -> bytes:
    """SHA-256 of what will be sent."""
    found, offset = hashlib.sha256(), 0
    while offset < part.size:
        piece = read_part(part, offset, min(HASH_BYTES, part.size - offset))
        if not piece:
            break
        found.update(piece)
        offset += len(piece)
    return found.digest()


def begin_files(home: MemberHome, files: tuple[StateFile, ...]) -> list[int]:
    """Keep what is there of these very files, remove all else; how many bytes there are of each."""
    folder = home.begin_incoming()
    try:
        known = {one.name: one for one in msgspec.json.decode((folder / MANIFEST).read_bytes(), type=list[StateFile])}
    except (OSError, msgspec.MsgspecError):
        known = {}
    wanted = {one.name for one in files if known.get(one.name) == one}
    for part in ("journal", "large"):
        for entry in list(os.scandir(folder / part)):
            if f"{part}/{entry.name}" not in wanted:
                Path(entry.path).unlink()
    Files().put(folder / MANIFEST, msgspec.json.encode(files))
    return [_length(folder / one.name, one.size) for one in files]


def _length(path: Path, most: int) -> int:
    try:
        return min(path.stat().st_size, most)
    except FileNotFoundError:
        return 0


def write_piece(folder: Path, file: StateFile, offset: int, data: bytes) -> int:
    """How far the file goes now."""
    fd = os.open(folder / file.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        Files().write_all(fd, data, offset)
    finally:
        os.close(fd)
    return offset + len(data)


def finish_file(folder: Path, file: StateFile, *, gone: bool) -> bool:
    """On stable storage with it, if it is what was offered."""
    path = folder / file.name
    if gone:
        path.unlink(missing_ok=True)
        return True
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        found, offset = hashlib.sha256(), 0
        while offset < file.size and (piece := os.pread(fd, min(HASH_BYTES, file.size - offset), offset)):
            found.update(piece)
            offset += len(piece)
        if offset != file.size or found.digest() != file.sha256:
            os.ftruncate(fd, 0)
            return False
        if file.full > file.size:
            os.ftruncate(fd, file.size)
            os.posix_fallocate(fd, 0, file.full)
        os.fsync(fd)
    finally:
        os.close(fd)
    Files().sync_directory(path.parent)
    return True
