"""Asking a running server on this host: one JSON line per question, one or more lines back, the last with `ok`.

The server's side is `AdminServer`, part of the supervisor; `ask` is what `fairlead status`, `update` and the tests
use. Which server is meant is said by its data directory, or by a local URL whose port has a note (`rundir`).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.client import target
from fairlead.errors import ConfigError, Unavailable
from fairlead.runtime.loop import Loop
from fairlead.runtime.rundir import listen_unix, read_port_note, short_path

SOCKET_NAME: Final = "admin.sock"
DEFAULT_PORT: Final = 7400
QUESTION_BYTES_MAX: Final = 65536
_LOCAL: Final = ("127.0.0.1", "localhost", "::1", "")


# --- The tools' side --------------------------------------------------------------------------------------------
def run_directory(*, data: str | None = None, server: str | None = None) -> Path:
    """Where the server meant has its sockets."""
    if data:
        return Path(data).expanduser().resolve() / "run"
    addresses = target.parse(server or f"fairlead://127.0.0.1:{DEFAULT_PORT}").addresses
    ports = [address.port for address in addresses if address.host in _LOCAL and not address.path]
    if not ports:
        raise ConfigError(f"{server} is not on this host; ask there, or name the data directory with --data.")
    notes = filter(None, map(read_port_note, ports))  # of a cluster's URL: the first node that is here
    if (note := next(notes, None)) is None:
        known = " or ".join(map(str, ports))
        raise Unavailable(
            f"No server of yours is known on port {known} of this host. `fairlead serve` starts one; "
            "one that runs is named by --data DIR or --server URL."
        )
    return Path(note.run)


def ask(run: Path, command: str, *, timeout_s: float = 30.0, **facts: Any) -> Iterator[dict[str, Any]]:
    """Put a question; yields what comes back, the answer last. Unavailable if nobody is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        try:
            with short_path(run / SOCKET_NAME) as path:
                sock.connect(path)
        except OSError as error:
            raise Unavailable(f"No server answers at {run.parent}: {error.strerror}.") from None
        sock.sendall(msgspec.json.encode({"command": command, **facts}) + b"\n")
        with sock.makefile("rb") as lines:
            try:
                for line in lines:
                    answer: dict[str, Any] = msgspec.json.decode(line)
                    yield answer
                    if "ok" in answer:
                        return
            except TimeoutError:
                raise Unavailable(f"The server did not answer within {timeout_s:g} s.") from None
        raise Unavailable("The server ended before it had answered.")


def answer_of(run: Path, command: str, *, timeout_s: float = 30.0, **facts: Any) -> dict[str, Any]:
    """Only the answer; Unavailable with the server's sentence if it is a no."""
    *_, answer = ask(run, command, timeout_s=timeout_s, **facts)
    if not answer["ok"]:
        raise Unavailable(str(answer.get("error", "The server said no.")))
    return answer


# --- The supervisor's side --------------------------------------------------------------------------------------
class Asker:
    """Somebody connected to the admin socket."""

    def __init__(self, loop: Loop, sock: socket.socket, on_question: Callable[[Asker, dict[str, Any]], None]) -> None:
        self._loop = loop
        self._sock = sock
        self._on_question = on_question
        self._inward = b""
        self._outward = b""
        self._over = False
        loop.watch(sock.fileno(), self._on_event)

    def tell(self, **facts: Any) -> None:
        """Something on the way."""
        if not self._over:
            self._outward += msgspec.json.encode(facts) + b"\n"
            self._flush()

    def answer(self, **facts: Any) -> None:
        """The answer, then the end."""
        self.tell(ok=True, **facts)

    def refuse(self, text: str) -> None:
        self.tell(ok=False, error=text)

    def _on_event(self) -> None:
        if self._outward:
            self._flush()
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._inward += data
        while not self._over and b"\n" in self._inward:
            line, _, self._inward = self._inward.partition(b"\n")
            try:
                question = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError as error:
                self.refuse(f"Not a question: {error}.")
                continue
            self._on_question(self, question)
        if len(self._inward) > QUESTION_BYTES_MAX:
            self.close()

    def _flush(self) -> None:
        try:
            while self._outward:
                sent = self._sock.send(self._outward)
                self._outward = self._outward[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._loop.watch(self._sock.fileno(), self._on_event, write=bool(self._outward))

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._loop.forget(self._sock.fileno())
            self._sock.close()


class AdminServer:
    """The listening end."""

    def __init__(self, loop: Loop, run: Path, on_question: Callable[[Asker, dict[str, Any]], None]) -> None:
        self._loop = loop
        self._on_question = on_question
        self._sock = listen_unix(run / SOCKET_NAME, socket.SOCK_STREAM)
        loop.watch(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._sock.accept()
                sock.setblocking(False)
                Asker(self._loop, sock, self._on_question)

    def close(self) -> None:
        self._loop.forget(self._sock.fileno())
        self._sock.close()
