"""A keeper's news that its child has died: short, authenticated calls to all whom the child knew, at the same time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from fairlead.bus import frames, records
from fairlead.bus.config import BusConfig
from fairlead.bus.edge import sockets
from fairlead.bus.edge.secure import SecureWire, Tls
from fairlead.bus.edge.wire import Wire
from fairlead.bus.frames import Malformed
from fairlead.bus.handshake import Handshake, Hello
from fairlead.errors import ConfigError


def read_peers(path: str | Path) -> dict[str, list[str]]:
    """The addresses a node kept for its keeper, by bus; none if there is no such file."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return {str(bus): [str(one) for one in peers.values()] for bus, peers in found.items()}
    return {}


def announce_death(
    config: BusConfig, node: str, start: int, peers: Mapping[str, list[str]] | str | Path, limit_s: float = 1.0
) -> int:
    """Tell these addresses (by bus, or the file with them) that this life of the node is over.

    Returns how many have heard it within the limit.
    """
    death = records.encode(records.Death(node, start))
    calls = {}
    for bus, addresses in (peers if isinstance(peers, Mapping) else read_peers(peers)).items():
        for address in addresses:
            with contextlib.suppress(OSError, ConfigError):
                sock, problem = sockets.call(address)
                if problem in (0, errno.EINPROGRESS):
                    call = _Call(_wire(config, sock, bus, address), death)
                    calls[sock.fileno()] = call
                else:
                    sock.close()
    poll = select.poll()
    for fd in calls:
        poll.register(fd, select.POLLIN | select.POLLOUT)
    until_s = time.monotonic() + limit_s
    heard = 0
    while calls and (rest_s := until_s - time.monotonic()) > 0:
        for fd, mask in poll.poll(rest_s * 1000):
            call = calls[fd]
            call.step(mask)
            if call.is_over:
                heard += call.was_heard
                poll.unregister(fd)
                call.wire.close()
                del calls[fd]
            else:
                poll.modify(fd, select.POLLIN | (select.POLLOUT if call.wire.wants_write else 0))
    for call in calls.values():
        call.wire.close()
    return heard


def _wire(config: BusConfig, sock: socket.socket, bus: str, address: str) -> Wire:
    handshake = _handshake(config, bus)
    if config.tls is None or config.carrier == "local":
        return Wire(sock, bus, address, handshake, 0.0)
    return SecureWire(sock, bus, address, handshake, 0.0, Tls(config.tls))


def _handshake(config: BusConfig, bus: str) -> Handshake:
    sealed = config.secret is not None
    mine = Hello(config.cluster, bus, config.node, config.start, "herald", "", os.urandom(32), sealed)
    return Handshake(mine, config.secret, dialled=True)


class _Call:
    """One of them."""

    def __init__(self, wire: Wire, death: bytes) -> None:
        self.wire = wire
        self.is_over = self.was_heard = False
        self._death = death
        self._say()

    def step(self, mask: int) -> None:
        try:
            if self.wire.connecting and self.wire.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.is_over = True
                return
            self.wire.connecting = False
            if mask & ~select.POLLOUT:
                with contextlib.suppress(BlockingIOError, InterruptedError):
                    self._read()
            self.wire.write()
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, Malformed):
            self.is_over = True

    def _read(self) -> None:
        if not self.wire.read():
            self.is_over = True
            return
        if (handshake := self.wire.handshake) is not None:
            self.wire.used(handshake.take(self.wire.greeting()))
            self._say()
            if not handshake.done:
                return
            self.wire.greeted()
            self.wire.put(*frames.pack(frames.DEAD, pieces=[self._death]))
            self.wire.enqueue(*self.wire.seal_block())
        while (body := self.wire.block()) is not None:
            if any(kind == frames.HEARD for kind, _, _, _ in frames.parse(body)):
                self.is_over = self.was_heard = True

    def _say(self) -> None:
        assert self.wire.handshake is not None
        for data in self.wire.handshake.out:
            self.wire.raw(data)
        self.wire.handshake.out.clear()
