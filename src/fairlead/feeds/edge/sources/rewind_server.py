"""The other side of `rewind`: answers questions for what has been sent, and sends the feed over TCP to who wants it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fairlead.errors import ConfigError
from fairlead.feeds.sources import mold
from fairlead.feeds.sources.mold_codec import pack
from fairlead.feeds.sources.runs import Run

__all__ = ["Address", "Audience", "Connection", "RewindServer", "listen_on"]

Address = tuple[str, int]

ANSWER_COUNT_MAX: Final = 4096  # messages for one question; who wants more asks again
CONNECTIONS_MAX: Final = 64
FOLLOWING_BYTES_MAX: Final = 1 << 20
WAITING_BYTES_MAX: Final = 16 << 20


@dataclass
class Connection:
    """Somebody at the TCP side of the rewind server, who may also take the whole feed there."""

    sock: socket.socket
    question: bytes = b""
    answer: bytearray = field(default_factory=bytearray)
    follows: int = 0  # the next sequence of one that wants all that comes, 0 for others
    beaten_s: float = 0.0


@dataclass
class Audience:
    """Whoever listens: its lines, and its own rewind server (questions over UDP and TCP on one port)."""

    name: str
    lines: list[Address]
    udp: socket.socket | None = None
    tcp: socket.socket | None = None
    connections: dict[int, Connection] = field(default_factory=dict)

    @property
    def rewind(self) -> list[str]:
        """As a [source] table wants it."""
        if self.udp is None:
            return []
        host, port = self.udp.getsockname()[:2]
        return [f"udp://{host}:{port}", f"tcp://{host}:{port}"]


class RewindServer:
    """`make` gives the messages from a sequence on, again whenever it is asked; those up to `sent` can be had."""

    def __init__(self, make: Callable[[int, int], Run], session: str, packet_bytes: int, heartbeat_s: float) -> None:
        self.make = make
        self.session = session
        self.sent = 0
        self.audiences: dict[str, Audience] = {}
        self.counters = {"packets": 0, "heartbeats": 0, "questions": 0, "answers": 0}
        self._packet_bytes = packet_bytes
        self._heartbeat_s = heartbeat_s
        self._beats = True
        self._lock = threading.RLock()
        self._wake_in, self._wake_out = os.pipe()

    def close(self) -> None:
        """All sockets. Nobody may be in `listen_for`."""
        for audience in self.audiences.values():
            for sock in (audience.udp, audience.tcp, *(one.sock for one in audience.connections.values())):
                if sock is not None:
                    sock.close()
        self.audiences = {}
        for end in (self._wake_in, self._wake_out):
            with contextlib.suppress(OSError):
                os.close(end)
        self._wake_in = self._wake_out = -1

    def wake(self) -> None:
        """End the wait of `listen_for`."""
        with contextlib.suppress(OSError):
            os.write(self._wake_out, b".")

    def session_bytes(self) -> bytes:
        return self.session.encode("ascii", "replace")[: mold.SESSION_BYTES].ljust(mold.SESSION_BYTES)

    def listen_for(self, timeout_s: float) -> None:
        """Wait for questions so long at most, and answer them."""
        with self._lock:
            watched: dict[int, tuple[Audience, Connection | None]] = {}
            writing: list[int] = []
            for audience in self.audiences.values():
                for sock in (audience.udp, audience.tcp):
                    if sock is not None:
                        watched[sock.fileno()] = (audience, None)
                for descriptor, one in audience.connections.items():
                    watched[descriptor] = (audience, one)
                    if one.answer:
                        writing.append(descriptor)
        try:
            readable, writable, _ = select.select([self._wake_in, *watched], writing, [], timeout_s)
        except OSError:
            return  # one of them was closed meanwhile
        with self._lock:
            for descriptor in readable:
                if descriptor == self._wake_in:
                    os.read(self._wake_in, 4096)
                    continue
                audience, connection = watched[descriptor]
                if connection is not None:
                    self._read(audience, connection)
                elif audience.udp is not None and descriptor == audience.udp.fileno():
                    self._answer_udp(audience)
                elif audience.tcp is not None:
                    self._accept(audience, audience.tcp)
            for descriptor in writable:
                audience, connection = watched[descriptor]
                if connection is not None and descriptor in audience.connections:
                    self._write(audience, connection)

    def answer(self, audience: Audience, question: bytes) -> list[bytes]:
        """Packets with what was asked for, as far as it was sent; nothing for what is no question of this session."""
        self.counters["questions"] += 1
        if len(question) != mold.HEADER_BYTES:
            return []
        session, first, count = mold.HEADER.unpack(question)
        last = min(first + min(count, ANSWER_COUNT_MAX) - 1, self.sent)
        if session != self.session_bytes() or first < 1 or last < first:
            return []
        run = self.make(first, last - first + 1)
        return pack(self.session_bytes(), run.first, run.lengths, run.data, mold.COUNT_MAX, self._packet_bytes)

    def follow(self, now_s: float) -> None:
        """Those who take the feed over TCP get what is new, as far as they have taken what was before."""
        for audience in self.audiences.values():
            for connection in list(audience.connections.values()):
                if not connection.follows or len(connection.answer) > FOLLOWING_BYTES_MAX:
                    continue
                packets = []
                if connection.follows <= self.sent:
                    count = min(self.sent - connection.follows + 1, ANSWER_COUNT_MAX)
                    packets = self.answer(audience, mold.request(self.session_bytes(), connection.follows, count))
                    connection.follows += count
                elif self._beats and now_s - connection.beaten_s >= self._heartbeat_s:
                    packets = [mold.heartbeat(self.session_bytes(), self.sent + 1)]
                if packets:
                    connection.beaten_s = now_s
                    self._answer_tcp(audience, connection, packets)

    def _answer_tcp(self, audience: Audience, connection: Connection, packets: list[bytes]) -> None:
        for packet in packets:
            self.counters["answers"] += 1
            connection.answer += len(packet).to_bytes(2, "big") + packet
        self._write(audience, connection)

    def _answer_udp(self, audience: Audience) -> None:
        assert audience.udp is not None
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            for _ in range(64):
                question, asker = audience.udp.recvfrom(2048)
                for packet in self.answer(audience, question):
                    self.counters["answers"] += 1
                    audience.udp.sendto(packet, asker)

    def _accept(self, audience: Audience, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = listener.accept()
            if len(audience.connections) >= CONNECTIONS_MAX:
                sock.close()
                return
            sock.setblocking(False)
            audience.connections[sock.fileno()] = Connection(sock)

    def _read(self, audience: Audience, connection: Connection) -> None:
        try:
            got = connection.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got or len(connection.answer) > WAITING_BYTES_MAX:
            audience.connections.pop(connection.sock.fileno(), None)
            connection.sock.close()
            return
        connection.question += got
        while len(connection.question) >= mold.HEADER_BYTES and connection.sock.fileno() >= 0:
            question = connection.question[: mold.HEADER_BYTES]
            connection.question = connection.question[mold.HEADER_BYTES :]
            _, first, count = mold.HEADER.unpack(question)
            if count == mold.END_OF_SESSION:
                connection.follows = min(first or self.sent + 1, self.sent + 1)
            else:
                self._answer_tcp(audience, connection, self.answer(audience, question))

    def _write(self, audience: Audience, connection: Connection) -> None:
        try:
            while connection.answer:
                del connection.answer[: connection.sock.send(connection.answer)]
        except BlockingIOError:
            return
        except OSError:
            audience.connections.pop(connection.sock.fileno(), None)
            connection.sock.close()


def listen_on(address: Address) -> tuple[socket.socket, socket.socket]:
    """A UDP and a TCP socket on one port; port 0 finds one that is free for both."""
    for attempt in range(32):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            udp.bind(address)
            tcp.bind((address[0], udp.getsockname()[1]))
            tcp.listen(16)
        except OSError as error:
            udp.close()
            tcp.close()
            if address[1] or attempt == 31:
                raise ConfigError(f"The rewind server cannot listen on {address[0]}:{address[1]}: {error}.") from None
            continue
        udp.setblocking(False)
        tcp.setblocking(False)
        return udp, tcp
    raise AssertionError("the last attempt raises")
