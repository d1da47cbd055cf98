"""Packets between the supervisor and its children: one JSON object each, with named descriptors beside it.

The socket is SEQPACKET, so a packet and its descriptors stay together whatever happens (SRV-17). The kernel closes
descriptors for which the receiver offers no room, so the room offered here is always the most that is ever sent.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any, Final

import msgspec

PACKET_BYTES_MAX: Final = 65536
PACKET_FDS_MAX: Final = 100


class Received(msgspec.Struct):
    """A packet that came in. Its descriptors belong to whoever takes it."""

    message: dict[str, Any]
    fds: dict[str, int]


def send(sock: socket.socket, message: Mapping[str, Any], fds: Mapping[str, int] | None = None) -> None:
    """Send one message; more descriptors than fit go ahead of it in packets marked `more`."""
    names = list(fds or {})
    while len(names) > PACKET_FDS_MAX:
        some, names = names[:PACKET_FDS_MAX], names[PACKET_FDS_MAX:]
        _send(sock, {"more": True}, some, fds or {})
    _send(sock, message, names, fds or {})


def _send(sock: socket.socket, message: Mapping[str, Any], names: list[str], fds: Mapping[str, int]) -> None:
    whole = {**message, "fds": names} if names else message
    data = msgspec.json.encode(whole)
    assert len(data) <= PACKET_BYTES_MAX, "a packet is at most 64 KiB"
    if names:
        socket.send_fds(sock, [data], [fds[name] for name in names])
    else:
        sock.send(data)


class Receiver:
    """Puts packets marked `more` together with the one they belong to."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held: dict[str, int] = {}

    def receive(self) -> Received | None:
        """The next whole message, or None at the end; BlockingIOError when there is nothing yet."""
        while True:
            data, numbers = self._receive_packet()
            if not data:
                self.drop()
                return None
            message: dict[str, Any] = msgspec.json.decode(data)
            self._held.update(zip(message.pop("fds", ()), numbers, strict=True))
            if message.get("more"):
                continue
            fds, self._held = self._held, {}
            return Received(message, fds)

    def _receive_packet(self) -> tuple[bytes, array.array[int]]:
        # Not socket.recv_fds: it forgets its flags, and our descriptors must not leak into children.
        numbers = array.array("i")
        room = socket.CMSG_SPACE(PACKET_FDS_MAX * numbers.itemsize)
        data, ancillary, _, _ = self._sock.recvmsg(PACKET_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers.frombytes(content[: len(content) // numbers.itemsize * numbers.itemsize])
        return data, numbers

    def drop(self) -> None:
        """Close what was announced by a peer that did not finish."""
        for fd in self._held.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self._held = {}
