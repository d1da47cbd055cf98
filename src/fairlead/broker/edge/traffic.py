"""The plain engine of one connection manager: descriptors, epoll, rounds, intake and delivery.

The twin of `_traffic.pyx`: same class, same behaviour, some fifty times slower, and the place to read the rules.
What is decided is beside it and pure: who may send (`fairness.py`), when an instruction is finished
(`relinquish.py`), what a successor must know (`outstanding.py`).

A turn: wait, read every readable connection once, take messages in rounds into the up ring, publish, carry out the
instructions of the down ring, send, account, publish.

Beside router and clients there is the link to the message manager (docs/durable.md, section 2): frames of the durable
road are copied into its output and out of its input, in one `send` and one `recv` a turn.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from fairlead.broker.answers import (
    error_frame,
    full_frame,
    gone_frame,
    ping_frame,
    pong_frame,
    preface_answer,
    room_frame,
    without,
)
from fairlead.broker.bounds import Bounds
from fairlead.broker.fairness import Admission
from fairlead.broker.outstanding import OutstandingTable
from fairlead.broker.relinquish import Finish, Relinquish
from fairlead.store import layout
from fairlead.wire import kinds
from fairlead.wire.durable import (
    ENVELOPE,
    KIND_ANSWER,
    KIND_COLUMNS,
    KIND_COMMAND,
    KIND_MORE,
    KIND_NOTICE,
    KIND_STORE,
)
from fairlead.wire.hello import HELLO_MAX, Hello, look

READ_BYTES: Final = 131072
OUT_BYTES: Final = 131072  # gathered for one connection before it has to wait
SMALL_FRAME: Final = 32768  # a longer message goes straight to its slot while it arrives
EARLY_BYTES: Final = 16384  # what a connection may send before it is welcome
STOPPED_READ: Final = 4096  # read at a time while the limit is met
PIECE: Final = 1048576  # body bytes per frame
PASS_MESSAGES: Final = 512  # taken before the connections are polled again
DRAIN_ENTRIES: Final = 1024  # instructions before sending
FREE_FRAMES: Final = 64  # uncounted frames of a connection in one visit
SENDS: Final = 4  # per connection and turn
LINGER_MS: Final = 1000
FAULT: Final = 3  # what Arena.finish answers
LINK_READ: Final = 524288
LINK_FRAME_MAX: Final = 16 << 20
LINK_HIGH: Final = 8 << 20  # waiting for the message manager: those who send to it are not read beyond
LINK_LOW: Final = 4 << 20
COMMAND_MAX: Final = 65536
DURABLE_LAST: Final = 0x6F
PREFIX_MAX: Final = 40  # of a tenant's names
CLEARED_MAX: Final = 1024  # names a connection need not be asked about again
BURST_MS: Final = 1000  # so much of its rate somebody may use at once
ADMIN: Final = b"_ADMIN"
OVER_QUOTA: Final = "The quota of this user or its tenant is %d bytes a message."
GONE: Final = gone_frame()
FULL: Final = full_frame()
ROOM: Final = room_frame()
FULL_BYTES: Final = 2 << 20  # of bulk frames that wait for a connection: the message manager sends no more
ROOM_BYTES: Final = 256 << 10  # … until so few wait
BULK_SLACK: Final = 16 << 20  # … and what is on its way until it hears of it is no reason to cut anybody off
SEPARATOR: Final = b"\x1f"

FIXED: Final = struct.Struct("<IBBHIIQQ")  # length, kind, flags, topic, headers, number, correlation, peer
UP: Final = struct.Struct(layout.UP_FORMAT)
DOWN: Final = struct.Struct(layout.DOWN_FORMAT)
U64: Final = struct.Struct("<Q")

# States of a connection, in the order of its life.
PREFACE, SECURING, ATTACHING, CONFIRMED, CONNECTING, LIVE, CLOSING, LINGERING = range(1, 9)
# What a step found.
TOOK, FREE, NONE, BLOCKED = range(4)
IDLE, ON_READY, ON_BLOCKED = range(3)

CONNECT, PING, PONG, CREDIT, SUBSCRIBE, CLOSE, MOVE = 0x01, 0x02, 0x03, 0x04, 0x05, 0x0A, 0x0B
REGISTER = 0x07
PUBLISH, REQUEST, CONVERSE, FANOUT, SEND, FRAGMENT = 0x20, 0x21, 0x23, 0x24, 0x25, 0x2F
CONFIRM, WELCOME, MOVED = 0x41, 0x42, 0x49
ERROR: Final = kinds.KIND_ERROR
FRAGMENTED, IDENTITY = 0x08, 0x10

Event = tuple[int, str, bytes]


class Filter(Protocol):
    """TLS between a connection's bytes and everything else: see `tls.py`."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]: ...

    def send(self, data: bytes) -> bytes: ...


@dataclass(slots=True)
class Waiting:
    """A delivery that found no room or no credit, or router-made frames behind such a delivery."""

    head: bytes
    body_length: int = 0
    handle: int = 0
    instruction: int = 0  # 0: plain
    plain: bytes = b""  # router-made frames of any length go out like a body

    @property
    def size(self) -> int:
        return len(self.head) + self.body_length


@dataclass(slots=True)
class Mark:
    """Where in the stream a delivery ends."""

    end: int
    instruction: int
    size: int


@dataclass(slots=True)
class Connection:
    """One client connection."""

    index: int
    uid: int
    sock: socket.socket
    keep_alive_ms: int
    heard_ms: int
    sent_ms: int
    since_ms: int  # of the state, where a timer runs
    state: int = PREFACE
    looks: bool = False  # what kind of connection it is has to be found out, before anything is read
    wanted: int = 0  # bytes without which that cannot be told
    place: int = IDLE
    eof: bool = False  # nothing more is read
    deaf: bool = False  # what it sent and was not taken yet does not count any more
    linger: bool = False  # send what is gathered before closing; nothing is added
    hurt: bool = False  # writing failed
    lost: int = 0  # deliveries given up because it ended
    attached: bool = False  # the router knows it
    masked: int = 0  # 1 not polled for reading, 2 nor for its end, 3 not polled at all
    interest: int | None = None
    dirty: bool = False
    write_blocked: bool = False
    pinged: bool = False
    detaching: bool = False
    drop_fragments: bool = False
    data: bytearray = field(default_factory=bytearray)
    skip: int = 0  # bytes of a refused frame still to come
    handle: int = 0  # a large body on its way into its slot
    head: bytes = b""
    body_total: int = 0
    body_got: int = 0
    frame_left: int = 0
    out: bytearray = field(default_factory=bytearray)
    sent: int = 0
    queued: int = 0
    marks: deque[Mark] = field(default_factory=deque)
    waiting: deque[Waiting] = field(default_factory=deque)
    waiting_bytes: int = 0
    emitting: bool = False  # the head of the first waiting delivery is in the buffer already
    emitted: int = 0
    credit: int = 0
    unlimited: bool = False
    overdraft: bool = False  # its credit cannot be heard, so the transport alone is the brake
    tls: Filter | None = None
    cipher: bytes = b""
    covers: int = 0  # plain bytes the ciphertext stands for
    durable: bool = False  # it has used the durable road
    restricted: bool = False  # Python is asked before it may publish to a destination
    pair: bytes = b""  # header pair with the user's name
    choked: bool = False  # it waits for the link to drain
    slowed: bool = False  # it waits since it, or its tenant, sends faster than it may
    prefix: bytes = b""  # of a tenant's client: what stands before its names inside
    cleared: set[bytes] = field(default_factory=set)  # names Python has allowed it to publish to
    body_limit: int = 0  # its quota for one message; 0: none
    meters: list[tuple[int, float]] = field(default_factory=list)  # slot, and milliseconds a message takes up there
    awaits: int = 0  # number of the turn at whose end Python deals with its last frame
    more: bytearray = field(default_factory=bytearray)  # frames of the message manager that found no room
    more_left: int = 0  # of the frame that is half in the output
    more_first: bool = False  # the next frame is one of `more`
    full: bool = False  # it was said that it does not read

    @property
    def has_credit(self) -> bool:
        return self.unlimited or self.credit > 0 or self.overdraft

    @property
    def out_of_credit(self) -> bool:
        """Is credit what the first waiting delivery waits for?"""
        if not self.waiting or self.emitting or self.has_credit:
            return False
        return bool(self.waiting[0].instruction)


class Traffic:
    """The connections of one manager and the bytes on them."""

    def __init__(
        self,
        *,
        up: Any,
        down: Any,
        arenas: Mapping[int, Any],
        own: int,
        outstanding: Any,
        wake_fd: int,
        wake_router_fd: int,
        settings: Bounds,
    ) -> None:
        self._up, self._down = up, down
        self._arenas = dict(arenas)
        self._own = self._arenas[own]
        self._wake_fd, self._wake_router_fd = wake_fd, wake_router_fd
        self._bounds = settings
        limit = min(settings.limit, up.entries_max) if up.entries_max else settings.limit
        self._admission = Admission(limit=limit, resume_below=settings.resume_below)
        self._body_max = min(settings.body_max, self._own.blocks * 65536 - 128)
        self._keep_free = up.capacity // 4
        self._relinquish = Relinquish()
        self._records: dict[int, int] = {}
        self._table = OutstandingTable(outstanding)
        self._connections: dict[int, Connection] = {}
        self._by_fd: dict[int, Connection] = {}
        self._ready: list[Connection] = []
        self._blocked: list[Connection] = []
        self._dirty: list[Connection] = []
        self._overflow: deque[tuple[int, int, int, bytes]] = deque()
        self._reasons: dict[int, str] = {}
        self._events: list[Event] = []
        self._starving = -1
        self._stuck_ring = False
        self._rotation = 0
        self._now = self._swept_ms = time.monotonic_ns() // 1_000_000
        self._counts = dict.fromkeys(
            (
                *("live", "messages_in", "bytes_in", "deliveries", "bytes_out", "instructions", "rounds", "starved"),
                *("slow_clients", "refused", "lost", "undelivered", "accounting_faults", "safety_tick_finds", "wakes"),
                *("slowed", "over_quota"),
                *("durable_in", "durable_out", "diverted", "link_strays", "link_dropped", "link_chokes"),
            ),
            0,
        )
        self._link: socket.socket | None = None
        self._link_interest = 0
        self._link_in, self._link_out = bytearray(), bytearray()
        self._link_blocked = False  # its socket takes no more
        self._link_choked = False  # too much waits for it
        self._link_stuck = False  # a broadcast from it waits for room in the store
        self._names: set[bytes] = set()
        self._meters: Any = ()  # when each user or tenant with a rate has used up what it sent, in ms
        self._turns = 0
        self._asked = False  # Python deals with a frame that others wait behind
        self._epoll = select.epoll()
        self._epoll.register(wake_fd, select.EPOLLIN)

    def __del__(self) -> None:
        """Let go of the descriptors, as the end of the process would; nothing is told to anybody."""
        for c in getattr(self, "_connections", {}).values():
            c.sock.close()
        if getattr(self, "_link", None) is not None:
            self._drop_link()
        if hasattr(self, "_epoll"):
            self._epoll.close()

    # --- What the edge says ---------------------------------------------------------------------------------------
    def adopt(self, index: int, uid: int, fd: int, now_ms: int | None = None) -> None:
        """Serve this connection from now on; its descriptor belongs to the engine."""
        if not 0 <= index < self._bounds.connections or index in self._connections:
            raise ValueError(f"connection {index} is taken")
        now = self._time_of(now_ms)
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
        if is_tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        c = Connection(index, uid, sock, self._bounds.keep_alive_ms, now, now, now)
        c.looks = is_tcp and self._bounds.tunnels
        self._connections[index] = self._by_fd[fd] = c
        self._poll(c)

    def watch(self, fd: int) -> None:
        """Report `(fd, "readable", b"")` when this descriptor can be read."""
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        try:
            self._epoll.unregister(fd)
        except (OSError, ValueError):
            pass

    def push(self, kind: int, uid: int, index: int, content: bytes) -> None:
        """An entry of the manager itself for the router: not counted, never refused."""
        if kind == layout.UP_ATTACH and (c := self._find(index, uid)) is not None:
            c.attached = True
        self._push_uncounted(kind, uid, index, content)

    def options(self, index: int, uid: int, credit: int, keep_alive_ms: int) -> bool:
        """What the client's CONNECT asked for; credit 0 means no limit."""
        if (c := self._find(index, uid)) is None:
            return False
        c.credit, c.unlimited = credit, credit == 0
        if keep_alive_ms > 0:
            c.keep_alive_ms = keep_alive_ms
        return True

    def send(self, index: int, uid: int, frames: bytes) -> bool:
        """Whole frames for one connection, in front of what waits for credit."""
        if (c := self._find(index, uid)) is None:
            return False
        self._put_plain(c, frames, ordered=False)
        return True

    def close(self, index: int, uid: int, reason: str, frames: bytes = b"") -> bool:
        """End one connection, with a last word if `frames` are given; messages it sent before are still taken."""
        if (c := self._find(index, uid)) is None:
            return False
        self._cut(c, reason, frames, deaf=False)
        return True

    def secure(self, index: int, uid: int, tls_filter: Filter) -> bool:
        """Put a TLS filter between this connection's bytes and everything else."""
        if (c := self._find(index, uid)) is None or c.state != SECURING:
            return False
        early, c.data = bytes(c.data), bytearray()
        c.tls, c.state = tls_filter, PREFACE
        self._decipher(c, early)
        return True

    def descriptor(self, index: int, uid: int) -> int:
        """Of a connection reported as `http`, to be passed on; -1 if there is none."""
        c = self._find(index, uid)
        return -1 if c is None or c.state != SECURING or c.data else c.sock.fileno()

    def let_go(self, index: int, uid: int) -> bool:
        """It was passed on: let go of it without a word. Its place is reported as closed, like any other."""
        if self.descriptor(index, uid) < 0:
            return False
        c = self._connections[index]
        c.eof = c.deaf = True
        self._reasons[index] = "passed-on"
        self._close_now(c)
        return True

    def identity(self, index: int, uid: int, pair: bytes, restricted: bool, prefix: bytes = b"") -> bool:
        """Who it is: the header pair its messages to destinations carry, whether Python is asked about each name, and
        what stands before its names inside."""
        if len(prefix) > PREFIX_MAX:
            raise ValueError("this prefix is too long")
        if (c := self._find(index, uid)) is None:
            return False
        c.pair, c.restricted, c.prefix = pair, restricted, prefix
        c.cleared.clear()
        return True

    def clear(self, index: int, uid: int, name: bytes) -> None:
        """Python need not be asked again about publishes of this connection to this name, until `identity`."""
        if (c := self._find(index, uid)) is not None:
            if len(c.cleared) >= CLEARED_MAX:
                c.cleared.clear()
            c.cleared.add(name)

    def metered(self, view: Any) -> None:
        """Where the rates of users and tenants are kept: an array of doubles that all managers have in common."""
        self._meters = memoryview(view).cast("B").cast("d")

    def limits(self, index: int, uid: int, body_limit: int, meters: list[tuple[int, float]]) -> bool:
        """The quotas of one connection: bytes a message, and (slot, messages a second) of its user and its tenant."""
        if (c := self._find(index, uid)) is None:
            return False
        c.body_limit = body_limit
        c.meters = [(slot, 1000 / per_s) for slot, per_s in meters[:2] if slot < len(self._meters) and per_s > 0]
        return True

    def link(self, fd: int) -> None:
        """Attach the connected, nonblocking stream to the message manager; it belongs to the engine."""
        if self._link is not None:
            raise ValueError("there is a link already")
        self._epoll.register(fd, select.EPOLLIN)
        self._link, self._link_interest = socket.socket(fileno=fd), select.EPOLLIN

    def unlink(self) -> None:
        """Let go of the link, as if it were lost; nothing is reported."""
        self._drop_link()

    def forward(self, index: int, uid: int, frame: bytes) -> bool:
        """A frame for the message manager, in the name of a connection; uid 0 is the link itself. False: no link."""
        if self._link is None:
            return False
        if uid:
            if (c := self._find(index, uid)) is None:
                return False
            c.durable = True
        self._to_link(index, uid, frame)
        return True

    def notify(self, frames: bytes) -> int:
        """Whole frames for every live connection that has used the durable road; how many those are."""
        told = [c for c in self._connections.values() if c.durable and self._takes_durable(c)]
        for c in told:
            self._put_durable(c, frames)
        return len(told)

    def divert(self, add: Iterable[bytes], remove: Iterable[bytes]) -> None:
        """Publishes to these names go to the message manager from now on, or no longer."""
        self._names.difference_update(remove)
        self._names.update(add)

    def indices(self) -> list[tuple[int, int, bool]]:
        """(index, uid, live) of every connection held."""
        return [(c.index, c.uid, c.state == LIVE) for c in self._connections.values()]

    def waiting_for(self, index: int) -> tuple[int, int]:
        """(messages, bytes) that wait for one connection."""
        c = self._connections[index]
        return self._count_waiting(c), self._bytes_waiting(c)

    def statistics(self) -> dict[str, int]:
        """Totals since the start, and how things stand."""
        admission = self._admission
        return self._counts | {
            "connections": len(self._connections),
            "stops": admission.stops,
            "one_more": admission.one_more,
            "stopped": int(admission.stopped or self._stuck_ring or self._starving >= 0),
            "queue_counted": self._up.waiting(),
            "queue_private": len(self._overflow),
            "outstanding": self._table.used,
            "open_instructions": len(self._relinquish),
            "blocked": len(self._blocked),
            "link_waiting": len(self._link_out),
            "link_choked": int(self._link_choked),
        }

    def turn(self, timeout_ms: int, now_ms: int | None = None) -> list[Event]:
        """Wait for something to do, at most so long, and do it. Returns what Python has to hear of."""
        self._now = self._time_of(now_ms)
        self._turns += 1
        self._admit(again=self._asked)
        self._asked = False
        self._flush_link()
        self._publish()  # what was pushed since the last turn must not wait with us
        found = self._wait(timeout_ms)
        if now_ms is None:
            self._now = self._time_of(None)
        self._admit(again=True)
        for fd, flags in found:
            if fd == self._wake_fd:
                self._count("wakes")
                try:
                    os.eventfd_read(fd)
                except BlockingIOError:
                    pass
            elif self._link is not None and fd == self._link.fileno():
                if flags & select.EPOLLOUT:
                    self._link_blocked = False
                if flags & ~select.EPOLLOUT:
                    self._receive_link()
            elif (c := self._by_fd.get(fd)) is None:
                self._events.append((fd, "readable", b""))
            else:
                if flags & select.EPOLLOUT:
                    c.write_blocked = False
                    self._touch(c)
                if flags & ~select.EPOLLOUT:
                    self._receive(c, flags)
        if self._link_stuck:
            self._take_link()
        self._rounds()
        self._publish()
        self._flush_link()
        self._drain()
        if self._now - self._swept_ms >= 1000 or self._now < self._swept_ms:
            self._swept_ms = self._now
            self._sweep()
            self._flush_all()
        self._push_overflow()
        self._publish()
        events, self._events = self._events, []
        return events

    # --- Small things ---------------------------------------------------------------------------------------------
    def _time_of(self, now_ms: int | None) -> int:
        return time.monotonic_ns() // 1_000_000 if now_ms is None else now_ms

    def _count(self, name: str, amount: int = 1) -> None:
        self._counts[name] += amount

    def _find(self, index: int, uid: int) -> Connection | None:
        c = self._connections.get(index)
        return c if c is not None and c.uid == uid else None

    def _publish(self) -> None:
        if self._up.publish():
            os.eventfd_write(self._wake_router_fd, 1)

    def _wait(self, timeout_ms: int) -> list[tuple[int, int]]:
        wait = timeout_ms
        if self._ready or self._dirty or self._events:
            wait = 0
        elif self._overflow or self._link_stuck or (self._blocked and not self._admission.stopped):
            # No room in the arena or, in bytes, in the ring: nobody tells us, so look again soon.
            wait = min(wait, 5)
        slept = False
        if wait:
            if self._admission.stopped or self._stuck_ring or self._overflow:
                self._up.want()
                if self._admission.stopped and self._up.waiting() < self._admission.resume_below:
                    wait = 0
            if wait:
                slept = True
                if not self._down.sleep():
                    wait = 0
        found = self._epoll.poll(wait / 1000, 256)
        if slept:
            if not found and wait >= 100 and not self._down.empty():
                # Entries, and nobody woke us. The producer may be between its two steps: give it a moment.
                found = self._epoll.poll(0.02, 256)
                if not found:
                    self._count("safety_tick_finds")
            self._down.awake()
        return found

    def _poll(self, c: Connection) -> None:
        """Tell epoll what this connection waits for, if that has changed."""
        wanted = 0
        if c.masked:
            wanted = select.EPOLLRDHUP if c.masked == 1 else 0
        elif not c.eof or c.state == LINGERING:
            wanted = select.EPOLLIN
        if c.write_blocked:
            wanted |= select.EPOLLOUT
        if wanted == 0 and (c.masked == 3 or (c.eof and c.state != LINGERING)):
            # Nothing is wanted, and a hang-up would be reported over and over.
            if c.interest is not None:
                self._epoll.unregister(c.sock.fileno())
                c.interest = None
        elif c.interest is None:
            self._epoll.register(c.sock.fileno(), wanted)
            c.interest = wanted
        elif wanted != c.interest:
            self._epoll.modify(c.sock.fileno(), wanted)
            c.interest = wanted

    def _touch(self, c: Connection) -> None:
        if not c.dirty:
            c.dirty = True
            self._dirty.append(c)

    def _enlist(self, c: Connection) -> None:
        if c.place == ON_BLOCKED and c.deaf:
            self._blocked.remove(c)
            c.place = IDLE
        if c.place == IDLE:
            c.place = ON_READY
            self._ready.append(c)

    # --- Intake: bytes --------------------------------------------------------------------------------------------
    def _held_up(self) -> bool:
        return self._admission.stopped or self._stuck_ring or self._starving >= 0

    def _receive(self, c: Connection, flags: int) -> None:
        """One recv of a connection that epoll reported."""
        dead = bool(flags & (select.EPOLLHUP | select.EPOLLERR))
        if c.state == LINGERING:
            try:
                if c.sock.recv(READ_BYTES):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            self._close_now(c)
            return
        if c.eof:
            if dead:
                self._broken(c)
            return
        if c.looks and self._look(c):
            return
        ended = flags & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP)
        full = c.state < LIVE and len(c.data) >= EARLY_BYTES
        held_up = c.place != IDLE and (self._held_up() or c.choked or c.slowed)
        if full or (held_up and (not ended or len(c.data) > READ_BYTES - STOPPED_READ)):
            # It has whole frames that may not be taken now: do not read on, but do not poll in vain either. One that
            # has closed is read as far as there is room, since only its end tells whether the last frame is whole.
            c.masked = 3 if dead else 2 if flags & select.EPOLLRDHUP else 1
            self._poll(c)
            return
        if c.place != IDLE and not held_up and len(c.data) >= SMALL_FRAME:
            return
        most = READ_BYTES if c.state == LIVE and not self._held_up() else STOPPED_READ
        if c.frame_left and not c.data:
            most = READ_BYTES
        try:
            data = c.sock.recv(most)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._finished(c)
            return
        c.heard_ms = self._now
        c.pinged = False
        self._count("bytes_in", len(data))
        if c.tls is not None:
            self._decipher(c, data)
        else:
            c.data += data
            self._enlist(c)

    def _look(self, c: Connection) -> bool:
        """What kind of connection is it? True: nothing is to be read now. Until enough has come epoll keeps quiet, so
        being woken with less than that means that no more will come."""
        try:
            first = c.sock.recv(HELLO_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            first = b""
        kind, wanted = Hello.RUBBISH, 0
        if first and len(first) >= c.wanted:
            kind, wanted = look(first, tls=self._bounds.tls)
        if wanted or c.wanted:
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, wanted))
            c.wanted = wanted
        if kind is Hello.MORE:
            return True
        c.looks = False
        if kind is not Hello.HTTP and kind is not Hello.TLS_HTTP:
            return False
        c.state, c.masked = SECURING, 3
        self._poll(c)
        self._events.append((c.index, "http", b"P" if kind is Hello.HTTP else b"T"))
        return True

    def _decipher(self, c: Connection, data: bytes) -> None:
        """Ciphertext in, plain input and handshake answers out: one call of the filter."""
        assert c.tls is not None
        try:
            plain, answer = c.tls.receive(data)
        except Exception:
            self._cut(c, "tls", b"", deaf=True)
            return
        if answer:
            c.cipher += answer
            self._touch(c)
        if plain:
            c.data += plain
            self._enlist(c)

    def _finished(self, c: Connection) -> None:
        """Nothing more will come: what is here is still taken, then the connection is given up.

        What waits for it is given up at once: it could hold the very room that its last messages need.
        """
        c.eof = True
        c.masked = 0
        if c.place == ON_BLOCKED:
            self._blocked.remove(c)
            c.place = IDLE
        if not c.linger:
            self._broken(c)
        self._poll(c)
        self._enlist(c)

    # --- Intake: rounds -------------------------------------------------------------------------------------------
    def _admit(self, *, again: bool) -> None:
        """May reading go on? If so, or to try `again` what found no room, put the blocked connections back in line."""
        self._push_overflow()
        if self._admission.on_length(self._up.waiting()):
            self._up.unwant()
            again = True
        if again:
            self._stuck_ring = False
            if not self._admission.stopped:
                for c in self._blocked:
                    c.place = ON_READY
                self._ready += self._blocked
                self._blocked = []

    def _may_take(self, c: Connection, *, stores: bool) -> bool:
        """May one more entry of this connection be pushed? What still has to be stored waits for who starves."""
        if stores and self._starving >= 0 and self._starving != c.index:
            return False
        if self._stuck_ring or self._overflow:
            return False
        return self._admission.may_take(c.index, self._up.waiting())

    def _rounds(self) -> None:
        """Rounds over all connections with whole frames, until there are none, a limit is met or others may be read."""
        total = 0
        while self._ready and total < PASS_MESSAGES:
            turn, self._ready = self._ready, []
            first = self._rotation % len(turn)
            self._rotation += 1
            before = self._counts["messages_in"]
            kept = {c.index for c in turn[first:] + turn[:first] if self._visit(c)}
            self._ready = [c for c in turn if c.index in kept] + self._ready
            took = self._counts["messages_in"] - before
            if took:
                # The compiled twin sets a flag on the last message instead (SRV-96 allows both).
                self._push_uncounted(layout.UP_ROUND, 0, 0, b"")
                self._count("rounds")
            total += max(took, 1)

    def _visit(self, c: Connection) -> bool:
        """Take what one connection may have in this round; True when there may be more."""
        taken = frames = 0
        while True:
            result = self._step(c)
            if result == TOOK:
                taken += 1
                if taken >= self._bounds.messages_per_round:
                    return True
            elif result == FREE:
                frames += 1
                if frames >= FREE_FRAMES:
                    return True
            elif result == BLOCKED:
                c.place = ON_BLOCKED
                self._blocked.append(c)
                return False
            else:
                c.place = IDLE
                c.overdraft = False
                if c.eof:
                    self._depart(c)
                elif c.masked and not (c.state < LIVE and len(c.data) >= EARLY_BYTES):
                    c.masked = 0
                    self._poll(c)
                return False

    def _step(self, c: Connection) -> int:
        """Deal with one frame of a connection, as far as it is there and may be taken."""
        if c.deaf:
            c.data.clear()
            return NONE
        if c.skip:
            n = min(c.skip, len(c.data))
            del c.data[:n]
            c.skip -= n
            if c.skip:
                return NONE
        if c.handle:
            if c.frame_left:
                n = min(c.frame_left, len(c.data))
                self._own.write(c.handle, bytes(c.data[:n]), c.body_got)
                del c.data[:n]
                c.body_got += n
                c.frame_left -= n
                if c.frame_left:
                    return NONE
            if c.body_got == c.body_total:
                return self._take_streamed(c)
        if c.state == PREFACE:
            return self._greet(c)
        if len(c.data) < 32 or c.state not in (LIVE, CONFIRMED):
            return NONE
        length, kind, flags, topic, section, number, correlation, _ = FIXED.unpack_from(c.data)
        head = 32 + topic + section
        if length < 32:
            return self._refuse(c, "bad-request", "A frame is at least 32 bytes long.")
        if length > self._bounds.frame_max:
            return self._refuse(c, "frame-too-large")
        if head > length:
            return self._refuse(c, "bad-request", "Topic and headers are longer than their frame.")
        whole = len(c.data) >= length
        if c.state == CONFIRMED:
            if kind != CONNECT or length > EARLY_BYTES:
                return self._refuse(c, "bad-request", "The first frame has to be a CONNECT of at most 16 KiB.")
            if not whole:
                return NONE
            c.state = CONNECTING
            self._events.append((c.index, "connect", bytes(c.data[head:length])))
            del c.data[:length]
            return FREE
        if head > self._bounds.header_max:
            return self._skip_frame(c, length, "header-too-large", number, correlation)
        if PUBLISH <= kind <= SEND:
            if c.handle:
                return self._refuse(c, "bad-request", "A message may not begin before the last one is complete.")
            c.drop_fragments = False
            if self._is_too_fast(c):
                return BLOCKED
            if kind == PUBLISH and len(c.data) >= 32 + topic and self._is_diverted(c, bytes(c.data[32 : 32 + topic])):
                return self._divert_publish(c, length, head, flags, number, correlation)
            if flags & FRAGMENTED:
                return self._begin(c, length, head, number, correlation, fragmented=True)
            if whole:
                return self._take_message(c, length, head, number, correlation)
            if length <= SMALL_FRAME:
                return NONE
            return self._begin(c, length, head, number, correlation, fragmented=False)
        if KIND_COMMAND <= kind <= DURABLE_LAST and not c.handle:
            return self._take_durable(c, kind, length, number, correlation)
        if kind == FRAGMENT:
            if c.drop_fragments:
                c.skip = length
                return FREE
            if not c.handle or length - head > c.body_total - c.body_got or length == head:
                return self._refuse(c, "bad-request", "A fragment that belongs to no message, or is too long.")
            if len(c.data) < head:
                return NONE
            del c.data[:head]
            c.frame_left = length - head
            return FREE
        if kind in (PING, PONG, CREDIT):
            if head != length:
                return self._refuse(c, "bad-request", "This frame has no body.")
            if not whole:
                return NONE
            if kind == PING:
                self._put_plain(c, pong_frame(correlation), ordered=False)
            elif kind == CREDIT and not c.unlimited:
                c.credit += number
                if c.waiting:
                    self._touch(c)
            del c.data[:length]
            return FREE
        if c.handle:
            return self._refuse(c, "bad-request", "Only PING, PONG and CREDIT may come between fragments.")
        if SUBSCRIBE <= kind <= MOVE:
            if length > self._bounds.header_max:
                return self._refuse(c, "bad-request", "A control frame is at most as long as a header may be.")
            if not whole:
                return NONE
            if kind == CLOSE:
                c.eof = c.deaf = c.linger = True
                self._poll(c)
                return NONE
            if topic == 0 and kind in (SUBSCRIBE, REGISTER):
                return self._refuse(c, "bad-request", "This frame needs a topic.")
            if not self._may_take(c, stores=False) or not self._push_counted(
                c, layout.UP_CONTROL, 0, 0, bytes(c.data[:length])
            ):
                return BLOCKED
            del c.data[:length]
            return TOOK
        return self._refuse(c, "bad-request", "A frame of this kind makes no sense here.")

    def _greet(self, c: Connection) -> int:
        """The first bytes: a TLS ClientHello, a preface, or somebody who wants another server."""
        first = bytes(c.data[:8])
        if not first:
            return NONE
        if first[0] == 0x16 and self._bounds.tls and c.tls is None:
            c.state = SECURING
            self._events.append((c.index, "tls", b""))
            return NONE
        if len(first) < 8 and b"FLD\n".startswith(first[:4]):
            return NONE
        answer = preface_answer(first.ljust(8, b"\0"))
        if answer is not None:
            self._count("refused")
            self._cut(c, *answer, deaf=True)
            return NONE
        del c.data[:8]
        c.state = ATTACHING
        self._events.append((c.index, "preface", b""))
        return NONE

    def _push_counted(self, c: Connection, kind: int, handle: int, body_length: int, content: bytes) -> bool:
        payload = UP.pack(c.uid, handle, c.index, body_length, len(content), 0) + content
        if not self._up.push(kind, layout.FLAG_COUNTED, payload, self._keep_free):
            self._stuck_ring = True
            return False
        if handle:
            # Before the entry is published; until then a successor frees the slot.
            size = layout.round_up(layout.ENTRY_HEADER_BYTES + len(payload), layout.ENTRY_ALIGN)
            self._own.refer(handle, self._up.tail - size)
        self._count("messages_in")
        self._admission.taken(c.index)
        if self._starving == c.index:
            self._starving = -1
        return True

    def _alloc(self, c: Connection, body_length: int) -> int:
        handle: int = self._own.alloc(body_length, c.index, c.uid)
        if not handle:
            if self._starving < 0:
                self._count("starved")
            self._starving = c.index
        return handle

    def _take_message(self, c: Connection, length: int, head: int, number: int, correlation: int) -> int:
        if length - head > self._body_max:
            return self._skip_frame(c, length, "body-too-large", number, correlation)
        if c.body_limit and length - head > c.body_limit:
            return self._over_quota(c, length, number, correlation)
        if not self._may_take(c, stores=True):
            return BLOCKED
        handle = self._alloc(c, length - head)
        if not handle:
            return BLOCKED
        self._own.write(handle, bytes(c.data[head:length]))
        content = bytearray(c.data[:head])
        content[5] &= ~(IDENTITY | FRAGMENTED)
        if not self._push_counted(c, layout.UP_MESSAGE, handle, length - head, bytes(content)):
            self._own.abandon(handle)
            return BLOCKED
        del c.data[:length]
        self._charge(c, 1)
        return TOOK

    def _begin(self, c: Connection, length: int, head: int, number: int, correlation: int, *, fragmented: bool) -> int:
        """A body that arrives over several reads: its slot is taken for the whole of it at once."""
        total, before = length - head, head
        if fragmented:
            if total < 8:
                return self._refuse(c, "bad-request", "A fragmented message begins its body with the total length.")
            before += 8
        if len(c.data) < before:
            return NONE
        if fragmented:
            (total,) = U64.unpack_from(c.data, head)
            if total < length - before or total == 0:
                return self._refuse(c, "bad-request", "The first piece is longer than the whole.")
        if total > self._body_max:
            return self._skip_frame(c, length, "body-too-large", number, correlation)
        if c.body_limit and total > c.body_limit:
            return self._over_quota(c, length, number, correlation)
        if c.eof and len(c.data) < length:
            return NONE  # the rest will never come
        if not self._may_take(c, stores=True):
            return BLOCKED
        handle = self._alloc(c, total)
        if not handle:
            return BLOCKED
        if self._starving == c.index:
            self._starving = -1
        content = bytearray(c.data[:head])
        content[5] &= ~(IDENTITY | FRAGMENTED)
        struct.pack_into("<I", content, 0, head + total)
        c.handle, c.head = handle, bytes(content)
        c.body_total, c.body_got, c.frame_left = total, 0, length - before
        del c.data[:before]
        return FREE

    def _take_streamed(self, c: Connection) -> int:
        if not self._may_take(c, stores=False) or not self._push_counted(
            c, layout.UP_MESSAGE, c.handle, c.body_total, c.head
        ):
            return BLOCKED
        c.handle, c.head = 0, b""
        self._charge(c, 1)
        return TOOK

    # --- The durable road -----------------------------------------------------------------------------------------
    def _is_diverted(self, c: Connection, topic: bytes) -> bool:
        """Is this, or one of these, a name of the message manager?"""
        return any(self._is_named(c, name) for name in topic.split(SEPARATOR))

    def _is_named(self, c: Connection, name: bytes) -> bool:
        """A tenant's administrators write to `_ADMIN` too: whose commands those are is found out by Python."""
        return c.prefix + name in self._names or (bool(c.prefix) and name == ADMIN)

    def _is_too_fast(self, c: Connection) -> bool:
        """Has its user, or its tenant, sent so much that it has to wait? A second's worth may come at once."""
        too_fast = any(self._meters[slot] > self._now + BURST_MS for slot, _ in c.meters)
        if too_fast and not c.slowed:
            self._count("slowed")
        c.slowed = too_fast
        return too_fast

    def _charge(self, c: Connection, messages: int) -> None:
        for slot, cost in c.meters:
            self._meters[slot] = max(self._meters[slot], self._now) + messages * cost

    def _charge_store(self, c: Connection, frame: bytes) -> None:
        """A STORE says at the beginning of its body how many messages it brings."""
        _, _, _, topic, section, *_ = FIXED.unpack_from(frame)
        head = 32 + topic + section
        self._charge(c, min(struct.unpack_from("<I", frame, head)[0], 65536) if head + 4 <= len(frame) else 1)

    def _over_quota(self, c: Connection, length: int, number: int, correlation: int) -> int:
        self._count("over_quota")
        return self._skip_frame(c, length, "quota-exceeded", number, correlation, OVER_QUOTA % c.body_limit)

    def _is_held_up(self, c: Connection) -> bool:
        """Must its next frame for the message manager wait? For Python, which has the one before, or for the link."""
        if c.awaits == self._turns:
            self._asked = True
            return True
        if not self._link_choked and len(self._link_out) > LINK_HIGH:
            self._link_choked = True
            self._count("link_chokes")
        c.choked = self._link_choked
        return c.choked

    def _take_durable(self, c: Connection, kind: int, length: int, number: int, correlation: int) -> int:
        """A frame for the message manager: copied, unread; only a COMMAND is Python's business first."""
        if kind > KIND_MORE or (kind == KIND_COMMAND and length > COMMAND_MAX):
            text = "There is no such command, or it is longer than 64 KiB."
            return self._skip_frame(c, length, "bad-request", number, correlation, text)
        if self._is_held_up(c) or (kind == KIND_STORE and self._is_too_fast(c)):
            return BLOCKED
        if len(c.data) < length:
            return NONE
        frame = bytes(c.data[:length])
        del c.data[:length]
        if kind == KIND_STORE:
            self._charge_store(c, frame)
        c.durable = True
        if kind == KIND_COMMAND:
            self._ask(c, "command", frame)
        elif self._link is None:
            self._count("link_dropped")  # its client was told, and sends again when the link is back
        else:
            self._count("durable_in")
            self._to_link(c.index, c.uid, frame)
        return TOOK

    def _ask(self, c: Connection, what: str, frame: bytes) -> None:
        """Python decides; what this connection sends to the message manager behind it waits for that."""
        c.awaits = self._turns
        self._events.append((c.index, what, frame))

    def _divert_publish(self, c: Connection, length: int, head: int, flags: int, number: int, correlation: int) -> int:
        """A transient publish to a name of the message manager."""
        if flags & FRAGMENTED:
            text = "Send a body of this size to the destination itself, not to its topic."
            return self._skip_frame(c, length, "body-too-large", number, correlation, text)
        if length - head > self._body_max:
            return self._skip_frame(c, length, "body-too-large", number, correlation)
        if c.body_limit and length - head > c.body_limit:
            return self._over_quota(c, length, number, correlation)
        if self._is_held_up(c):
            return BLOCKED
        if len(c.data) < length:
            return NONE
        frame = bytes(c.data[:length])
        (topic,) = struct.unpack_from("<H", frame, 6)
        self._count("diverted")
        self._charge(c, 1)
        kept = []
        for name in frame[32 : 32 + topic].split(SEPARATOR):
            if self._is_named(c, name):
                self._send_named(c, frame, c.prefix + name)
            else:
                kept.append(name)
        if kept:  # what is for the router only stays, with those names alone
            others = SEPARATOR.join(kept)
            shorter = topic - len(others)
            fixed = struct.pack("<I", length - shorter) + frame[4:6] + struct.pack("<H", len(others)) + frame[8:32]
            c.data[: 32 + topic] = fixed + others
        else:
            del c.data[:length]
        return TOOK

    def _send_named(self, c: Connection, frame: bytes, name: bytes) -> None:
        """The frame with this one topic, its sender's user among the headers."""
        _, kind, flags, topic, section, number, correlation, _ = FIXED.unpack_from(frame)
        if self._link is None:
            self._count("link_dropped")
            self._put_plain(c, error_frame("no-message-manager", "", number, correlation), ordered=False)
            return
        flags = flags & ~(IDENTITY | FRAGMENTED) | (IDENTITY if c.pair else 0)
        size = len(frame) - topic + len(name) + len(c.pair)
        fixed = FIXED.pack(size, kind, flags, len(name), section + len(c.pair), number, correlation, c.uid)
        named = fixed + name + c.pair + frame[32 + topic :]
        c.durable = True
        if (c.restricted or name.startswith(b"_")) and name not in c.cleared:
            self._ask(c, "publish", named)
        else:
            self._count("durable_in")
            self._to_link(c.index, c.uid, named)

    # --- The link -------------------------------------------------------------------------------------------------
    def _to_link(self, index: int, uid: int, frame: bytes) -> None:
        self._link_out += ENVELOPE.pack(ENVELOPE.size + len(frame), index, uid) + frame

    def _flush_link(self) -> None:
        """One send of everything gathered for the message manager."""
        if self._link is None or not self._link_out or self._link_blocked:
            return
        try:
            n = self._link.send(self._link_out)
        except BlockingIOError:
            n = 0
        except OSError:
            self._lose_link()
            return
        del self._link_out[:n]
        self._link_blocked = bool(self._link_out)
        if len(self._link_out) < LINK_LOW:
            self._link_choked = False
        self._poll_link()

    def _poll_link(self) -> None:
        if self._link is None:
            return
        wanted = (0 if self._link_stuck else select.EPOLLIN) | (select.EPOLLOUT if self._link_blocked else 0)
        if wanted != self._link_interest:
            self._epoll.modify(self._link.fileno(), wanted)
            self._link_interest = wanted

    def _receive_link(self) -> None:
        """One recv from the message manager."""
        assert self._link is not None
        if len(self._link_in) > LINK_FRAME_MAX + LINK_READ:
            return
        try:
            data = self._link.recv(LINK_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_link()
            return
        self._link_in += data
        self._take_link()

    def _take_link(self) -> None:
        """Hand on every whole frame from the message manager, unless a broadcast has to wait for room."""
        self._link_stuck = False
        pushed = False
        while len(self._link_in) >= ENVELOPE.size + 32:
            total, index, uid = ENVELOPE.unpack_from(self._link_in)
            length, kind, _, topic, section, *_ = FIXED.unpack_from(self._link_in, ENVELOPE.size)
            if total != ENVELOPE.size + length or not 32 <= length <= LINK_FRAME_MAX or 32 + topic + section > length:
                self._lose_link()  # not our language: begin anew
                break
            if len(self._link_in) < total:
                break
            frame = bytes(self._link_in[ENVELOPE.size : total])
            if uid:
                c = self._find(index, uid)
                if c is None or not self._takes_durable(c):
                    self._count("link_strays")
                else:
                    c.durable = True
                    self._count("durable_out")
                    if c.prefix and kind in (KIND_ANSWER, KIND_NOTICE, ERROR):
                        frame = without(frame, c.prefix)
                    self._put_durable(c, frame)
            elif kind == PUBLISH:
                before = self._counts["messages_in"]
                if not self._push_broadcast(frame, 32 + topic + section):
                    self._link_stuck = True
                    break
                pushed = pushed or self._counts["messages_in"] != before
            else:
                self._events.append((-1, "link", frame))
            del self._link_in[:total]
        if pushed:
            self._push_uncounted(layout.UP_ROUND, 0, 0, b"")
            self._count("rounds")
        self._poll_link()

    def _push_broadcast(self, frame: bytes, head: int) -> bool:
        """A message of a topic for the transient subscribers; False: there is no room now."""
        body = len(frame) - head
        if body > self._body_max or head > self._bounds.header_max:
            self._count("link_strays")
            return True
        if self._held_up() or self._overflow or self._up.waiting() >= self._admission.limit:
            return False
        handle: int = self._own.alloc(body, 0, 0)
        if not handle:
            return False
        self._own.write(handle, frame[head:])
        content = bytearray(frame[:head])
        content[5] &= ~FRAGMENTED
        payload = UP.pack(0, handle, 0, body, head, 0) + content
        if not self._up.push(layout.UP_MESSAGE, layout.FLAG_COUNTED, payload, self._keep_free):
            self._own.abandon(handle)
            return False
        size = layout.round_up(layout.ENTRY_HEADER_BYTES + len(payload), layout.ENTRY_ALIGN)
        self._own.refer(handle, self._up.tail - size)
        self._count("messages_in")
        return True

    def _takes_durable(self, c: Connection) -> bool:
        return c.state == LIVE and not (c.hurt or c.linger or c.detaching)

    def _put_durable(self, c: Connection, data: bytes) -> None:
        """Frames of the message manager: in order among themselves, not held up by credit for transient messages."""
        free = not c.more and not c.emitting and (not c.waiting or c.out_of_credit)
        if free and self._fits(c, len(data)):
            c.out += data
            c.queued += len(data)
            self._touch(c)
        elif not c.hurt:
            is_bulk = data[4] == KIND_COLUMNS
            if len(c.more) > self._bounds.slow_client_bytes + (BULK_SLACK if is_bulk else 0):
                self._too_slow(c)
                return
            c.more += data
            self._touch(c)
            if is_bulk and len(c.more) > FULL_BYTES and not c.full:
                c.full = True
                self._to_link(c.index, c.uid, FULL)

    def _lose_link(self) -> None:
        """It is gone: Python connects anew."""
        self._drop_link()
        self._events.append((-1, "link-lost", b""))

    def _drop_link(self) -> None:
        if self._link is not None:
            self._epoll.unregister(self._link.fileno())
            self._link.close()
            self._link = None
            self._link_in.clear()
            self._link_out.clear()
            self._link_blocked = self._link_choked = self._link_stuck = False
            for c in self._connections.values():
                c.full = False  # the next message manager knows nothing of it

    def _skip_frame(self, c: Connection, length: int, code: str, number: int, correlation: int, text: str = "") -> int:
        """Tell the client what was wrong with one frame; the connection stays."""
        self._count("refused")
        self._put_plain(c, error_frame(code, text, number, correlation), ordered=False)
        c.drop_fragments = True
        c.skip = length
        return FREE

    def _refuse(self, c: Connection, code: str, text: str = "") -> int:
        """The client broke the rules: say which, and close."""
        self._count("refused")
        self._cut(c, code, error_frame(code, text), deaf=True)
        return NONE

    def _push_uncounted(self, kind: int, uid: int, index: int, content: bytes) -> None:
        if self._overflow or not self._push_now(kind, uid, index, content):
            self._overflow.append((kind, uid, index, content))

    def _push_now(self, kind: int, uid: int, index: int, content: bytes) -> bool:
        payload = UP.pack(uid, 0, index, 0, len(content), 0) + content
        return bool(self._up.push(kind, 0, payload))

    def _push_overflow(self) -> None:
        while self._overflow and self._push_now(*self._overflow[0]):
            self._overflow.popleft()

    # --- Delivery -------------------------------------------------------------------------------------------------
    def _drain(self) -> None:
        """Carry out what the router ordered, send it, account for it, and only then give the entries back."""
        entries = 0
        while entries < DRAIN_ENTRIES and (entry := self._down.next()) is not None:
            self._instruct(entry[0], entry[2])
            self._down.advance()
            entries += 1
        self._flush_all()
        if entries:
            self._count("instructions", entries)
            self._record_batch()
            if self._down.publish(1 << 62):
                os.eventfd_write(self._wake_router_fd, 1)

    def _record_batch(self) -> None:
        """What could not be finished at once goes to the outstanding table, where a successor finds it."""
        while unrecorded := self._relinquish.unrecorded():
            instruction, finish = unrecorded[0]
            if self._table.full:
                self._cut_slowest()
                continue
            if finish.limit:
                self._arenas[finish.handle >> 56].set_limit(finish.handle, finish.limit)
            self._records[instruction] = self._table.add(finish)
            self._relinquish.recorded(instruction)

    def _cut_slowest(self) -> None:
        worst = max(self._connections.values(), key=self._count_waiting)
        assert self._count_waiting(worst), "the outstanding table is full although no client waits"
        self._too_slow(worst)
        self._drop_output(worst)

    def _share_done(self, instruction: int) -> None:
        """One recipient less; the last one finishes the instruction."""
        finish = self._relinquish.share_done(instruction)
        if finish is not None:
            self._finish(finish)
            if instruction in self._records:
                self._table.remove(self._records.pop(instruction))

    def _finish(self, finish: Finish) -> None:
        if self._arenas[finish.handle >> 56].finish(finish.handle, finish.touch, finish.limit) == FAULT:
            self._count("accounting_faults")

    def _instruct(self, kind: int, payload: bytes) -> None:
        handle, touch, limit, _, recipients, content_length, body_length = DOWN.unpack_from(payload)
        first = DOWN.size
        words = [U64.unpack_from(payload, first + 8 * k)[0] for k in range(recipients)]
        content = payload[first + 8 * recipients : first + 8 * recipients + content_length]
        if kind in (layout.DOWN_PLAIN, layout.DOWN_DETACH):
            for word in words:
                if (c := self._recipient(word)) is not None:
                    self._plain(c, content, last=kind == layout.DOWN_DETACH)
            return
        arena = self._arenas.get(handle >> 56)
        if kind not in (layout.DOWN_DELIVER, layout.DOWN_DELETE) or arena is None:
            self._count("accounting_faults")
            return
        if kind == layout.DOWN_DELETE or not words:
            self._finish(Finish(handle, touch, limit))
            return
        if content_length < 32:
            self._count("accounting_faults")
            self._finish(Finish(handle, touch, limit))
            return
        body = arena.read(handle)
        if body is None:
            self._count("accounting_faults")
            return
        cleared = bytearray(content)
        cleared[5] &= ~FRAGMENTED
        instruction = self._relinquish.begin(handle, touch, limit)
        for word in words:
            c = self._recipient(word)
            if c is None or c.state != LIVE or c.hurt or c.detaching or c.linger:
                self._undelivered(content, word >> 32, c.uid if c is not None else word & 0xFFFFFFFF)
                continue
            self._relinquish.add_recipient(instruction)
            self._deliver(c, instruction, bytes(cleared), handle, body[:body_length])
        self._share_done(instruction)

    def _recipient(self, word: int) -> Connection | None:
        c = self._connections.get(word >> 32)
        return None if c is None or c.uid & 0xFFFFFFFF != word & 0xFFFFFFFF or c.state >= CLOSING else c

    def _undelivered(self, head: bytes, index: int, uid: int) -> None:
        """A request, or a one-way message whose sender wants to know, was not handed over: the router hears of it."""
        self._count("lost")
        wants_to_know = head[4] == SEND and head[16:24] != bytes(8)
        if head[4] in (REQUEST, CONVERSE, FANOUT) or wants_to_know:
            self._count("undelivered")
            self._push_uncounted(layout.UP_UNDELIVERED, uid, index, head)

    def _plain(self, c: Connection, content: bytes, *, last: bool) -> None:
        """Frames the router made: CONFIRM and WELCOME move the handshake on."""
        at, ordered = 0, last
        while at + 32 <= len(content):
            size, kind = struct.unpack_from("<IB", content, at)
            if kind == CONFIRM and c.state == ATTACHING:
                c.state, c.since_ms = CONFIRMED, self._now
                self._awaited(c)
            elif kind == WELCOME and c.state == CONNECTING:
                c.state, c.heard_ms = LIVE, self._now
                self._count("live")
                self._events.append((c.index, "live", b""))
                self._awaited(c)
            elif kind == MOVED:
                ordered = True
            if size < 32:
                break
            at += size
        if last:
            c.detaching = c.deaf = True
            c.since_ms = self._now
        self._put_plain(c, content, ordered=ordered)

    def _awaited(self, c: Connection) -> None:
        """The handshake went on: look at what was sent ahead of it."""
        if c.data:
            self._enlist(c)
        if c.masked:
            c.masked = 0
            self._poll(c)

    def _fits(self, c: Connection, length: int) -> bool:
        """Room for so many bytes in the output, if need be after sending what is there."""
        if len(c.out) + length <= OUT_BYTES:
            return True
        if length <= OUT_BYTES and not c.write_blocked and c.tls is None:
            self._flush(c, settle=False)
        return not c.hurt and len(c.out) + length <= OUT_BYTES

    def _deliver(self, c: Connection, instruction: int, head: bytes, handle: int, body: bytes) -> None:
        """Hand one delivery to one connection: into its buffer, or behind what waits there already."""
        total = len(head) + len(body)
        self._count("deliveries")
        if not c.waiting and not c.more and len(body) <= PIECE and c.has_credit and self._fits(c, total):
            c.out += struct.pack("<I", total) + head[4:] + body
            c.queued += total
            c.credit -= 1
            c.marks.append(Mark(c.queued, instruction, total))
            self._touch(c)
            bounds = self._bounds
            if c.write_blocked and (
                len(c.marks) > bounds.slow_client_messages or len(c.out) > bounds.slow_client_bytes
            ):
                self._too_slow(c)
        elif c.hurt:
            self._share_done(instruction)
            self._undelivered(head, c.index, c.uid)
        else:
            self._queue(c, Waiting(head, len(body), handle, instruction))

    def _queue(self, c: Connection, waiting: Waiting) -> None:
        c.waiting.append(waiting)
        c.waiting_bytes += waiting.size
        self._touch(c)
        count = self._count_waiting(c)
        if count > self._bounds.slow_client_messages or (
            self._bytes_waiting(c) > self._bounds.slow_client_bytes and count > 1
        ):
            self._too_slow(c)

    def _count_waiting(self, c: Connection) -> int:
        return len(c.waiting) + len(c.marks)

    def _bytes_waiting(self, c: Connection) -> int:
        return c.waiting_bytes - c.emitted + len(c.more) + len(c.out)

    def _too_slow(self, c: Connection) -> None:
        """It does not read: cut it off, with the reason if that can still be sent."""
        if not c.hurt and not (c.eof and c.deaf):
            self._count("slow_clients")
            self._cut(c, "slow-client", error_frame("slow-client"), deaf=False)

    def _put_plain(self, c: Connection, data: bytes, *, ordered: bool) -> None:
        """Frames without accounting. Out of order means: in front of what waits for credit, never inside a frame."""
        if c.hurt or c.linger or c.state >= CLOSING:
            return
        if not c.more_left and (not c.waiting or (not ordered and c.out_of_credit)) and self._fits(c, len(data)):
            c.out += data
            c.queued += len(data)
            self._touch(c)
        elif not c.hurt:
            self._queue(c, Waiting(b"", len(data), plain=data))

    def _emit(self, c: Connection) -> None:
        """Move what waits into the output buffer, piece by piece if it is large, as far as credit and room go."""
        while c.waiting or c.more:
            if c.more_left or (not c.emitting and c.more and (c.more_first or not c.waiting)):
                if not self._emit_more(c):
                    return
                continue
            w = c.waiting[0]
            pieces = w.body_length > PIECE and bool(w.instruction)
            if not c.emitting:
                if c.out_of_credit and c.more:
                    c.more_first = True
                    continue
                if c.out_of_credit or len(c.out) + len(w.head) + 8 > OUT_BYTES:
                    return
                head = w.head
                if w.instruction:
                    c.credit -= 1
                    if pieces:
                        flags = bytes([w.head[5] | FRAGMENTED])
                        fixed = struct.pack("<I", len(w.head) + 8 + PIECE) + w.head[4:5] + flags
                        head = fixed + w.head[6:] + U64.pack(w.body_length)
                    else:
                        head = struct.pack("<I", w.size) + w.head[4:]
                c.out += head
                c.queued += len(head)
                c.emitting, c.emitted = True, 0
            while c.emitted < w.body_length:
                room = OUT_BYTES - len(c.out)
                if room < 64:
                    return
                body = self._arenas[w.handle >> 56].read(w.handle) if w.instruction else w.plain
                assert body is not None, "a message is freed only after its last touch"
                left, into = w.body_length - c.emitted, c.emitted % PIECE
                if pieces and into == 0 and c.emitted:
                    c.out += FIXED.pack(32 + min(left, PIECE), FRAGMENT, 0, 0, 0, 0, 0, 0)
                    c.queued += 32
                    room -= 32
                n = min(left, room, PIECE - into if pieces else left)
                c.out += body[c.emitted : c.emitted + n]
                c.queued += n
                c.emitted += n
            if w.instruction:
                c.marks.append(Mark(c.queued, w.instruction, w.size))
            c.emitting, c.emitted = False, 0
            c.more_first = True
            c.waiting_bytes -= w.size
            c.waiting.popleft()

    def _emit_more(self, c: Connection) -> bool:
        """Go on with one frame of the message manager; False: the output is full."""
        room = OUT_BYTES - len(c.out)
        if room < 64:
            return False
        if not c.more_left:
            (c.more_left,) = struct.unpack_from("<I", c.more)
        n = min(room, c.more_left)
        c.out += c.more[:n]
        c.queued += n
        del c.more[:n]
        c.more_left -= n
        if not c.more_left:
            c.more_first = False  # transient deliveries take turns with these
        return not c.more_left

    def _flush_all(self) -> None:
        """One send for everything gathered, for each connection that has something."""
        for c in self._dirty:  # more may be added on the way
            c.dirty = False
            if c.sock.fileno() >= 0:
                self._flush(c, settle=True)
        self._dirty = []

    def _flush(self, c: Connection, *, settle: bool) -> None:
        """Send. With `settle` the connection may end here, if its end was waiting for this."""
        sends = 0
        while not c.hurt and not c.write_blocked:
            if not c.cipher:
                if (c.waiting or c.more) and len(c.out) < OUT_BYTES // 2:
                    self._emit(c)
                if c.tls is not None and c.out:
                    try:
                        c.cipher, c.covers = c.tls.send(bytes(c.out)), len(c.out)
                    except Exception:
                        self._broken(c)
                        break
                    if not c.cipher:
                        break  # the handshake is not over
            pending = c.cipher if c.tls is not None else c.out
            if not pending:
                break
            if sends == SENDS:
                c.write_blocked = True  # the others first; epoll brings us back
                break
            sends += 1
            try:
                n = c.sock.send(pending)
            except BlockingIOError:
                c.write_blocked = True
                break
            except OSError:
                self._broken(c)
                break
            if n < len(pending):
                c.write_blocked = True
            if c.tls is None:
                self._accepted(c, n)
            else:
                c.cipher = c.cipher[n:]
                if not c.cipher:
                    self._accepted(c, c.covers)
                    c.covers = 0
        if c.full and len(c.more) <= ROOM_BYTES:
            c.full = False
            if self._link is not None:
                self._to_link(c.index, c.uid, ROOM)
        if settle:
            self._settle(c)

    def _accepted(self, c: Connection, n: int) -> None:
        """So many bytes were handed to the connection: the deliveries that end in them are done."""
        c.sent_ms = self._now
        del c.out[:n]
        c.sent += n
        self._count("bytes_out", n)
        while c.marks and c.marks[0].end <= c.sent:
            self._share_done(c.marks.popleft().instruction)

    def _settle(self, c: Connection) -> None:
        """After sending: go on with an end that waited for the last byte."""
        if c.hurt and c.state == CLOSING:
            self._close_now(c)
            return
        if not c.out and not c.waiting and not c.more and not c.cipher:
            if c.detaching and c.state < CLOSING:
                c.eof = c.deaf = c.linger = True
                self._enlist(c)
            elif c.state == CLOSING:
                self._wait_for_end(c)
                return
        self._poll(c)

    def _wait_for_end(self, c: Connection) -> None:
        """All is sent. Closing now, with input unread, could destroy it on its way: let the client close first."""
        try:
            c.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        c.state, c.since_ms = LINGERING, self._now
        c.masked, c.write_blocked = 0, False
        self._poll(c)

    # --- The end of a connection ----------------------------------------------------------------------------------
    def _cut(self, c: Connection, reason: str, frames: bytes, *, deaf: bool) -> None:
        """End it from our side. What waits unsent is given up; `frames` are the last word if there is room for it."""
        if c.state >= CLOSING or (c.linger and c.eof):
            return
        self._reasons.setdefault(c.index, reason)
        self._drop_waiting(c)
        if frames and not c.hurt:
            if not c.emitting and len(c.out) + len(frames) <= OUT_BYTES:
                c.out += frames
                c.queued += len(frames)
            self._touch(c)
        c.linger = c.eof = True
        c.since_ms = self._now
        c.deaf = c.deaf or deaf
        c.masked = 0
        self._poll(c)
        self._enlist(c)

    def _broken(self, c: Connection) -> None:
        """Writing is no longer possible."""
        if c.hurt:
            return
        c.hurt = True
        c.write_blocked = c.linger = False
        if c.state >= CLOSING:
            self._touch(c)
            return
        if not c.eof:
            # There may be input that came before the break: read on for a moment, its end is near.
            c.masked, c.since_ms = 0, self._now
        self._drop_waiting(c)
        self._drop_output(c)
        if c.eof:
            self._enlist(c)
        self._poll(c)

    def _drop_waiting(self, c: Connection) -> None:
        """Deliveries not begun: requests among them are reported, all are counted as finished."""
        begun = c.emitting
        half = c.emitting or c.more_left > 0
        c.more.clear()
        c.more_left = 0
        while c.waiting:
            w = c.waiting.popleft()
            if w.instruction:
                c.lost += 1
                if begun:
                    self._count("lost")
                else:
                    self._undelivered(w.head, c.index, c.uid)
                self._share_done(w.instruction)
            begun = False
        c.emitting, c.emitted = half, 0  # nothing may be put behind half a frame
        c.waiting_bytes = 0

    def _drop_output(self, c: Connection) -> None:
        """Deliveries in the buffer that were not accepted to the last byte."""
        untouched = c.sent + c.covers
        while c.marks:
            mark = c.marks.popleft()
            begin = mark.end - mark.size
            c.lost += 1
            if begin >= untouched and mark.size <= len(c.out):
                at = begin - c.sent
                _, _, _, topic, section, *_ = FIXED.unpack_from(c.out, at)
                self._undelivered(bytes(c.out[at : at + 32 + topic + section]), c.index, c.uid)
            else:
                self._count("lost")
            self._share_done(mark.instruction)
        c.out.clear()
        c.queued = c.sent

    def _depart(self, c: Connection) -> None:
        """All it sent was taken: tell the router, let go of everything it held, close."""
        if c.state >= CLOSING:
            return
        if c.state == LIVE:
            self._count("live", -1)
        if c.handle:
            self._own.abandon(c.handle)
            c.handle, c.head, c.frame_left = 0, b"", 0
        if self._starving == c.index:
            self._starving = -1
        self._admission.forget(c.index)
        c.data.clear()
        self._drop_waiting(c)
        if not c.linger or c.hurt:
            self._drop_output(c)
        if c.durable and self._link is not None:
            self._to_link(c.index, c.uid, GONE)
        if c.attached:
            self._push_uncounted(layout.UP_GONE, c.uid, c.index, b"")
        if c.linger and not c.hurt:
            c.state, c.since_ms = CLOSING, self._now
            self._touch(c)
        else:
            self._close_now(c)

    def _close_now(self, c: Connection) -> None:
        """The descriptor goes, the index may be used again."""
        if self._connections.pop(c.index, None) is not c:
            return
        self._drop_waiting(c)
        self._drop_output(c)
        fd = c.sock.fileno()
        if c.interest is not None:
            self._epoll.unregister(fd)
        del self._by_fd[fd]
        c.sock.close()
        if c.lost:
            self._events.append((c.index, "lost", b"%d" % c.lost))
        reason = self._reasons.pop(c.index, "closed" if c.deaf else "connection-lost")
        self._events.append((c.index, "closed", reason.encode()))

    def _sweep(self) -> None:
        """Timers, about once a second: prefaces, handshakes, silence, ends that take too long."""
        now = self._now
        for c in list(self._connections.values()):
            aged = now - c.since_ms
            if c.state == LIVE:
                self._sweep_live(c, aged)
            elif c.state in (PREFACE, SECURING):
                if aged >= self._bounds.preface_ms:
                    self._cut(c, "handshake-timeout", b"", deaf=True)
            elif c.state == CONFIRMED:
                if aged >= self._bounds.handshake_ms:
                    self._cut(c, "handshake-timeout", error_frame("handshake-timeout"), deaf=True)
            elif c.state in (CLOSING, LINGERING) and aged >= LINGER_MS:
                self._close_now(c)

    def _sweep_live(self, c: Connection, aged: int) -> None:
        if c.detaching:
            if aged >= self._bounds.handshake_ms:
                self._cut(c, "closed", b"", deaf=True)
        elif c.eof:
            if c.linger and aged >= LINGER_MS:
                self._broken(c)  # its last words were not read, and its last messages still wait
        elif c.hurt:
            if aged >= LINGER_MS:
                self._finished(c)
        elif c.masked or c.place == ON_BLOCKED:
            # We do not read it, so its silence is ours; but it should hear that we are there.
            c.heard_ms = self._now
            if c.out_of_credit:
                # Its CREDIT may lie behind the message we cannot take, perhaps because the arena is full of what
                # waits for this very client.
                c.overdraft = True
                self._touch(c)
            if self._now - c.sent_ms >= c.keep_alive_ms // 2:
                self._put_plain(c, ping_frame(), ordered=False)
        else:
            silence = self._now - c.heard_ms
            if silence >= 2 * c.keep_alive_ms and c.pinged:  # nobody is cut off without having been asked
                self._cut(c, "keep-alive-timeout", error_frame("keep-alive-timeout"), deaf=False)
            elif silence >= c.keep_alive_ms and not c.pinged:
                c.pinged = True
                self._put_plain(c, ping_frame(), ordered=False)
