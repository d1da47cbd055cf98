"""`fairlead serve`: makes store and sockets, starts the processes, watches and replaces them, and never touches
traffic.

A thin edge over small parts: `pool` (who is in which post), `restart` and `update` (the rules), `plumbing` (what
outlives the children), `status` (the report). Killed itself, it leaves its children serving; the next supervisor of
the data directory adopts them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from fairlead.errors import ConfigError
from fairlead.runtime import listeners, rundir, storehouse
from fairlead.runtime.admin import AdminServer, Asker
from fairlead.runtime.children import Child, adopt
from fairlead.runtime.config import Config
from fairlead.runtime.control import SOCKET_NAME
from fairlead.runtime.counters import DispatcherCounter, ManagerCounter, MessageManagerCounter, RouterCounter
from fairlead.runtime.expiring import expiry_notes
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.loop import Loop
from fairlead.runtime.moving import Moving
from fairlead.runtime.pauses import Pauses
from fairlead.runtime.plumbing import LINK_NAME, Plumbing
from fairlead.runtime.pool import (
    BESIDE,
    CONSOLE,
    KEEPS_MESSAGES,
    MESSAGE_MANAGER,
    REGISTRAR,
    REPLACED_LIVE,
    STREAMS,
    TUNNELS,
    Pool,
    Post,
)
from fairlead.runtime.questions import Questions
from fairlead.runtime.replacing import Replacing
from fairlead.runtime.restarting import Restarting
from fairlead.runtime.settings import Console
from fairlead.runtime.status import Component, Status, UpdateRecord, look
from fairlead.runtime.tunnelling import STATUS_NAME, Tunnelling
from fairlead.runtime.usage import usage_of
from fairlead.runtime.users_watch import UsersWatch
from fairlead.runtime.version import VERSION
from fairlead.runtime.watch import Watch
from fairlead.security.throttling import is_local
from fairlead.store import layout
from fairlead.store.census import census
from fairlead.store.edge import segment
from fairlead.store.fill import positions
from fairlead.store.memory import MODE

ADOPTION_S: Final = 2.0
WATCH_S: Final = 0.5
CHANGES_MAX: Final = 50  # of one change of the users file, in the event log
STOP_S: Final = 5.0
UPDATES_KEPT: Final = 100
STOPPED_LAST: Final = (*TUNNELS, *KEEPS_MESSAGES, "router")  # after those who speak with clients, in this order
EXIT_OK, EXIT_HALTED, EXIT_CONFIG = 0, 1, 2


def serve(config: Config, *, ready_fd: int | None = None, out: TextIO | None = None) -> int:
    """Serve until told to stop; returns the exit status. Errors of the operator are one sentence on standard error."""
    out = out or sys.stdout
    data = Path(config.server.data).expanduser().resolve()
    if rundir.LOCK_FD_VARIABLE in os.environ:
        ready_fd = None  # a re-exec has the same arguments, but that descriptor was used up long ago
    try:
        lock_fd = rundir.lock(data)
    except (ConfigError, OSError) as error:
        print(f"fairlead: {error}", file=sys.stderr)
        return EXIT_CONFIG
    log_path = Path(config.log.file).expanduser() if config.log.file else data / "log" / "fairlead.log"
    try:
        supervisor = Supervisor(config, data, lock_fd, Logbook.of(log_path, config.log), ready_fd, out)
        return supervisor.run()
    except (ConfigError, OSError) as error:
        print(f"fairlead: {error}", file=sys.stderr)
        return EXIT_CONFIG
    finally:
        with contextlib.suppress(OSError):
            os.close(lock_fd)


class Supervisor:
    """One running server, seen from above."""

    def __init__(
        self, config: Config, data: Path, lock_fd: int, log: Logbook, ready_fd: int | None, out: TextIO
    ) -> None:
        self._config = config
        self._data = data
        self._run = data / "run"
        self._lock_fd = lock_fd
        self._log = log
        self._ready_fd = ready_fd
        self._out = out
        self._loop = Loop()
        self._users = UsersWatch(config)
        self._exit = EXIT_OK
        self._stage = "starting"  # adopting, serving, stopping, stopping routers
        self._reexec: list[str] | None = None
        self._updates: list[UpdateRecord] = []
        self._pauses = Pauses()
        self._port_notes: list[Path] = []
        self._stop_askers: list[Asker] = []
        self._questions = Questions(self._loop)

    def run(self) -> int:
        segment.make_directory(self._run)
        self._raise_limits()
        left = rundir.living(rundir.read_children_note(self._run))
        note = rundir.read_server_note(self._run)
        if note is not None and not left:
            self._clear_leftover(note)
            note = None
        adopting = note is not None
        self._plumbing = Plumbing(note.managers if note else storehouse.managers_of(self._config))
        if note is None:
            self._plumbing.complete(self._config.server.listen, self._config.server.backlog)
            note = self._make_store()
        self._note = note
        self._store = Path(note.store)
        self._peek = storehouse.Peek(self._store, note.managers)
        self._pool = Pool(
            loop=self._loop,
            log=self._log,
            config=self._users.pinned(self._config),
            run=self._run,
            store=self._store,
            server_id=note.server_id,
            managers=note.managers,
            plumbing=self._plumbing,
            python=sys.executable,
            on_ready=self._on_ready,
            on_halt=self._on_halt,
            on_takeover=self._on_takeover,
            on_answer=self._questions.on_answer,
        )
        frozen_s = self._config.limits.frozen_s
        self._watches = {role: Watch(frozen_s) for role in REPLACED_LIVE}
        self._ring_watches = [Watch(frozen_s) for _ in range(note.managers)]
        self._messages_watch = Watch(2 * frozen_s)
        self._handover_watches = [Watch(frozen_s) for _ in range(note.managers)]
        self._gate = rundir.listen_unix(self._run / SOCKET_NAME, socket.SOCK_SEQPACKET)
        self._loop.watch(self._gate.fileno(), self._on_connect)
        self._loop.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), self._on_signal)
        if adopting:
            self._adopt(left)
            self._plumbing.complete(self._config.server.listen, self._config.server.backlog)
        if self._config.tunnel.enabled:
            self._plumbing.complete_tunnels(self._run)
        self._console_note = self._complete_console()
        self._tunnelling = Tunnelling(self._pool, self._plumbing, self._loop, self._log)
        self._listening = self._plumbing.listening()
        self._pool.urls = [listeners.url(sock) for sock in self._listening]
        self._admin = AdminServer(self._loop, self._run, self._on_question)
        if self._stage == "starting":
            self._stage = "serving"
            self._pool.fill_all()
            self._pool.check_all_ready()
        self._tunnelling.begin()
        self._loop.every(WATCH_S, self._watch)
        self._loop.run()
        return self._end()

    # --- Beginning ------------------------------------------------------------------------------------------------
    def _raise_limits(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
        wanted = self._config.limits.connections_per_manager + 64
        if soft != resource.RLIM_INFINITY and soft < wanted:
            self._log.warning(
                "supervisor",
                f"a process may open only {soft} files, so a manager can hold about {max(0, soft - 64)} connections, "
                f"not {self._config.limits.connections_per_manager}; raise the limit with `ulimit -n {wanted}`",
            )

    def _clear_leftover(self, note: rundir.ServerNote) -> None:
        """A killed server left its store, and nobody lives who could use it: say what is lost, begin afresh."""
        lost = "an unknown number of"
        peek = storehouse.Peek(Path(note.store), note.managers)
        try:
            lost = str(peek.stored(census)[0])
        except (ConfigError, OSError, ValueError, IndexError):
            pass
        finally:
            peek.close()
        self._log.warning(
            "supervisor", f"found the store of a server whose processes are all gone; gave up {lost} messages in it"
        )
        segment.remove_directory(Path(note.store))
        (self._run / "server.json").unlink(missing_ok=True)
        (self._run / "children.json").unlink(missing_ok=True)

    def _make_store(self) -> rundir.ServerNote:
        managers = storehouse.managers_of(self._config)
        if self._config.store.directory:
            place = Path(self._config.store.directory).expanduser().resolve() / segment.tmpfs_directory(self._data).name
        else:
            place = segment.store_directory(self._data, storehouse.bytes_needed(self._config, managers))
        server_id = secrets.randbits(63)
        storehouse.create(
            place, self._config, managers=managers, mode=MODE, server_id=server_id, unix_s=int(time.time())
        )
        note = rundir.ServerNote(str(place), server_id, managers, MODE, self._config.server.listen, time.time_ns())
        rundir.write_note(self._run / "server.json", note)
        (self._run / "updates.json").unlink(missing_ok=True)
        return note

    def _complete_console(self) -> str:
        settings = self._config.console
        if not settings.enabled:
            self._consoles = []
            return ""
        default = "console.listen" not in self._config.origins and settings.listen == Console().listen
        note = self._plumbing.complete_console(settings.listen, self._config.server.backlog, default=default)
        if note:
            self._log.warning("console", note)
        self._consoles = self._plumbing.consoles()
        return note

    def _console_urls(self) -> list[str]:
        secure = bool(self._config.security.tls_certificate)
        return [listeners.url(sock, console_scheme(sock, secure)) for sock in self._consoles]

    def _adopt(self, left: list[rundir.ChildNote]) -> None:
        """Wait for the living to report, with everything they hold; whoever stays silent is killed."""
        if self._note.mode != MODE:
            raise ConfigError(
                f"The running server uses the {layout.MODE_NAMES[self._note.mode]} modules, this program the "
                f"{layout.MODE_NAMES[MODE]} ones; start it with the same (FAIRLEAD_PURE), or end those processes first."
            )
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self._updates = msgspec.json.decode((self._run / "updates.json").read_bytes(), type=list[UpdateRecord])
            for one in self._updates:
                self._pauses.add(one.component, one.outcome, one.pause_ms)
        self._log.info("supervisor", f"adopting {len(left)} processes of the running server")
        storehouse.complete(self._store, mode=MODE, server_id=self._note.server_id)
        wanted = self._config.server.managers
        if wanted and wanted != self._note.managers:
            self._log.warning("supervisor", f"the running server has {self._note.managers} managers and keeps them")
        self._pool.adoptable = {note.pid: note for note in left}
        deadline_s = self._loop.now_s() + ADOPTION_S
        self._loop.call_after(ADOPTION_S, lambda: None)
        while self._pool.adoptable and self._loop.now_s() < deadline_s:
            self._loop.turn()
        for note in self._pool.adoptable.values():
            child = adopt(note)
            if child is not None:
                self._log.warning(child.name, "does not answer and is replaced", pid=child.pid)
                child.kill()
                select.select([child.pidfd], [], [], STOP_S)  # its successor gets the rings only after its end
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)
                child.close()
        self._pool.adoptable = {}

    def _on_connect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._gate.accept()
                self._pool.on_connect(sock)

    def _on_ready(self) -> None:
        urls = [listeners.url(sock) for sock in self._listening]
        for sock in self._listening:
            port = listeners.port(sock)
            if port is not None:
                note = rundir.PortNote(str(self._data), str(self._run), os.getpid())
                if (path := rundir.write_port_note(port, note)) is not None:
                    self._port_notes.append(path)
        text = (
            f"Fairlead {VERSION} is ready on {', '.join(urls)} ({self._note.managers} managers, data in {self._data})"
        )
        self._log.info("supervisor", text, pid=os.getpid())
        with contextlib.suppress(OSError, ValueError):
            server = "" if urls[0] == "fairlead://127.0.0.1:7400" else f" --server {urls[0]}"
            print(text, file=self._out)
            if self._consoles:
                print(f"Look at it in a browser:     {self._console_urls()[0]}", file=self._out)
            print(f"Listen in another terminal:  fairlead sub 'demo.>'{server}", file=self._out)
            print(f"Say something in a third:    fairlead pub demo.hello world{server}", file=self._out, flush=True)
        if self._ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._ready_fd, f"READY {urls[0]}\n".encode())
                os.close(self._ready_fd)
            self._ready_fd = None

    # --- Watching -------------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Who has work and makes no progress for `frozen_s` is killed, and replaced as after any death."""
        if self._stage != "serving":
            return
        self._log.turn_over()
        if self._users.changed():
            self._reload()
        self._reap_strangers()
        now_s = self._loop.now_s()
        managers = range(self._note.managers)
        ups = [positions(self._peek.up(i)) for i in managers]
        work = {
            "router": any(head != tail for head, tail in ups),
            "dispatcher": any(_readable(sock) for sock in self._listening),
        }
        progress = {
            "router": self._peek.counters("router").get(RouterCounter.LOOP_PROGRESS),
            "dispatcher": self._peek.counters("dispatcher").get(DispatcherCounter.LOOP_PROGRESS),
        }
        for role, watch in self._watches.items():
            child = self._pool.posts[role].active
            waits = work[role] and child is not None and child.state == "active"
            if watch.look(progress[role], waits, now_s) and child is not None:
                self._kill_frozen(child)
        child = self._pool.messages.active
        if child is not None and child.ready_s and child.state == "active":
            # It turns its wheel whether it has work or not; before it is ready it reads its journal.
            turns = self._peek.counters(MESSAGE_MANAGER).get(MessageManagerCounter.LOOP_PROGRESS)
            if self._messages_watch.look(turns, True, now_s):
                self._kill_frozen(child)
        for i in managers:
            child = self._pool.managers[i].active
            if child is None or not child.ready_s:
                continue
            head, tail = positions(self._peek.down(i))
            adopted = self._peek.counters("manager", i).get(ManagerCounter.CONNECTIONS_TOTAL)
            looks = (
                self._ring_watches[i].look(head, head != tail, now_s),
                self._handover_watches[i].look(adopted, self._plumbing.handovers_unread(i), now_s),
            )
            if any(looks):
                self._kill_frozen(child)
        passed_on = [self._peek.counters("manager", i).get(ManagerCounter.PASSED_ON) for i in managers]
        child = self._tunnelling.watch(sum(passed_on), now_s)
        if child is not None:
            self._kill_frozen(child)

    def _reap_strangers(self) -> None:
        """Children of the program we were before a re-exec that ended unknown to us."""
        with contextlib.suppress(ChildProcessError):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None and found.si_pid not in self._pool.children:
                os.waitpid(found.si_pid, os.WNOHANG)

    def _kill_frozen(self, child: Child) -> None:
        self._log.error(
            child.name, f"has had work for {self._config.limits.frozen_s:g} s and did none of it: killed", pid=child.pid
        )
        child.told = False
        child.kill()

    def _on_takeover(self, old: Child, new: Child) -> None:
        """The standby serves after a death."""
        pause_ms = round((self._loop.now_s() - new.asked_s) * 1000, 3)
        self._record(
            UpdateRecord(
                component=new.name,
                when_ns=time.time_ns(),
                from_version=old.version,
                to_version=new.version,
                pause_ms=pause_ms,
                outcome="took over",
                reason=f"process {old.pid} ended",
            )
        )

    def _record(self, record: UpdateRecord) -> None:
        self._updates = [*self._updates, record][-UPDATES_KEPT:]
        self._pauses.add(record.component, record.outcome, record.pause_ms)
        rundir.write_note(self._run / "updates.json", self._updates)
        self._log.write(
            "info" if record.outcome not in ("failed", "rolled back") else "error",
            record.component,
            f"{record.outcome}: {record.from_version} -> {record.to_version or '?'}, pause {record.pause_ms:g} ms"
            + (f" ({record.reason})" if record.reason else ""),
        )

    # --- Being asked ----------------------------------------------------------------------------------------------
    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload()
        elif self._stage in ("stopping", "stopping routers"):
            self._log.warning("supervisor", "told to stop a second time: ending everything at once")
            for child in list(self._pool.children.values()):
                child.kill()
        else:
            self._stop(f"received {signal.Signals(number).name}")

    def _on_question(self, asker: Asker, question: dict[str, Any]) -> None:
        command = question.get("command")
        try:
            match command:
                case "status":
                    report = self._status(question.get("handle"), bool(question.get("brief")))
                    asker.answer(status=msgspec.to_builtins(report))
                case "update":
                    self._update(asker, str(question.get("component", "")), question.get("python"))
                case "drain" | "move":
                    self._drain(asker, int(question["manager"]), question.get("python"), command == "move")
                case "reload":
                    self._reload()
                    asker.answer()
                case "stop":
                    self._stop_askers.append(asker)
                    self._stop("asked to stop")
                case "admin":
                    self._ask_message_manager(asker, question)
                case "disconnect":
                    self._disconnect(asker, int(question["uid"]), str(question.get("text", "")))
                case "broker-state":
                    self._set_broker_state(asker, question.get("state"))
                case "reexec":
                    self._begin_reexec(asker, question.get("python"))
                case _:
                    asker.refuse(f"There is no command {command!r}.")
        except (ConfigError, ValueError, KeyError) as error:
            asker.refuse(str(error))

    def _reload(self) -> None:
        """Read users and certificates again. One with a mistake in it, or none where one was, changes nothing."""
        try:
            changes = self._users.read_again()
        except ConfigError as error:
            self._log.error("supervisor", f"Users, rules and certificates were not read again: {error}")
            return
        self._pool.config = self._users.pinned(self._pool.config)
        self._log.info("supervisor", "users, rules and certificates are read again")
        for text in changes[:CHANGES_MAX]:
            self._pool.audit({"level": "info", "code": "users-changed", "text": text})
        for child in self._pool.children.values():
            child.send("reload")

    def _set_broker_state(self, asker: Asker, state: object) -> None:
        """Whether the directory sends applications here."""
        post = self._pool.posts.get(REGISTRAR)
        if post is None:
            raise ConfigError("This server is no broker of a directory: [directory] servers is not set.")
        if state not in ("up", "draining", "disabled"):
            raise ConfigError(f"A broker is up, draining or disabled, and not {state!r}.")
        if post.active is None or not post.active.ready_s or not post.active.send("broker-state", state=state):
            raise ConfigError("The registrar is not in service; try again.")
        asker.answer(state=state)

    def _disconnect(self, asker: Asker, uid: int, text: str) -> None:
        """Cut a client off; most come back by themselves."""
        found = next((one for one in self._peek.connections().read_all() if one.uid == uid), None)
        child = self._pool.managers[found.manager].active if found is not None else None
        if found is None or child is None or not child.send("disconnect", uid=uid, index=found.index, text=text):
            raise ConfigError(f"There is no connection {uid}.")
        asker.answer()

    def _ask_message_manager(self, asker: Asker, question: dict[str, Any]) -> None:
        """Pass an administration command on; the same handlers as behind `_ADMIN` answer it (CLU-185)."""
        child = self._pool.messages.active
        if child is None or not child.ready_s:
            raise ConfigError("There is no message manager in service.")
        args = question.get("args") or {}
        if not isinstance(args, dict):
            raise ConfigError("`args` is an object.")
        self._questions.ask(child, asker, str(question.get("name", "")), args)

    def _python(self, path: str | None) -> str:
        """The interpreter to start a successor with."""
        if not path:
            return sys.executable
        found = shutil.which(path)
        if found is None:
            raise ConfigError(f"{path} is not a program that can be started; name a Python interpreter.")
        return str(Path(found).absolute())

    def _update(self, asker: Asker, component: str, python: str | None) -> None:
        messages = self._pool.messages
        names = {
            "router": ["router"],
            "dispatcher": ["dispatcher"],
            messages.role: [messages.role],
            "managers": [f"manager {i}" for i in range(self._note.managers)],
        }
        names["all"] = names["router"] + names["dispatcher"] + names["managers"]
        if messages.active is not None:
            names["all"] += names[messages.role]
        for role in BESIDE:
            if role in self._pool.posts and (role not in TUNNELS or self._pool.posts[role].active is not None):
                names[role] = [role]
                names["all"] += names[role]
        if component == "supervisor":
            self._begin_reexec(asker, python)
            return
        if component not in names:
            raise ConfigError(
                f"There is no component {component!r}; choose router, dispatcher, managers, {messages.role} or all."
            )
        if component == MESSAGE_MANAGER and not self._config.messages.enabled:
            raise ConfigError("This server has no message manager: [messages] enabled is false.")
        self._update_next(asker, names[component], self._python(python), [])

    def _update_next(self, asker: Asker, names: list[str], python: str, done: list[UpdateRecord]) -> None:
        """One component after the other; the first failure ends it."""

        def on_decided(record: UpdateRecord) -> None:
            self._record(record)
            if records:
                return  # rolled back after it had been reported as done: in the log and the status report
            records.append(record)
            asker.tell(update=msgspec.to_builtins(record))
            so_far = [*done, record]
            if record.outcome == "failed":
                asker.tell(
                    ok=False,
                    error=f"The update of the {record.component} failed, the old version goes on: {record.reason}.",
                    updates=msgspec.to_builtins(so_far),
                )
            elif len(names) > 1:
                self._update_next(asker, names[1:], python, so_far)
            else:
                asker.answer(updates=msgspec.to_builtins(so_far))

        records: list[UpdateRecord] = []
        role, _, number = names[0].partition(" ")
        post = self._pool.managers[int(number)] if number else self._pool.posts[role]
        if self._stage != "serving":
            asker.refuse("The server is not serving.")
        elif post.halted and post.active is None:
            post.halted, post.attempts, post.python = "", 0, python  # given up: another program may work
            self._pool.fill(post)
            self._when_free(post, asker, names, python, done)
        elif post.holder is not None or post.active is None or not post.active.ready_s:
            self._when_free(post, asker, names, python, done)
        elif number:
            if self._note.managers < 2:
                asker.refuse("A manager's clients move to another manager, and there is only one; start two or more.")
                return
            Moving(self._pool, self._loop, post, python, time.time_ns(), True, on_decided)
        elif role in (*KEEPS_MESSAGES, *BESIDE):
            Restarting(self._pool, self._loop, post, python, time.time_ns(), on_decided)
        else:
            Replacing(self._pool, self._loop, post, python, time.time_ns(), on_decided)

    def _when_free(self, post: Post, asker: Asker, names: list[str], python: str, done: list[UpdateRecord]) -> None:
        """Another update, or a successor after a death, is under way; the time of a parked one is cut short."""
        if isinstance(post.holder, Replacing) and post.holder.settle_now():
            self._update_next(asker, names, python, done)
        else:
            self._loop.call_after(0.05, lambda: self._update_next(asker, names, python, done))

    def _drain(self, asker: Asker, manager: int, python: str | None, move: bool) -> None:
        if not 0 <= manager < self._note.managers:
            raise ConfigError(f"There is no manager {manager}; they are numbered 0 to {self._note.managers - 1}.")
        post = self._pool.managers[manager]
        if post.active is None or post.holder is not None:
            raise ConfigError(f"Manager {manager} is not in service, or already draining.")

        def on_done(record: UpdateRecord) -> None:
            self._record(record)
            if move:
                asker.answer(updates=[msgspec.to_builtins(record)])

        Moving(self._pool, self._loop, post, self._python(python), time.time_ns(), move, on_done)
        if not move:
            asker.answer(draining=manager)

    def _status(self, handle: int | None, brief: bool) -> Status:
        seen = look(self._peek, handle, brief=brief)
        components = [
            Component(
                role="supervisor",
                index=0,
                state=self._stage,
                version=VERSION,
                pid=os.getpid(),
                started_ns=self._note.started_ns,
                generation=0,
                python=sys.executable,
            )
        ]
        for child in sorted(self._pool.children.values(), key=lambda one: (one.role, one.index, one.generation)):
            components.append(
                Component(
                    role=child.role,
                    index=child.index,
                    state=child.state,
                    version=child.version,
                    pid=child.pid,
                    started_ns=child.started_ns,
                    generation=child.generation,
                    python=child.python,
                )
            )
        counters = [manager.counters for manager in seen.managers]
        return Status(
            server_id=f"{self._note.server_id:016x}",
            version=VERSION,
            listen=[listeners.url(sock) for sock in self._listening],
            data=str(self._data),
            store=str(self._store),
            mode=layout.MODE_NAMES[self._note.mode],
            uptime_s=round((time.time_ns() - self._note.started_ns) / 1e9, 3),
            named_destinations=self._config.metrics.destinations,
            components=components,
            posts=self._pool.posts_status(),
            processes=[usage_of(one.pid, one.role, one.index, one.state) for one in components],
            replaced=self._pauses.facts(),
            updates=self._updates,
            connections=seen.connections,
            managers=seen.managers,
            router=seen.router,
            dispatcher=seen.dispatcher,
            messages=self._messages_status(seen.messages),
            links=self._pool.links,
            tunnel=self._tunnelling.status(counters),
            registrar=self._beside_status(REGISTRAR, self._pool.registrar),
            streams=self._beside_status(STREAMS, self._pool.streams),
            console=self._console_status(),
            stored=sum(manager.stored for manager in seen.managers),
            stored_bytes=sum(manager.stored_bytes for manager in seen.managers),
            message=seen.message,
            attachments=seen.routing.get("attachments"),
            subscriptions=seen.routing.get("subscriptions"),
            registrations=seen.routing.get("registrations"),
            requests_open=seen.routing.get("requests_open"),
            accounting_faults=sum(one["accounting_faults"] for one in counters),
            safety_tick_finds=sum(one["safety_tick_finds"] for one in counters) + seen.router["safety_tick_finds"],
            messages_given_up=sum(one["messages_given_up"] for one in counters),
            notes=seen.notes + expiry_notes(self._config, time.time()),
        )

    def _messages_status(self, counters: dict[str, int]) -> dict[str, Any]:
        settings, post = self._config.messages, self._pool.messages
        state = post.active.state if post.active is not None else f"none: {post.halted}" if post.halted else "none"
        return {"enabled": settings.enabled, "state": state, "sync": settings.sync, **counters}

    def _console_status(self) -> dict[str, Any]:
        return {
            **self._beside_status(CONSOLE, self._pool.console),
            "urls": self._console_urls(),
            "note": self._console_note,
        }

    def _beside_status(self, role: str, report: dict[str, Any]) -> dict[str, Any]:
        post = self._pool.posts.get(role)
        if post is None:
            return {"state": "switched off"}
        state = post.active.state if post.active is not None else post.halted or "starting"
        return {"state": state, **(report if post.active is not None else {})}

    # --- Ending ---------------------------------------------------------------------------------------------------
    def _on_halt(self, sentence: str) -> None:
        """Something cannot be made to work: end with a sentence instead of spinning."""
        if self._stage == "serving":
            self._exit = EXIT_HALTED
            self._log.error("supervisor", f"{sentence} Giving up; the last lines of {self._log.path} say why.")
            self._stop("halted")

    def _stop(self, why: str) -> None:
        """In order: dispatchers and managers first, so that clients hear of it, the message manager, the routers."""
        if self._stage in ("stopping", "stopping routers"):
            return
        self._log.info("supervisor", f"stopping: {why}")
        self._stage = "stopping"
        self._pool.stopping = True
        self._last = list(STOPPED_LAST)
        for child in list(self._pool.children.values()):
            if child.role not in STOPPED_LAST:
                self._pool.dismiss(child)
        self._check_stopped()

    def _check_stopped(self) -> None:
        children = self._pool.children.values()
        while self._stage == "stopping" and self._last and all(child.role in self._last for child in children):
            role, *self._last = self._last
            for child in list(children):
                if child.role == role:
                    self._pool.dismiss(child)
        if self._stage == "stopping" and not self._last:
            self._stage = "stopping routers"
        if self._stage == "stopping routers" and not children:
            self._loop.stop()
            return
        self._loop.call_after(0.01, self._check_stopped)

    def _begin_reexec(self, asker: Asker, python: str | None) -> None:
        """Become another program with the same process id; the children serve on and report to it."""
        program = self._python(python)
        start = "from fairlead.cli import main; main(prog_name='fairlead')"
        self._reexec = [program, "-P", "-c", start, *sys.argv[1:]]
        self._log.info("supervisor", f"executing {program} in place")
        asker.answer(pid=os.getpid())
        self._loop.stop()

    def _end(self) -> int:
        self._pool.write_note()
        if self._reexec is not None:
            os.environ[rundir.LOCK_FD_VARIABLE] = str(self._lock_fd)
            os.set_inheritable(self._lock_fd, True)
            self._out.flush()
            sys.stderr.flush()
            self._loop.close()
            os.execv(self._reexec[0], self._reexec)
        self._admin.close()
        self._gate.close()
        self._peek.close()
        for sock in self._listening:
            if sock.family == socket.AF_UNIX:
                Path(sock.getsockname()).unlink(missing_ok=True)
            sock.close()
        for sock in self._consoles:
            if sock.family == socket.AF_UNIX:
                Path(sock.getsockname()).unlink(missing_ok=True)
            sock.close()
        self._plumbing.close()
        segment.remove_directory(self._store)
        for name in (
            "server.json",
            "children.json",
            "updates.json",
            SOCKET_NAME,
            "admin.sock",
            "mm-0.sock",
            LINK_NAME,
            STATUS_NAME,
        ):
            (self._run / name).unlink(missing_ok=True)
        for path in self._port_notes:
            path.unlink(missing_ok=True)
        self._log.info("supervisor", "stopped")
        for asker in self._stop_askers:
            asker.answer()
        self._loop.close()
        return self._exit


def console_scheme(sock: socket.socket, has_certificate: bool) -> str:
    """Browsers on this host need no TLS; those that come over the network get it where there is a certificate."""
    if sock.family == socket.AF_UNIX:
        return "http"
    return "https" if has_certificate and not is_local(f"[{sock.getsockname()[0]}]:0") else "http"


def _readable(sock: socket.socket) -> bool:
    """Does a listening socket have connections waiting?"""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))
