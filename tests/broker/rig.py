"""A manager's engine on a bench: segments in bytearrays, clients on socketpairs, a router made by hand."""

from __future__ import annotations

import os
import socket
import struct
from types import ModuleType
from typing import Any

from fairlead.broker.answers import PREFACE, frame
from fairlead.broker.bounds import Bounds
from fairlead.broker.outstanding import format_outstanding, outstanding_bytes
from fairlead.store import layout
from fairlead.store.arena import format_arena
from fairlead.store.ring import format_ring

PUBLISH, REQUEST, RESPONSE, CONVERSE, FANOUT, SEND, FRAGMENT = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x2F
CONNECT, PING, PONG, CREDIT, SUBSCRIBE, CLOSE = 0x01, 0x02, 0x03, 0x04, 0x05, 0x0A
CONFIRM, WELCOME, OK, ERROR, MOVED = 0x41, 0x42, 0x43, 0x44, 0x49


class Frame:
    """A frame taken apart."""

    def __init__(self, data: bytes) -> None:
        length, self.kind, self.flags, topic, headers, self.number, self.correlation, self.peer = struct.unpack_from(
            "<IBBHIIQQ", data
        )
        self.length = length
        self.topic = data[32 : 32 + topic]
        self.headers = data[32 + topic : 32 + topic + headers]
        self.body = data[32 + topic + headers : length]

    @property
    def code(self) -> str:
        return self.headers[7:].decode() if self.kind == ERROR else ""


class Entry:
    """An entry of the up ring."""

    def __init__(self, kind: int, flags: int, payload: bytes) -> None:
        self.kind = kind
        self.flags = flags
        self.uid, self.handle, self.index, self.body_length, length, _ = struct.unpack_from(layout.UP_FORMAT, payload)
        self.content = payload[32 : 32 + length]

    @property
    def frame(self) -> Frame:
        return Frame(self.content)


class Client:
    """The other end of one connection."""

    def __init__(self, index: int, uid: int, sock: socket.socket) -> None:
        self.index = index
        self.uid = uid
        self.sock = sock
        self.received = bytearray()
        self.ended = False
        sock.setblocking(False)

    def send(self, data: bytes) -> int:
        return self.sock.send(data)

    def read(self) -> bytes:
        """Everything that is there."""
        while not self.ended:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
            self.received += data
        return bytes(self.received)

    def frames(self) -> list[Frame]:
        """Take the whole frames received so far."""
        self.read()
        found = []
        while len(self.received) >= 4:
            (length,) = struct.unpack_from("<I", self.received)
            if len(self.received) < length:
                break
            found.append(Frame(bytes(self.received[:length])))
            del self.received[:length]
        return found

    def kinds(self) -> list[int]:
        return [found.kind for found in self.frames()]


class Rig:
    """One engine, its segments, its clients and a router's hands."""

    def __init__(
        self,
        engine: type[Any],
        store: ModuleType | Any,
        *,
        ring: int = 1 << 20,
        blocks: int = 64,
        records: int = 1024,
        arenas: int = 2,
        **bounds: Any,
    ) -> None:
        self.engine, self.store = engine, store
        self.bounds = Bounds(**{"connections": 64, **bounds})
        self.up_bytes = bytearray(layout.ring_bytes(ring))
        self.down_bytes = bytearray(layout.ring_bytes(ring))
        format_ring(self.up_bytes, ring)
        format_ring(self.down_bytes, ring)
        self.arena_bytes = {}
        for i in range(arenas):
            data = bytearray(layout.arena_plan(blocks).size + 65536 + 8 * blocks)
            struct.pack_into("<I", data, layout.HEADER_INDEX, i)
            format_arena(data, blocks)
            self.arena_bytes[i] = data
        self.table = bytearray(outstanding_bytes(records))
        format_outstanding(self.table, records)
        self.wake, self.wake_router = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        self.now = 1_000_000
        self.clients: dict[int, Client] = {}
        self.next_uid = 7_000_000_001
        self.events: list[Any] = []
        self.build()
        self.up = store.Consumer(self.up_bytes)
        self.down = store.Producer(self.down_bytes)
        self.foreign = store.Arena(self.arena_bytes[1], owner=True) if arenas > 1 else None

    def build(self) -> None:
        """The engine, as a manager process would make it on these segments."""
        self.arenas = {i: self.store.Arena(data, owner=i == 0) for i, data in self.arena_bytes.items()}
        self.traffic = self.engine(
            up=self.store.Producer(self.up_bytes),
            down=self.store.Consumer(self.down_bytes),
            arenas=self.arenas,
            own=0,
            outstanding=self.table,
            wake_fd=self.wake,
            wake_router_fd=self.wake_router,
            settings=self.bounds,
        )

    def close(self) -> None:
        for client in self.clients.values():
            client.sock.close()
        del self.traffic
        os.close(self.wake)
        os.close(self.wake_router)

    def turn(self, times: int = 1, timeout_ms: int = 0) -> list[Any]:
        found: list[Any] = []
        for _ in range(times):
            found += self.traffic.turn(timeout_ms, self.now)
        self.events += found
        return found

    def later(self, ms: int) -> None:
        self.now += ms
        self.turn(2)

    # -- clients

    def adopt(self, *, buffer: int = 0) -> Client:
        ours, theirs = socket.socketpair()
        if buffer:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        index = next(i for i in range(self.bounds.connections) if i not in self.clients)
        uid, self.next_uid = self.next_uid, self.next_uid + 1
        self.traffic.adopt(index, uid, ours.detach(), self.now)
        client = self.clients[index] = Client(index, uid, theirs)
        return client

    def live(self, *, credit: int = 0, buffer: int = 0, pop: bool = True) -> Client:
        """A client that has gone through the whole handshake; with `pop` the router has nothing else to hear of."""
        client = self.adopt(buffer=buffer)
        client.send(PREFACE)
        self.turn(2)
        self.traffic.push(layout.UP_ATTACH, client.uid, client.index, b"{}")
        self.plain(frame(CONFIRM), client)
        client.send(frame(CONNECT, body=b"{}"))
        self.turn(3)
        self.traffic.options(client.index, client.uid, credit, 0)
        self.plain(frame(WELCOME), client)
        self.turn(2)
        assert client.kinds() == [CONFIRM, WELCOME]
        if pop:
            self.pop()
        return client

    # -- the router

    def peek(self) -> list[Entry]:
        """Everything published, without taking it."""
        consumer = self.store.Consumer(self.up_bytes)
        found = []
        while (entry := consumer.next()) is not None:
            found.append(Entry(*entry))
            consumer.advance()
        return found

    def pop(self, most: int = 1 << 30) -> list[Entry]:
        """Take entries as the router does."""
        found: list[Entry] = []
        while len(found) < most and (entry := self.up.next()) is not None:
            found.append(Entry(*entry))
            self.up.advance()
        if self.up.publish(self.bounds.resume_below - 1):
            os.eventfd_write(self.wake, 1)
        return found

    def instruct(
        self,
        kind: int,
        *clients: Client,
        content: bytes = b"",
        handle: int = 0,
        touch: int = 0,
        limit: int = 0,
        body: int = 0,
    ) -> None:
        payload = struct.pack(layout.DOWN_FORMAT, handle, touch, limit, 0, len(clients), len(content), body)
        for client in clients:
            payload += struct.pack("<Q", client.index << 32 | client.uid & 0xFFFFFFFF)
        assert self.down.push(kind, 0, payload + content)
        if self.down.publish():
            os.eventfd_write(self.wake, 1)

    def plain(self, data: bytes, *clients: Client) -> None:
        self.instruct(layout.DOWN_PLAIN, *clients, content=data)

    def detach(self, data: bytes, *clients: Client) -> None:
        self.instruct(layout.DOWN_DETACH, *clients, content=data)

    def deliver(self, entry: Entry, *clients: Client, touch: int = 0, limit: int = 1) -> None:
        """Route a message taken in by this engine."""
        self.instruct(
            layout.DOWN_DELIVER,
            *clients,
            content=entry.content,
            handle=entry.handle,
            touch=touch,
            limit=limit,
            body=entry.body_length,
        )

    def store_foreign(self, body: bytes) -> int:
        """A body another manager stored."""
        assert self.foreign is not None
        handle: int = self.foreign.alloc(len(body), 0, 99)
        self.foreign.write(handle, body)
        self.foreign.refer(handle, 0)
        return handle

    def send_foreign(
        self, body: bytes, *clients: Client, kind: int = PUBLISH, touch: int = 0, limit: int = 1, **fields: Any
    ) -> int:
        handle = self.store_foreign(body)
        content = frame(kind, topic=b"t", **fields)
        self.instruct(
            layout.DOWN_DELIVER, *clients, content=content, handle=handle, touch=touch, limit=limit, body=len(body)
        )
        return handle

    def stored(self) -> int:
        """Live slots in all arenas."""
        return sum(self.store.Arena(data).census()[0] for data in self.arena_bytes.values())

    def statistics(self) -> dict[str, int]:
        found: dict[str, int] = self.traffic.statistics()
        return found
