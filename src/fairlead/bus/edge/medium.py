"""One bus as a multicast group: its sockets, our stream in it, and the streams of the others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from fairlead.bus import frames
from fairlead.bus.config import BusAddress, BusConfig, is_loopback, split_address
from fairlead.bus.edge.sockets import WILDCARDS
from fairlead.bus.edge.wire import Wire
from fairlead.bus.faults import Bucket
from fairlead.bus.multicast import packets
from fairlead.bus.multicast.packets import ASK, BEAT, DATA, PACKET_BYTES_MAX, Packet, Sealer
from fairlead.bus.multicast.receiving import Receiver
from fairlead.bus.multicast.sending import Sender
from fairlead.errors import ConfigError

MTU: Final = 1400
MTU_LOOPBACK: Final = 60_000
SOCKET_BYTES: Final = 4 << 20
PACKETS_PER_TURN: Final = 128


class Stream:
    """What comes from one node."""

    def __init__(self, wire: Wire, sealer: Sealer, receiver: Receiver, listener: str) -> None:
        self.wire, self.sealer, self.receiver = wire, sealer, receiver
        self.listener = listener  # how we are called in it
        self.asked = 0  # number of its last request
        self.ready: deque[tuple[int, bytes]] = deque()  # whole blocks that wait for the node's line
        self.since = 0  # blocks before this number came to us on another bus


class Medium:
    """Sends and receives; `take` is told of streams that have blocks ready, `lose` of those that cannot go on."""

    def __init__(
        self, config: BusConfig, bus: BusAddress, draw: Callable[[], float], lose: Callable[[Wire, str], None]
    ) -> None:
        self.name = bus.name
        self.stream = os.urandom(packets.STREAM_BYTES)
        self.figures = {"packets_out": 0, "packets_in": 0, "strange": 0, "bytes_out": 0, "dropped": 0}
        self.streams: dict[bytes, Stream] = {}
        self._config = config
        self._draw = draw
        self._lose = lose
        self._sealer = Sealer(config.secret, self.stream)
        group, port = split_address(bus.multicast)
        host = bus.interface or split_address(bus.listen)[0]
        interface = "0.0.0.0" if host in WILDCARDS else "127.0.0.1" if host == "localhost" else host
        mtu = config.mtu or (MTU_LOOPBACK if is_loopback(host) else MTU)
        self.sender = Sender(mtu - packets.HEAD.size - self._sealer.size - 28, config.repair_bytes_max)
        self._where = group, port
        self._into, self._out = open_sockets(bus, group, port, interface)
        self._buffer = bytearray(PACKET_BYTES_MAX + 1)
        self._view = memoryview(self._buffer)
        self._asks = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._held: deque[tuple[float, bytes]] = deque()
        self._bucket = Bucket()

    def fileno(self) -> int:
        return self._into.fileno()

    # Out

    def put(self, packed: list[bytes], size: int) -> int:
        """A frame, to go with the next flush. How much waits."""
        self._pending += packed
        self._pending_bytes += size
        return self._pending_bytes

    def flush(self, now_s: float) -> None:
        if self._pending:
            body, self._pending, self._pending_bytes = b"".join(self._pending), [], 0
            self.sender.push(body)
        if self.sender.has_due:
            rate = self._config.faults.rate(self.name) if self._config.faults is not None else 0.0
            if rate and self._bucket.room(rate, now_s) <= 0:
                return
            for out in self.sender.due(now_s):
                size = self._send(self._sealer.pack(DATA, out.flags, out.number, out.content))
                if rate:
                    self._bucket.spend(size)

    def tick(self, now_s: float) -> None:
        """Heartbeat and requests that are due."""
        if (number := self.sender.beat(now_s)) is not None:
            self._send(self._sealer.pack(BEAT, 0, number, b""))
        for name, stream in list(self.streams.items()):
            ranges = stream.receiver.ask(now_s)
            if ranges:
                self._asks += 1
                self._send(self._sealer.pack(ASK, 0, self._asks, packets.pack_ask(name, ranges)))
            if stream.receiver.lost:
                self._lose(stream.wire, stream.receiver.lost)
        if self._held:
            self._release(now_s)

    def next_s(self) -> float:
        times = [stream.receiver.next_s() for stream in self.streams.values()]
        if self._held:
            times.append(self._held[0][0])
        return min([self.sender.next_s(), *times])

    def _send(self, data: bytes) -> int:
        faults = self._config.faults
        if faults is not None and faults.is_cut(self._config.node, "", self.name):
            return 0
        # A packet the kernel does not take is like one that was lost on the way: it is asked for.
        with contextlib.suppress(OSError):
            self._out.sendto(data, self._where)
        self.figures["packets_out"] += 1
        self.figures["bytes_out"] += len(data)
        return len(data)

    # In

    def listen_to(self, wire: Wire, stream: bytes, position: int, listener: str) -> None:
        """A node's line is up: its stream begins for us at this number."""
        receiver = Receiver(position, self._config.detection_s, self._draw)
        self.streams[stream] = Stream(wire, Sealer(self._config.secret, stream), receiver, listener)

    def forget(self, wire: Wire) -> None:
        """Its line is gone, and so is its stream, both ways."""
        self.streams = {name: stream for name, stream in self.streams.items() if stream.wire is not wire}
        if wire.listener:
            notice, _ = frames.pack(frames.REMOVED, pieces=[wire.listener.encode()])
            self.sender.remove(wire.listener, b"".join(notice))

    def receive(self, now_s: float) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                size = self._into.recv_into(self._buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            self.figures["packets_in"] += 1
            self._sort(self._view[:size], now_s)

    def _sort(self, data: memoryview, now_s: float) -> None:
        name = packets.stream_of(data)
        if name == self.stream:
            return
        stream = self.streams.get(name) if name is not None else None
        if stream is None:
            self.figures["strange"] += 1
            return
        faults = self._config.faults
        if faults is not None:
            between = (stream.wire.node, self._config.node, self.name)
            if faults.is_cut(*between) or faults.is_dropped(*between):
                self.figures["dropped"] += 1
                return
            if delay_s := faults.delay_s(*between):
                self._held.append((now_s + delay_s, bytes(data)))
                return
        self._open(stream, data, now_s)

    def _release(self, now_s: float) -> None:
        while self._held and self._held[0][0] <= now_s:
            data = memoryview(self._held.popleft()[1])
            stream = self.streams.get(packets.stream_of(data) or b"")
            if stream is not None:
                self._open(stream, data, now_s)

    def _open(self, stream: Stream, data: memoryview, now_s: float) -> None:
        packet = stream.sealer.open(data)
        if packet is None:
            self.figures["strange"] += 1
        elif packet.kind == DATA:
            stream.ready += stream.receiver.on_data(packet.number, packet.flags, packet.content, now_s)
        elif packet.kind == BEAT:
            stream.receiver.on_beat(packet.number, now_s)
        elif packet.kind == ASK and packet.number > stream.asked:
            stream.asked = packet.number
            self._on_ask(packet, now_s)
        if stream.receiver.lost:
            self._lose(stream.wire, stream.receiver.lost)

    def _on_ask(self, packet: Packet, now_s: float) -> None:
        asked = packets.parse_ask(packet.content)
        if asked is None:
            self.figures["strange"] += 1
        elif asked[0] == self.stream:
            self.sender.on_ask(asked[1], now_s)
        elif (other := self.streams.get(asked[0])) is not None:
            other.receiver.on_others_ask(asked[1], now_s)

    def ready(self) -> Iterator[Stream]:
        """Streams with whole blocks."""
        return iter([stream for stream in self.streams.values() if stream.ready])

    def close(self) -> None:
        self._into.close()
        self._out.close()


def open_sockets(bus: BusAddress, group: str, port: int, interface: str) -> tuple[socket.socket, socket.socket]:
    """One that is in the group, one that sends to it. Nodes on the same machine hear each other."""
    flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    into = socket.socket(socket.AF_INET, flags)
    out = socket.socket(socket.AF_INET, flags)
    try:
        into.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        into.bind((group, port))
        here = socket.inet_aton(interface)
        into.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4s", socket.inet_aton(group), here))
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    except OSError as error:
        into.close()
        out.close()
        raise ConfigError(f"bus {bus.name} cannot use the group {bus.multicast} on {interface}: {error}") from None
    return into, out
