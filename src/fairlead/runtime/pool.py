"""Who is in which post: router and dispatcher, a warm standby of each, the managers, the message manager and others.

A post is never left empty for longer than it takes: when the active one dies, the standby is activated at once and a
new standby started; when a manager dies, a successor gets the same rings. `restart` says when to give up. Live
updates (`replacing`), moves of managers (`moving`) and restarts (`restarting`) take a post over while they last. The
message manager has no standby, since its journal has one owner; without it everything transient goes on.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fairlead.runtime import children, packets, restart
from fairlead.runtime.children import Child
from fairlead.runtime.config import Config, is_broker, to_wire
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.loop import Loop
from fairlead.runtime.plumbing import Plumbing
from fairlead.runtime.rundir import ChildNote, write_note
from fairlead.runtime.status import PostStatus

REPLACED_LIVE = ("router", "dispatcher")
MESSAGE_MANAGER = "message-manager"
AGENT = "agent"  # in its place on a client manager's node of a cluster
KEEPS_MESSAGES = (MESSAGE_MANAGER, AGENT)
BRIDGE = "bridge"  # carries messages to and from other servers, where there are links
REGISTRAR = "registrar"  # tells the directory of this server and its applications, where it is a broker
STREAMS = "streams"  # the stream administration, where there is one
GATEWAY, BROKER = "tunnel-gateway", "tunnel-broker"  # of tunnels; their posts are empty until somebody needs them
TUNNELS = (BROKER, GATEWAY)
CONSOLE = "console"  # the web page and the admin API
BESIDE = (
    BRIDGE,
    REGISTRAR,
    STREAMS,
    *TUNNELS,
    CONSOLE,
)  # clients of their own server: it is ready, and goes on, without them
NOT_NEEDED = "not needed yet"
SETTLE_S = 0.02
STOP_S = 5.0
REST_S = 30.0  # of a registrar or stream administration that was given up
FLUSH_S = 30.0  # what a message manager has for its last flush


class Holder(Protocol):
    """Somebody who looks after a post for a while: a live update, a move."""

    def on_ready(self, child: Child) -> None: ...
    def on_active(self, child: Child) -> None: ...
    def on_parked(self, child: Child) -> None: ...
    def on_died(self, child: Child, status: int) -> bool:
        """True: dealt with; False: what usually happens shall happen."""


@dataclass(slots=True, eq=False)
class Post:
    """One place to be filled."""

    role: str
    index: int
    python: str
    active: Child | None = None
    spare: Child | None = None
    attempts: int = 0
    restarts: int = 0  # processes of it that ended unasked
    halted: str = ""  # why no further process is started for it
    waiting: bool = False  # a start is due after a pause
    holder: Holder | None = None

    @property
    def name(self) -> str:
        return f"manager {self.index}" if self.role == "manager" else self.role


class Pool:
    """All posts of one server."""

    def __init__(
        self,
        *,
        loop: Loop,
        log: Logbook,
        config: Config,
        run: Path,
        store: Path,
        server_id: int,
        managers: int,
        plumbing: Plumbing,
        python: str,
        on_ready: Callable[[], None],
        on_halt: Callable[[str], None],
        on_takeover: Callable[[Child, Child], None],
        on_answer: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self._loop = loop
        self._log = log
        self.config = config
        self._run = run
        self._store = store
        self._server_id = server_id
        self._managers = managers
        self._plumbing = plumbing
        self._on_ready = on_ready
        self._on_halt = on_halt
        self._on_takeover = on_takeover
        self._on_answer = on_answer
        self._predecessors: dict[Child, Child] = {}  # who takes over from whom after a death
        self.generation = 0
        self.ready = False
        self.stopping = False
        self.children: dict[int, Child] = {}
        self.adoptable: dict[int, ChildNote] = {}
        self.messages = Post(AGENT if config.agent else MESSAGE_MANAGER, 0, python)
        self.posts: dict[str, Post] = {role: Post(role, 0, python) for role in REPLACED_LIVE}
        self.posts[self.messages.role] = self.messages
        if not config.messages.enabled:
            self.messages.halted = "switched off by [messages] enabled"
        if config.links.parents:
            self.posts[BRIDGE] = Post(BRIDGE, 0, python)
        if is_broker(config):
            self.posts[REGISTRAR] = Post(REGISTRAR, 0, python)
        if config.streams.serve:
            self.posts[STREAMS] = Post(STREAMS, 0, python)
        if config.tunnel.enabled:
            self.posts |= {role: Post(role, 0, python, halted=NOT_NEEDED) for role in TUNNELS}
        if config.console.enabled:
            self.posts[CONSOLE] = Post(CONSOLE, 0, python)
        self.urls: list[str] = []  # where this server listens
        self.links: list[dict[str, Any]] = []  # the bridge's own report
        self.registrar: dict[str, Any] = {}  # the registrar's own report
        self.streams: dict[str, Any] = {}  # the stream administration's own report
        self.console: dict[str, Any] = {}  # the console's own report
        self.tunnels: dict[str, dict[str, Any]] = {}  # what gateway and broker of tunnels report
        self.managers: list[Post] = [Post("manager", i, python) for i in range(managers)]

    # --- Filling posts --------------------------------------------------------------------------------------------
    def all_posts(self) -> Iterator[Post]:
        yield from self.posts.values()
        yield from self.managers

    def fill_all(self) -> None:
        """Start, concurrently, whatever is missing."""
        for post in self.all_posts():
            self.fill(post)

    def fill(self, post: Post) -> None:
        """Make sure somebody is, or will be, in this post; and beside it a standby, once the server is ready."""
        if self.stopping or post.halted or post.waiting or post.holder is not None:
            return
        if post.role == CONSOLE and not self.ready:
            return  # those who serve clients are started first
        if self.adoptable:
            return  # who serves may not have reported yet: nobody may serve beside it
        if post.active is None:
            if post.spare is not None:
                self._promote(post, post.spare)
            else:
                post.active = self.start(post, "active", post.python)
        if post.spare is None and post.role in REPLACED_LIVE and self.ready:
            post.spare = self.start(post, "standby", post.python)

    def start(self, post: Post, mode: str, python: str) -> Child | None:
        """A new process for a post; None (and another try later) if not even that is possible."""
        self.generation += 1
        try:
            child = children.spawn(
                post.role,
                post.index,
                python=python,
                run=self._run,
                log_fd=self._log.fd,
                generation=self.generation,
                mode=mode,
            )
        except OSError as error:
            self._log.error(post.name, f"cannot be started from {python}: {error.strerror}")
            self._after_end(post, restart.CANNOT_START, 0.0)
            return None
        self._register(child)
        self._loop.call_after(self._ready_within_s(post), lambda: self._check_ready(child))
        return child

    def _register(self, child: Child) -> None:
        self.children[child.pid] = child
        self._loop.watch(child.pidfd, lambda: self._on_end(child))
        self.write_note()

    def _ready_within_s(self, post: Post) -> float:
        """A message manager reads its journal first."""
        return self.config.messages.recovery_s if post.role == MESSAGE_MANAGER else self.config.limits.ready_s

    def _check_ready(self, child: Child) -> None:
        if child.pid in self.children and not child.ready_s and not child.told:
            within_s = self._ready_within_s(self.post_of(child))
            self._log.error(child.name, f"was not ready within {within_s:g} s", pid=child.pid)
            child.kill()

    def _check_active(self, child: Child) -> None:
        if child.pid in self.children and child.asked_s and self.post_of(child).holder is None:
            self._log.error(child.name, "did not take over in time", pid=child.pid)
            child.kill()

    def _promote(self, post: Post, child: Child) -> None:
        """The standby becomes the active one, at once or as soon as it is ready."""
        post.active, post.spare = child, None
        self.activate(child)

    def activate(self, child: Child) -> None:
        """Tell it to take over; if it is frozen itself, it is killed and the next one's turn comes."""
        child.asked_s = child.asked_s or self._loop.now_s()
        if not child.ready_s:
            child.promoted = True
            return
        child.send("activate")
        self._loop.call_after(self.config.limits.ready_s / 2, lambda: self._check_active(child))

    # --- What children say ----------------------------------------------------------------------------------------
    def on_connect(self, sock: socket.socket) -> None:
        """Somebody connected to the supervisor's socket; its first packet says who."""
        sock.setblocking(False)
        receiver = packets.Receiver(sock)
        fd = sock.fileno()

        def first() -> None:
            try:
                received = receiver.receive()
            except BlockingIOError:
                return
            except (OSError, ValueError):
                received = None
            self._loop.forget(fd)
            child = None if received is None else self._child_of(received.message)
            if received is None or child is None:
                receiver.drop()
                sock.close()
                return
            child.attach(sock, receiver)
            self._loop.watch(fd, lambda: self._on_packets(child))
            self._on_hello(child, received)

        self._loop.watch(fd, first)

    def _child_of(self, hello: dict[str, Any]) -> Child | None:
        pid = hello.get("pid")
        if not isinstance(pid, int):
            return None
        if pid in self.children:
            return self.children[pid]
        note = self.adoptable.pop(pid, None)
        if hello.get("state") == "new":
            return None  # started by a supervisor that died before it said as what: it ends, another one is started
        if note is not None and note.role in BESIDE:
            # Of a server that had links, tunnels or a directory when it was started.
            self.posts.setdefault(note.role, Post(note.role, 0, note.python))
        child = None if note is None else children.adopt(note)
        if child is not None:
            self._register(child)
        return child

    def _on_hello(self, child: Child, received: packets.Received) -> None:
        hello = received.message
        child.version, child.python = hello["version"], hello["python"]
        child.started_ns = hello["started_ns"]
        if hello["state"] == "new":
            child.state = "loading"
            child.send(
                "start",
                self._plumbing.fds_for(child.role, child.index),
                config=to_wire(self.config),
                store=str(self._store),
                managers=self._managers,
                server_id=self._server_id,
                generation=child.generation,
                mode=child.mode,
                urls=self.urls,
            )
            return
        child.state = hello["state"]
        child.generation = hello["generation"]
        child.ready_s = self._loop.now_s()
        self.generation = max(self.generation, child.generation)
        self._plumbing.take(child.role, child.index, received.fds)
        self._log.info(child.name, f"adopted, {child.state}", pid=child.pid, version=child.version)
        self._place(child)

    def _place(self, child: Child) -> None:
        """Put an adopted child into its post."""
        post = self.post_of(child)
        if child in (post.active, post.spare) or post.holder is not None:
            return  # one we know, whose line was lost and found
        if child.state == "active" and post.active is None:
            post.active, post.halted = child, ""
        elif child.state in ("standby", "parked") and post.spare is None:
            post.spare = child
        else:
            self.dismiss(child)

    def _on_packets(self, child: Child) -> None:
        while child.receiver is not None:
            try:
                received = child.receiver.receive()
            except BlockingIOError:
                return
            except (OSError, ValueError):
                received = None
            if received is None:
                assert child.sock is not None
                self._loop.forget(child.sock.fileno())
                child.sock.close()
                child.sock = child.receiver = None
                return
            self._on_event(child, received)

    def _on_event(self, child: Child, received: packets.Received) -> None:
        post, message = self.post_of(child), received.message
        match message.get("event"):
            case "ready":
                self._on_child_ready(post, child)
            case "active":
                child.state = "active"
                child.pause_ns = int(message.get("pause_ns", 0))
                predecessor = self._predecessors.pop(child, None)
                if predecessor is not None:
                    self._on_takeover(predecessor, child)
                if post.holder is not None:
                    post.holder.on_active(child)
                child.asked_s = 0.0
            case "parked":
                child.state = "parked"
                if post.holder is not None:
                    post.holder.on_parked(child)
            case "log":
                facts = {"pid": child.pid, **message.get("facts", {})}
                self._log.write(str(message.get("level", "info")), child.name, str(message.get("text", "")), **facts)
            case "audit":
                self.audit(dict(message.get("record", {})))
            case "answer":
                self._on_answer(int(message.get("number", 0)), _read_answer(received.fds))
            case "links":
                self.links = list(message.get("links", []))
            case "registrar":
                self.registrar = dict(message.get("registrar", {}))
            case "streams":
                self.streams = dict(message.get("streams", {}))
            case "console":
                self.console = dict(message.get("console", {}))
            case "tunnels":
                self.tunnels[child.role] = dict(message.get("tunnels", {}))
            case "failed":
                child.failure = str(message.get("text", ""))
                self._log.error(child.name, f"cannot go on: {child.failure}", pid=child.pid)
            case _:
                pass

    def audit(self, record: dict[str, Any]) -> None:
        """For the event log, which the message manager keeps; to our own log too, where there is none."""
        child = self.messages.active
        if child is None or not child.ready_s or not child.send("audit", record=record):
            self._log.write(str(record.get("level", "info")), "audit", str(record.get("text", "")))

    def _on_child_ready(self, post: Post, child: Child) -> None:
        child.ready_s = self._loop.now_s()
        child.state = child.mode
        self._log.info(child.name, f"ready, {child.mode}", pid=child.pid, version=child.version)
        if child.promoted:
            child.promoted = False
            self.activate(child)
        if post.holder is not None:
            post.holder.on_ready(child)
        if child.role == "manager" and self.ready:
            self.tell_of_manager("replaced", child.index)
        self.check_all_ready()

    def check_all_ready(self) -> None:
        """Once every post has somebody ready in it, the server is ready and gets its standbys."""
        if not self.ready and not self.stopping and all(self._is_served(post) for post in self.all_posts()):
            self.ready = True
            self._on_ready()
            self.fill_all()

    def posts_status(self) -> list[PostStatus]:
        """Every place there is, and whether somebody serves in it."""
        return [
            PostStatus(
                role=post.role,
                index=post.index,
                up=self._has_somebody(post),
                needed=post.role not in BESIDE and (post is not self.messages or self.config.messages.enabled),
                restarts=post.restarts,
                reason="" if self._has_somebody(post) else post.halted or "starting",
            )
            for post in self.all_posts()
        ]

    def _is_served(self, post: Post) -> bool:
        if post.role in BESIDE or (post is self.messages and post.halted):
            return True  # the server does what it can without
        return self._has_somebody(post)

    @staticmethod
    def _has_somebody(post: Post) -> bool:
        return post.active is not None and post.active.ready_s > 0

    def tell_of_manager(self, command: str, manager: int) -> None:
        """Router and dispatcher, active and standby, hear that a manager was replaced or is given up."""
        for child in self.children.values():
            if child.role in REPLACED_LIVE and child.state in ("active", "standby", "parked"):
                child.send(command, manager=manager)

    # --- Ends -----------------------------------------------------------------------------------------------------
    def _on_end(self, child: Child) -> None:
        """A process has ended: first of all fill its post again, then tell."""
        status = child.reap()
        now_s = self._loop.now_s()
        post = self.post_of(child)
        was_active = post.active is child
        settle_s = 0.0
        if was_active:
            post.active = None
            if child.role == REGISTRAR:
                self.registrar = {}
            elif child.role == STREAMS:
                self.streams = {}
        if post.spare is child:
            post.spare = None
        if was_active and post.holder is None and post.spare is not None and not self.stopping and not child.told:
            self._predecessors[post.spare] = child
            post.spare.asked_s = now_s
            self._promote(post, post.spare)
            settle_s = SETTLE_S  # the takeover first: starting a process costs time the successor could use
        if child.sock is not None:
            self._loop.forget(child.sock.fileno())
        self._loop.forget(child.pidfd)
        child.close()
        del self.children[child.pid]
        self._predecessors.pop(child, None)
        if self.stopping:  # the loop ends with the last child, and a timer with the loop
            self._settle(post, child, status, now_s)
        else:
            self._loop.call_after(settle_s, lambda: self._settle(post, child, status, now_s))

    def _settle(self, post: Post, child: Child, status: int, ended_s: float) -> None:
        """Tell of an end, and see to it that the post has all it needs again."""
        if child.told and status == 0:
            self._log.info(child.name, "ended as told", pid=child.pid)
        else:
            self._log.write(
                "info" if child.told else "warning", child.name, f"ended {restart.describe(status)}", pid=child.pid
            )
        self.write_note()
        if self.stopping:
            return
        if post.holder is not None and post.holder.on_died(child, status):
            return
        if child.told:
            self.fill(post)
        else:
            self._after_end(post, status, ended_s - child.ready_s if child.ready_s else 0.0, child.failure)

    def _after_end(self, post: Post, status: int, lived_s: float, failure: str = "") -> None:
        post.restarts += 1
        decision = restart.on_exit(status, lived_s, post.attempts)
        if isinstance(decision, restart.Halt):
            post.halted = failure or decision.reason
            self._on_given_up(post, decision.reason)
            return
        post.attempts, post.halted = decision.attempts, ""
        if decision.after_s <= 0:
            self.fill(post)
            return
        post.waiting = True
        self._loop.call_after(decision.after_s, lambda: self._after_pause(post))

    def _after_pause(self, post: Post) -> None:
        post.waiting = False
        self.fill(post)

    def _on_given_up(self, post: Post, reason: str) -> None:
        if post.active is not None:
            self._log.error(post.name, f"goes on without a standby: {reason}")
            return
        if post.role == "manager" and any(other.active is not None for other in self.managers):
            self._log.error(post.name, f"given up, the other managers go on: {reason}")
            self.tell_of_manager("exclude", post.index)
            return
        if post.role == MESSAGE_MANAGER:
            self._log.error(post.name, f"given up, there are no queues and durable topics without it: {reason}")
            self.check_all_ready()
            return
        if post.role == BRIDGE:
            self._log.error(post.name, f"given up, this server is alone without it: {reason}")
            return
        if post.role == REGISTRAR:
            if post.halted != reason:  # it said why this server cannot be a broker: another one has its name
                self._on_halt(post.halted)
            else:
                self._log.error(
                    post.name, f"given up for a while, the directory hears nothing of this server: {reason}"
                )
                self._loop.call_after(REST_S, lambda: self._try_again(post))
            return
        if post.role == CONSOLE:
            self._log.error(post.name, f"given up for a while, everything else goes on: {reason}")
            self._loop.call_after(REST_S, lambda: self._try_again(post))
            return
        if post.role == STREAMS:
            self._log.error(post.name, f"given up for a while, streams go on and no new ones are brokered: {reason}")
            self._loop.call_after(REST_S, lambda: self._try_again(post))
            return
        if post.role in TUNNELS:
            self._log.error(post.name, f"given up, no client comes through HTTP for a while: {reason}")
            return
        self._on_halt(f"The {post.name} does not work: {post.halted}. {reason.capitalize()}.")

    def _try_again(self, post: Post) -> None:
        if post.active is None and post.halted:
            post.halted, post.attempts = "", 0
            self.fill(post)

    def dismiss(self, child: Child) -> None:
        """Ask a child to end, and see to it that it does."""
        child.told = True
        child.state = "stopping"
        if not child.send("stop", server=self.stopping):
            child.kill()
        patience_s = FLUSH_S if child.role in KEEPS_MESSAGES else STOP_S
        self._loop.call_after(patience_s, lambda: child.kill() if child.pid in self.children else None)

    # --- Notes ----------------------------------------------------------------------------------------------------
    def post_of(self, child: Child) -> Post:
        return self.managers[child.index] if child.role == "manager" else self.posts[child.role]

    def write_note(self) -> None:
        """For a supervisor that finds our children without us."""
        notes = [note for child in self.children.values() if (note := child.note()) is not None]
        write_note(self._run / "children.json", notes)


def _read_answer(fds: dict[str, int]) -> dict[str, Any]:
    """What a child put into the file it sent; whatever else came with it is closed."""
    answer = b"{}"
    for name, fd in fds.items():
        with open(fd, "rb") as file:
            if name == "answer":
                file.seek(0)
                answer = file.read()
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"ok": False, "error": "The answer could not be read."}
