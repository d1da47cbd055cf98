"""The data directory as the supervisor finds it: whose it is, where the run files are, what a predecessor left there.

`DATA/lock` is held with flock for as long as a supervisor lives. `DATA/run` has the two sockets and two notes for a
successor: `server.json` (which store) and `children.json` (which processes). A note per port in a per-user directory
tells local tools which data directory is behind a URL.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from fairlead.errors import ConfigError
from fairlead.store.edge.segment import make_directory

LOCK_FD_VARIABLE: Final = "FAIRLEAD_SUPERVISOR_LOCK_FD"  # from one program to the next over a re-exec
SOCKET_PATH_MAX: Final = 100


class AlreadyServed(ConfigError):
    """Another supervisor has the data directory."""


class ServerNote(msgspec.Struct):
    """What a successor must know of the store."""

    store: str
    server_id: int
    managers: int
    mode: int
    listen: list[str]
    started_ns: int


class ChildNote(msgspec.Struct):
    """A process we started, told apart from a later one with the same number by its start time."""

    role: str
    index: int
    pid: int
    start_time: int
    generation: int
    python: str


class PortNote(msgspec.Struct):
    """Which server has a port on this host."""

    data: str
    run: str
    pid: int


def lock(data: Path) -> int:
    """Take the data directory, or say who has it. The descriptor is the lock."""
    was_open = data.exists() and bool(data.stat().st_mode & 0o022)
    make_directory(data)
    if was_open:
        _refuse_strangers(data)
    inherited = os.environ.pop(LOCK_FD_VARIABLE, "")
    if inherited:
        fd = int(inherited)
        os.set_inheritable(fd, False)
        return fd
    fd = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise AlreadyServed(f"The data directory {data} is already served by process {owner}.") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _refuse_strangers(data: Path) -> None:
    """Others could write here until now: what they left (a users file, a link) must not become ours."""
    with os.scandir(data) as entries:
        for entry in entries:
            if entry.is_symlink() or entry.stat(follow_symlinks=False).st_uid != os.getuid():
                raise ConfigError(
                    f"Others could write to {data}, and {entry.name!a} in it is a link or another user's. Remove "
                    "it, or choose another data directory."
                )


def listen_unix(path: Path, kind: socket.SocketKind) -> socket.socket:
    """A listening unix socket for our own account only, replacing what is at that path."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        with short_path(path) as short:
            sock.bind(short)
    finally:
        os.umask(mask)
    sock.listen(64)
    return sock


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket whose path may be longer than the 107 bytes a socket address has room for."""
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def write_note(path: Path, note: object) -> None:
    """Whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(note)))
    fresh.replace(path)


def read_server_note(run: Path) -> ServerNote | None:
    try:
        return msgspec.json.decode((run / "server.json").read_bytes(), type=ServerNote)
    except (OSError, msgspec.DecodeError):
        return None


def read_children_note(run: Path) -> list[ChildNote]:
    try:
        return msgspec.json.decode((run / "children.json").read_bytes(), type=list[ChildNote])
    except (OSError, msgspec.DecodeError):
        return []


def living(notes: list[ChildNote]) -> list[ChildNote]:
    """Those of the children that are still the processes we once started."""
    return [note for note in notes if process_start_time(note.pid) == note.start_time]


def process_start_time(pid: int) -> int | None:
    """When a process began, in clock ticks after boot; None if there is none, or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


# --- Notes by port ----------------------------------------------------------------------------------------------
def ports_directory() -> Path:
    """Where local tools look up ports: per user, lost at reboot."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "fairlead"
    return Path(tempfile.gettempdir()) / f"fairlead-{os.getuid()}"


def write_port_note(port: int, note: PortNote) -> Path | None:
    """None when there is no place for it; then `--data` is the way to name this server."""
    try:
        make_directory(ports_directory())
        path = ports_directory() / f"{port}.json"
        write_note(path, note)
    except (OSError, ConfigError):
        return None
    return path


def read_port_note(port: int) -> PortNote | None:
    path = ports_directory() / f"{port}.json"
    try:
        if path.stat().st_uid != os.getuid():
            return None
        return msgspec.json.decode(path.read_bytes(), type=PortNote)
    except (OSError, msgspec.DecodeError):
        return None
