"""All lines of a node: calling, being called, greeting, reading and writing blocks. What is in them is for others."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from typing import Any, Final

from fairlead.bus import frames
from fairlead.bus.config import BusConfig
from fairlead.bus.dialling import AddressBook
from fairlead.bus.edge import sockets
from fairlead.bus.edge.outflow import Outflow
from fairlead.bus.edge.secure import SecureWire, Tls
from fairlead.bus.edge.wire import Wire
from fairlead.bus.faults import Lots
from fairlead.bus.frames import Malformed
from fairlead.bus.handshake import Handshake, Hello
from fairlead.bus.membership import End, Membership, Verdict
from fairlead.errors import ConfigError

STRANGERS_MAX: Final = 128
EVENTS: Final = 256
LOOK_S: Final = 0.5  # how often a directory is looked into for new neighbours
COMPLAINTS_PER_S: Final = 10


class Lines:
    """Tells `take` of every block of a line that is known, and `membership` of lines that come and go."""

    def __init__(
        self,
        config: BusConfig,
        membership: Membership[Wire],
        take: Callable[[Wire, memoryview], None],
        greeted: Callable[[Wire], None],
    ) -> None:
        self.config = config
        self.wires: dict[int, Wire] = {}
        self.taps: list[Wire] = []
        self.addresses: dict[str, str] = {}  # ours, by bus
        self.figures = {"refused": 0, "calls": 0, "blocks_in": 0, "bytes_in": 0, "bytes_out": 0, "excluded": 0}
        self.epoll = select.epoll()
        self.out = Outflow(config, self.epoll, self.wires, self.figures)
        self.now_s = 0.0
        self.on_discard: Callable[[Wire], None] = lambda wire: None
        self._tls = Tls(config.tls) if config.tls is not None and config.carrier != "local" else None
        self._members = membership
        self._take = take
        self._greeted = greeted
        self._listeners: dict[int, tuple[socket.socket, str]] = {}
        self._other: dict[int, Callable[[], None]] = {}
        lots = Lots(int.from_bytes(os.urandom(8), "little"))
        self._books = {bus.name: AddressBook(list(config.seeds.get(bus.name, [])), lots.draw) for bus in config.buses}
        self._inodes: dict[str, int] = {}
        self._look_s = 0.0
        self._complaints = 0
        self._complaints_s = 0.0
        if config.role == "member":
            self._listen()

    def _listen(self) -> None:
        try:
            for bus in self.config.buses:
                if self.config.carrier == "local":
                    sock, address = sockets.listen_local(bus.listen, bus.name, self.config.node)
                else:
                    sock, address = sockets.listen_tcp(bus.listen)
                self._listeners[sock.fileno()] = sock, bus.name
                self.addresses[bus.name] = address
                self._inodes[bus.name] = sockets.inode_of(address)
                self.epoll.register(sock.fileno(), select.EPOLLIN)
        except BaseException:
            for sock, _ in self._listeners.values():
                sock.close()
            self.epoll.close()
            raise

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Another descriptor in the same turn: a multicast socket."""
        self._other[fd] = ready
        self.epoll.register(fd, select.EPOLLIN)

    # A turn

    def turn(self, now_s: float) -> None:
        if self.epoll.closed:
            return
        self.now_s = self.out.now_s = now_s
        for fd, mask in self.epoll.poll(0, EVENTS):
            wire = self.wires.get(fd)
            if wire is not None:
                self._on_event(wire, mask)
            elif fd in self._listeners:
                self._answer(*self._listeners[fd])
            elif fd in self._other:
                self._other[fd]()

    def tick(self, now_s: float) -> None:
        """Heartbeats, silence, calls that are due."""
        self.now_s = self.out.now_s = now_s
        limit_s = self.config.detection_s
        for wire in list(self.wires.values()):
            if wire.handshake is not None or not wire.is_up:
                if now_s - wire.made_s > limit_s and not (wire in self.taps or self.config.role == "tap"):
                    self.lose(wire, End.SILENT)
            elif now_s - wire.heard_s > limit_s:
                self.lose(wire, End.SILENT)
            is_quiet = now_s - wire.wrote_s > limit_s / 4 and not wire.backlog
            if is_quiet and wire.handshake is None and not wire.is_closed:
                self.put(wire, *frames.pack(frames.PING))
        self.out.heed_faults()
        self.call_due()

    def call_due(self) -> None:
        if self.config.carrier == "local" and self.now_s >= self._look_s:
            self._look_s = self.now_s + LOOK_S
            for bus in self.config.buses:
                for address in sockets.neighbours(bus.listen, bus.name):
                    self._books[bus.name].heard(address, self.now_s)
        for name, book in self._books.items():
            for address in book.due(self.now_s, lambda node, bus=name: self._has(bus, node)):  # type: ignore[misc]
                if address == self.addresses.get(name):
                    book.ourselves(address)
                else:
                    self._call(name, address)

    def hurry(self, bus: str, address: str) -> None:
        self._books[bus].hurry(address, self.now_s)

    def heard(self, bus: str, peers: dict[str, str]) -> None:
        """Addresses that another node knows."""
        for node, address in list(peers.items())[:1024]:
            if node != self.config.node and not self._has(bus, node) and len(address) <= 255:
                self._books[bus].heard(address, self.now_s, node)

    def _has(self, bus: str, node: str) -> bool:
        if self.config.role == "tap":
            return any(wire.bus == bus and wire.node == node for wire in self.wires.values())
        fellow = self._members.fellows.get(node)
        return fellow is not None and bus in fellow.lines

    # Coming to be

    def _answer(self, listener: socket.socket, bus: str) -> None:
        for _ in range(32):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                self.complain(f"a call on bus {bus} cannot be answered: {error.strerror}")
                return
            sock.setblocking(False)
            strangers = [wire for wire in self.wires.values() if wire.handshake is not None and not wire.address]
            if len(strangers) >= STRANGERS_MAX:  # the one that has been silent for longest makes room
                oldest = min(strangers, key=lambda wire: wire.made_s)
                self.refuse(oldest, f"more than {STRANGERS_MAX} callers have not said who they are")
            sockets.tune(sock)
            self._begin(sock, bus, "")

    def _call(self, bus: str, address: str) -> None:
        book = self._books[bus]
        book.calling(address, self.now_s)
        self.figures["calls"] += 1
        try:
            sock, problem = sockets.call(address)
        except (ConfigError, OSError) as error:
            self.complain(f"{address} cannot be called: {error}")
            book.hung_up(address, self.now_s)
            return
        if problem not in (0, errno.EINPROGRESS):
            sock.close()
            self._not_reached(bus, address, problem)
            return
        wire = self._begin(sock, bus, address)
        if not problem:
            self._reached(wire)

    def _begin(self, sock: socket.socket, bus: str, address: str) -> Wire:
        mine = Hello(
            cluster=self.config.cluster,
            bus=bus,
            node=self.config.node,
            start=self.config.start,
            role=self.config.role,
            address=self.addresses.get(bus, ""),
            nonce=os.urandom(32),
            sealed=self.config.secret is not None,
        )
        handshake = Handshake(mine, self.config.secret, dialled=bool(address))
        if self._tls is None:
            wire = Wire(sock, bus, address, handshake, self.now_s)
        else:
            wire = SecureWire(sock, bus, address, handshake, self.now_s, self._tls)
        self.wires[wire.fd] = wire
        wire.events = select.EPOLLIN | (select.EPOLLOUT if address else 0)
        self.epoll.register(wire.fd, wire.events)
        return wire

    def _reached(self, wire: Wire) -> None:
        wire.connecting = False
        sockets.tune(wire.socket)
        self._say(wire)

    def _not_reached(self, bus: str, address: str, problem: int) -> None:
        self._books[bus].hung_up(address, self.now_s)
        if problem in sockets.NOBODY:
            self._members.refused(address)

    def _say(self, wire: Wire) -> None:
        """What the handshake has to say goes out."""
        if wire.handshake is not None:
            for data in wire.handshake.out:
                wire.raw(data)
            wire.handshake.out.clear()
        self.out.write(wire)

    def _greet(self, wire: Wire) -> None:
        handshake = wire.handshake
        assert handshake is not None
        wire.used(handshake.take(wire.greeting()))
        self._say(wire)
        if wire.is_closed or not handshake.done:
            return
        wire.greeted()
        hello = wire.hello
        assert hello is not None
        if hello.role != "tap" and not wire.vouches(hello.node):
            raise Malformed(f"its certificate is not that of node {hello.node}")
        book = self._books[wire.bus]
        address = sockets.reachable(hello.address, wire.socket) if hello.address else ""
        if self._cut(wire):
            self.lose(wire, End.RESET)
            return
        if hello.role == "tap":
            self.taps.append(wire)
            self._greeted(wire)
            return
        if hello.role == "herald" or self.config.role == "tap":
            book.answered(wire.address, hello.node)
            return
        verdict = self._members.judge(wire, wire.bus, hello, dialled=bool(wire.address))
        if verdict is Verdict.OURSELVES:
            book.ourselves(wire.address)
            self.lose(wire, End.RESET)
            return
        book.answered(wire.address or address, hello.node)
        if verdict in (Verdict.ACCEPT, Verdict.AWAIT):
            wire.verdict_open = verdict is Verdict.AWAIT
            if verdict is Verdict.ACCEPT:
                self.put(wire, *frames.pack(frames.ACCEPT))
            self._greeted(wire)
            return
        if verdict is Verdict.BUSY:
            fellow = self._members.fellows[hello.node]
            self.put(fellow.lines[wire.bus], *frames.pack(frames.PING))  # if it is dead, we learn it from that
        else:
            self.complain(f"{hello.node} at {address} is refused: {verdict.value}", start=hello.start)
        self.put(wire, *frames.pack(frames.REFUSE, pieces=[verdict.value.encode()]))
        self.out.flush_wire(wire)
        self.lose(wire, End.RESET)

    def _cut(self, wire: Wire) -> bool:
        faults, us, them = self.config.faults, self.config.node, wire.node
        return faults is not None and (faults.is_cut(us, them, wire.bus) or faults.is_cut(them, us, wire.bus))

    # In and out

    def _on_event(self, wire: Wire, mask: int) -> None:
        if wire.connecting:
            problem = wire.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                self._discard(wire)
                self._not_reached(wire.bus, wire.address, problem)
                return
            self._reached(wire)
        if not wire.events:  # cut: only its end gets through
            self.lose(wire, End.RESET)
            return
        if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not wire.is_closed:
            self._read(wire)
        if mask & select.EPOLLOUT and not wire.is_closed:
            self.out.write(wire)

    def _read(self, wire: Wire) -> None:
        while self._read_once(wire) and wire.has_more and not wire.is_closed:
            pass

    def _read_once(self, wire: Wire) -> bool:
        """False: nothing was there."""
        try:
            count = wire.read()
        except (BlockingIOError, InterruptedError):
            if wire.wants_write and not wire.connecting:  # TLS answers by itself
                self.out.write(wire)
            return False
        except Malformed as error:
            self.refuse(wire, str(error))
            return False
        except OSError:
            count = 0
        if not count:
            self.lose(wire, End.RESET)
            return False
        wire.heard_s = self.now_s
        self.figures["bytes_in"] += count
        try:
            if wire.handshake is not None:
                self._greet(wire)
            while not wire.is_closed and wire.handshake is None:
                body = wire.block()
                if body is None:
                    break
                self.figures["blocks_in"] += 1
                self._take(wire, body)
        except Malformed as error:
            self.refuse(wire, str(error))
        except BaseException:
            self.lose(wire, End.RESET)  # a handler failed, and the rest of the block with it
            raise
        return True

    def put(self, wire: Wire, pieces: list[bytes], size: int) -> None:
        """A frame, to go with the next flush, or earlier if there is much of it."""
        self.out.put(wire, pieces, size)
        if wire.backlog > self.config.send_bytes_max:
            self.figures["excluded"] += 1
            self.complain(f"{wire.node} is too slow and is excluded", waiting=wire.backlog)
            self.lose(wire, End.SLOW)

    # The end

    def refuse(self, wire: Wire, why: str) -> None:
        """The other end broke the rules: closed, and said in the log."""
        whom = wire.node or wire.address or peer_name(wire.socket)
        self.complain(f"a line with {whom} on bus {wire.bus} is closed: {why}", refused=1)
        self.lose(wire, End.RESET)

    def lose(self, wire: Wire, end: End) -> None:
        """A line is no more."""
        if wire.is_closed or self.epoll.closed:
            return
        self._discard(wire)
        if wire.address:
            self._books[wire.bus].hung_up(wire.address, self.now_s)
        if wire.node:
            if end is End.LEFT and wire.fellow is not None:
                self._books[wire.bus].gone(wire.fellow.addresses.get(wire.bus, ""))
            self._members.closed(wire, wire.bus, wire.node, end, self.now_s + self.config.detection_s)

    def discard_ended(self) -> None:
        """Lines the membership has given up."""
        while self._members.ended:
            wire, _ = self._members.ended.pop()
            if not wire.is_closed:
                self._discard(wire)
                if wire.address:
                    self._books[wire.bus].hung_up(wire.address, self.now_s)

    def _discard(self, wire: Wire) -> None:
        self.wires.pop(wire.fd, None)
        self.out.forget(wire)
        if wire in self.taps:
            self.taps.remove(wire)
        self.epoll.unregister(wire.fd)
        wire.close()
        self.on_discard(wire)

    def complain(self, text: str, refused: int = 0, **facts: Any) -> None:
        """To the log, but not more than a few lines a second, whoever knocks."""
        self.figures["refused"] += refused
        if self.now_s - self._complaints_s >= 1:
            if self._complaints > COMPLAINTS_PER_S:
                text_left = f"{self._complaints - COMPLAINTS_PER_S} more events of the bus were not written down"
                self.config.log("warning", text_left, {})
            self._complaints, self._complaints_s = 0, self.now_s
        self._complaints += 1
        if self._complaints <= COMPLAINTS_PER_S:
            self.config.log("warning", text, facts)

    def close(self) -> None:
        for wire in list(self.wires.values()):
            self._discard(wire)
        for sock, bus in self._listeners.values():
            sockets.unlisten(sock, self.addresses[bus], self._inodes[bus])
        self._listeners.clear()
        self._other.clear()
        self.epoll.close()


def peer_name(sock: socket.socket) -> str:
    """Whoever it is, for the log."""
    try:
        where = sock.getpeername()
    except OSError:
        return "nobody"
    return f"{where[0]}:{where[1]}" if isinstance(where, tuple) else "a process of this machine"
