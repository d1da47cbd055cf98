"""One link's socket: bytes in, found as frames without copying them; bytes out, as many as the kernel takes.

What was read is looked at in place, so a command that waits beyond its turn keeps the buffer it lies in; then the
next read gets a fresh one.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from fairlead.cluster.demux import LINK_FRAME_MAX
from fairlead.cluster.demuxing import scan
from fairlead.cluster.outgoing import Link
from fairlead.wire.durable import ENVELOPE

if TYPE_CHECKING:
    from fairlead.cluster.core import Core

BUFFER_BYTES: Final = 512 * 1024
LARGE_BUFFER_BYTES: Final = 2 * LINK_FRAME_MAX
PIECES_MAX: Final = 1000  # of one sendmsg; the kernel takes 1,024
TURN_BYTES_MAX: Final = 8 << 20


def socket_name(index: int) -> str:
    """The socket managers connect to, in the run directory."""
    return f"mm-{index}.sock"


class Wire:
    """The edge of a `Link`."""

    def __init__(self, sock: socket.socket, link: Link) -> None:
        self.sock = sock
        self.link = link
        self.waits = False  # for the kernel to take more
        self.has_room_again = False  # after a write: the link was full and is no longer
        self.bytes_in = 0
        self.bytes_out = 0
        self._buffer = bytearray(BUFFER_BYTES)
        self._filled = 0
        self._used = 0

    def read(self, core: Core) -> bool:
        """One read, and all frames that are whole now. False: the link is lost.

        RemoteProtocolError: it has to be ended.
        """
        view = memoryview(self._buffer)
        try:
            count = self.sock.recv_into(view[self._filled :])
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not count:
            return False
        self.bytes_in += count
        self._filled += count
        frames, self._used = scan(view, 0, self._filled)
        if frames:
            core.take(self.link, view, frames)
        return True

    def settle(self) -> None:
        """After the turn: make room for the next read."""
        used, filled = self._used, self._filled
        rest = filled - used
        wanted = BUFFER_BYTES
        if rest >= 4 and int.from_bytes(self._buffer[used : used + 4], "little") > BUFFER_BYTES - ENVELOPE.size:
            wanted = LARGE_BUFFER_BYTES
        if used == 0 and len(self._buffer) >= wanted:
            return
        if len(self._buffer) != wanted or is_shared(self._buffer):
            fresh = bytearray(wanted)
            fresh[:rest] = memoryview(self._buffer)[used:filled]
            self._buffer = fresh
        elif rest:
            self._buffer[:rest] = self._buffer[used:filled]
        self._filled, self._used = rest, 0

    def write(self) -> bool:
        """As much as the kernel takes, within a turn's share. False: the link is lost."""
        out = self.link.out
        at = written = 0
        self.waits = False
        try:
            while at < len(out) and written < TURN_BYTES_MAX:
                pieces = out[at : at + PIECES_MAX]
                count = self.sock.sendmsg(pieces)
                written += count
                for piece in pieces:
                    size = len(piece)
                    if count < size:
                        out[at] = memoryview(piece)[count:]
                        self.waits = True
                        break
                    count -= size
                    at += 1
                if self.waits:
                    break
        except (BlockingIOError, InterruptedError):
            self.waits = True
        except OSError:
            return False
        if at < len(out):
            self.waits = True
        del out[:at]
        self.bytes_out += written
        self.has_room_again = self.link.taken(written)
        return True

    def close(self) -> None:
        self.sock.close()


def is_shared(buffer: bytearray) -> bool:
    """Does anybody still hold a view of it? Then it cannot be resized."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False
