"""Real directory servers on this host, for tests: one alone, or several that keep the same directory.

with DirectorySet(servers=3, **{"directory.lease_s": 3}) as directory:
    ...  # directory.url is where brokers and clients ask
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fairlead.cluster.configuration.types import DIRECTORY_GROUP
from fairlead.errors import Unavailable
from fairlead.runtime.admin import answer_of
from fairlead.runtime.directory_server.files import FRONT, urls_of
from fairlead.runtime.directory_server.ports import free_pairs
from fairlead.runtime.local_cluster import descendants, free_ports
from fairlead.store.edge.segment import remove_directory, tmpfs_directory
from fairlead.testing.ready import START_S, await_ready

STOP_S = 45.0


class DirectorySet:
    """`url` names all of them, `urls` each alone; d1, d2 … are started, stopped, killed and cut off by name.

    `settings` are those of the configuration file, for every server: `DirectorySet(**{"security.users": path})`. Ports
    and data stay when a server is started again.
    """

    def __init__(
        self,
        servers: int = 1,
        *,
        directory: Path | None = None,
        managers: int = 1,
        python: str = sys.executable,
        **settings: Any,
    ) -> None:
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="fairlead-directory-")
        self.home = directory or Path(self._temporary.name if self._temporary else "")
        self.names = [f"d{number}" for number in range(1, servers + 1)]
        self._ports = dict(zip(self.names, free_ports(servers), strict=True))
        self._buses = dict(zip(self.names, free_pairs(servers), strict=True)) if servers > 1 else {}
        self._arguments = ["--managers", str(managers)]
        for name, value in settings.items():
            self._arguments += ["--set", f"{name}={value}"]
        self._python = python
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # -- where they are

    @property
    def url(self) -> str:
        """All of them: `fairlead+directory://127.0.0.1:p1,127.0.0.1:p2`."""
        return urls_of({name: f"127.0.0.1:{port}" for name, port in self._ports.items()})

    @property
    def urls(self) -> list[str]:
        """Each alone, as an ordinary server."""
        return [self.url_of(name) for name in self.names]

    def url_of(self, name: str) -> str:
        return f"fairlead://127.0.0.1:{self._ports[name]}"

    def data(self, name: str) -> Path:
        """Everything a server keeps."""
        return self.home / name

    def run(self, name: str) -> Path:
        """Where its supervisor is asked."""
        return (self.data(name) / "front" / "data" if self._buses else self.data(name)).resolve() / "run"

    # -- life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            for name in self.names:
                remove_directory(tmpfs_directory(self.run(name).parent))  # what a killed server left
            if self._temporary is not None:
                self._temporary.cleanup()

    def start(self, *names: str, wait: bool = True, rejoin: bool = False) -> Self:
        """Start these, or whatever does not run; then wait until those that run can change the directory.

        `rejoin`: their data directories were lost.
        """
        wanted = names or [name for name in self.names if name not in self._processes]
        ready = [self._start(name, rejoin) for name in wanted]
        for name, fd in zip(wanted, ready, strict=True):
            try:
                await_ready(fd, name, partial(self.output, name))
            finally:
                os.close(fd)
        if wait and self._buses:
            self.wait_serving()
        return self

    def _start(self, name: str, rejoin: bool) -> int:
        assert name not in self._processes, f"{name} runs already"
        self.data(name).mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        words = ["directory", "serve", "--name", name, "--listen", f"127.0.0.1:{self._ports[name]}"]
        words += ["--data", str(self.data(name)), "--ready-fd", str(writing), *self._arguments]
        if self._buses:
            peers = ",".join(f"{one}=127.0.0.1:{port}" for one, port in self._buses.items())
            words += ["--peers", peers, "--faults", *(["--rejoin"] if rejoin else [])]
        with open(self.data(name) / "serve.out", "ab") as output:
            self._processes[name] = subprocess.Popen(
                [self._python, "-m", "fairlead", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
            )
        os.close(writing)
        return reading

    def stop(self, *names: str) -> None:
        """These, or all that run, in order. RuntimeError if one did not end by itself."""
        wanted = [name for name in names or self.names if name in self._processes]
        stopped = {name: self._processes.pop(name) for name in wanted}
        families = {name: descendants(process.pid) for name, process in stopped.items()}
        for process in stopped.values():
            process.terminate()
        late = []
        for name, process in stopped.items():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                late.append(name)
                _kill(process.pid, *families[name])
                process.wait()
        if late:
            raise RuntimeError(f"{', '.join(late)} did not stop in time:\n{self.output(late[0])}")

    # -- hurting them

    def kill(self, *names: str) -> None:
        """SIGKILL for every process of these servers, or of all, at once: as if their hosts had lost power."""
        wanted = [name for name in names or self.names if name in self._processes]
        pids = [pid for name in wanted for pid in self.pids(name)]
        _signal(signal.SIGSTOP, *pids)  # nobody notices the end of another before its own
        _kill(*pids)
        for name in wanted:
            self._processes.pop(name).wait()
        _await_gone(pids)

    def pause(self, *names: str) -> None:
        """SIGSTOP for all their processes: alive, and saying nothing. `resume` ends it."""
        for name in names or self.names:
            for pid in self.pids(name):
                os.kill(pid, signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        for name in names or self.names:
            for pid in reversed(self.pids(name)):
                os.kill(pid, signal.SIGCONT)

    def cut(self, name: str) -> None:
        """Nothing goes between this server and the others; clients still reach all of them."""
        for one in [*(other for other in self.names if other != name), name]:
            for mine in (name, name + FRONT):
                for theirs in (node for other in self.names if other != name for node in (other, other + FRONT)):
                    self._fault(one, fault="cut", **{"from": mine, "to": theirs})
                    self._fault(one, fault="cut", **{"from": theirs, "to": mine})

    def heal(self) -> None:
        """All reach each other again."""
        for name in self.names:
            self._fault(name, fault="heal")

    def _fault(self, name: str, **words: Any) -> None:
        if name in self._processes:
            for node, answer in self._ask(name, {"do": "fault", **words}, [name, name + FRONT])["nodes"].items():
                assert answer.get("ok", True), f"{node}: {answer}"

    # -- looking at them

    def pids(self, name: str) -> list[int]:
        """All processes of a server, its first one first."""
        process = self._processes[name]
        return [process.pid, *descendants(process.pid)]

    def output(self, name: str) -> str:
        """The end of what it has printed."""
        files = (self.data(name) / file for file in ("serve.out", "member.out", "front.out"))
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in files if file.exists())

    def primary(self) -> str:
        """The server whose member leads; empty if nobody does, and the only one there is."""
        if not self._buses:
            return self.names[0]
        for name in self.names:
            for group in self._front(name).get("links", ()):
                if group["up"]:
                    return str(group["node"])
        return ""

    def facts(self) -> dict[str, Any]:
        """What the member that leads says about the group: `set` (copies that are in sync), `votes` and more."""
        leads = self.primary()
        try:
            status = self._ask(leads, {"do": "status"}, [leads])["nodes"].get(leads, {}).get("status", {})
        except (Unavailable, OSError):
            return {}
        found: dict[str, Any] = status.get("groups", {}).get(DIRECTORY_GROUP, {})
        return found

    def wait_serving(self, names: Iterable[str] = (), timeout_s: float = START_S) -> None:
        """Until these servers, or all that run, reach a member that may change the directory."""
        wanted = list(names) or list(self._processes)

        def serving() -> bool:
            links = [self._front(name).get("links", ()) for name in wanted]
            return all(its and all(group["up"] for group in its) for its in links)

        self.wait_until(serving, f"{', '.join(wanted)} serve", timeout_s)

    def wait_until(self, condition: Callable[[], bool], what: str = "it", timeout_s: float = START_S) -> None:
        until_s = time.monotonic() + timeout_s
        while not condition():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} has ended:\n{self.output(name)}"
            assert time.monotonic() < until_s, f"not in {timeout_s:g} s: {what}\n{self.output(self.names[0])}"
            time.sleep(0.05)

    def _front(self, name: str) -> dict[str, Any]:
        """What the client manager's node of a server says about itself; nothing while it does not answer."""
        if name not in self._processes:
            return {}
        node = name + FRONT
        try:
            answer = self._ask(name, {"do": "status"}, [node])["nodes"].get(node, {})
        except Unavailable:
            return {}
        found: dict[str, Any] = answer.get("status", {})
        return found

    def _ask(self, name: str, question: dict[str, Any], nodes: list[str]) -> dict[str, Any]:
        answer = answer_of(self.run(name), "admin", name="cluster", args={**question, "nodes": nodes}, timeout_s=20.0)
        found: dict[str, Any] = answer["result"]
        return found


def _kill(*pids: int) -> None:
    _signal(signal.SIGKILL, *pids)


def _signal(number: int, *pids: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def _await_gone(pids: list[int], timeout_s: float = 10.0) -> None:
    """Until the kernel has let go of what they held: ports, locks."""
    until_s = time.monotonic() + timeout_s
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < until_s:
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"
