"""One socket to another node: what is to be written, and what has come as whole blocks."""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from fairlead.bus.frames import BLOCK, BLOCK_BYTES_MAX, Malformed
from fairlead.bus.handshake import Handshake, Hello, Seal

if TYPE_CHECKING:
    from fairlead.bus.membership import Fellow

BUFFER_BYTES: Final = 256 << 10
BUFFER_BYTES_KEPT: Final = 2 << 20
GREETING_BYTES: Final = 8 << 10  # all that a stranger may make us keep
PIECES_MAX: Final = 512
SOCKET_BYTES: Final = 4 << 20


class Wire:
    """Buffers around a socket; decides nothing. `due_s` of a held block is when the fault switch lets it go."""

    def __init__(self, sock: socket.socket, bus: str, address: str, handshake: Handshake, now_s: float) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.bus = bus
        self.address = address  # that we called; "" if the other did
        self.handshake: Handshake | None = handshake
        self.hello: Hello | None = None
        self.fellow: Fellow[Wire] | None = None
        self.connecting = bool(address)
        self.verdict_open = False  # we wait for the other's word whether this line counts
        self.is_up = False
        self.said_switch = False
        self.listener = ""  # its name among those of our multicasts
        self.position = 0  # the first of our multicasts that concerns it
        self.is_closed = False
        self.made_s = self.heard_s = self.wrote_s = now_s
        self.events = 0
        self.info_sent = b""
        self.distant_sent = b""
        self.pending: list[bytes] = []
        self.pending_bytes = 0
        self.queue: deque[bytes | memoryview] = deque()
        self.queue_bytes = 0
        self.held: deque[tuple[float, list[bytes], int]] = deque()
        self.held_bytes = 0
        self._sealing = self._unsealing = Seal(None)
        self._buffer = bytearray(GREETING_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0

    @property
    def node(self) -> str:
        return self.hello.node if self.hello else ""

    @property
    def wants_write(self) -> bool:
        """Is there anything the network could take now?"""
        return bool(self.queue)

    @property
    def has_more(self) -> bool:
        """Is there something to read that the network will not tell us of again?"""
        return False

    def vouches(self, node: str) -> bool:
        """May the other end call itself so? Here the secret alone says who belongs to the cluster."""
        return True

    @property
    def backlog(self) -> int:
        return self.pending_bytes + self.queue_bytes + self.held_bytes

    def greeted(self) -> None:
        """The handshake is over: blocks come now."""
        assert self.handshake is not None
        self._sealing, self._unsealing = self.handshake.sealing, self.handshake.unsealing
        self.hello = self.handshake.theirs
        self.handshake = None
        self._renew(BUFFER_BYTES)

    # Out

    def put(self, pieces: list[bytes], size: int) -> None:
        """A frame, to go with the next flush."""
        self.pending += pieces
        self.pending_bytes += size

    def enqueue(self, pieces: list[bytes], size: int) -> None:
        """A whole block, to be written as soon as the network takes it."""
        self.queue.extend(pieces)
        self.queue_bytes += size

    def seal_block(self) -> tuple[list[bytes], int]:
        """What is pending, as one block."""
        body, size = self.pending, self.pending_bytes
        head = BLOCK.pack(size) + self._sealing.mark(body)
        self.pending, self.pending_bytes = [], 0
        if size <= 4096:
            return [b"".join((head, *body))], size + len(head)
        return [head, *body], size + len(head)

    def raw(self, data: bytes) -> None:
        """Of the handshake, before there are blocks."""
        self.queue.append(data)
        self.queue_bytes += len(data)

    def write(self, limit: int = 1 << 62) -> int:
        """As much as the network takes, up to the limit; raises OSError when the line is gone."""
        written = 0
        while self.queue and written < limit:
            pieces = [self.queue[at] for at in range(min(len(self.queue), PIECES_MAX))]
            try:
                taken = self.socket.sendmsg(pieces, (), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                break
            written += taken
            whole = sum(map(len, pieces))
            self.queue_bytes -= taken
            if taken == whole:
                if len(pieces) == len(self.queue):
                    self.queue.clear()
                else:
                    for _ in pieces:
                        self.queue.popleft()
                continue
            while taken:
                first = self.queue.popleft()
                if len(first) > taken:
                    self.queue.appendleft(memoryview(first)[taken:])
                    break
                taken -= len(first)
        return written

    # In

    def read(self) -> int:
        """What has come into the buffer: 0 is the end. Raises BlockingIOError when there is nothing."""
        count = self.socket.recv_into(self._view[self._end :])
        self._end += count
        return count

    def greeting(self) -> memoryview:
        """All that is there, for the handshake."""
        return self._view[self._begin : self._end]

    def used(self, count: int) -> None:
        self._begin += count
        if self.handshake is not None and not self.handshake.done and self._end == len(self._buffer):
            raise Malformed("it says more than a node says before it is known")

    def block(self) -> memoryview | None:
        """The next whole block, if there is one; the memory is used again by the next `read`."""
        size_at = self._begin + BLOCK.size
        seal = self._unsealing.size
        if self._end < size_at:
            self._make_room(BLOCK.size + seal)
            return None
        (size,) = BLOCK.unpack_from(self._buffer, self._begin)
        if size > BLOCK_BYTES_MAX:
            raise Malformed(f"a block of {size} bytes")
        body_at = size_at + seal
        end = body_at + size
        if self._end < end:
            self._make_room(BLOCK.size + seal + size)
            return None
        body = self._view[body_at:end]
        if not self._unsealing.fits(self._view[size_at:body_at], body):
            raise Malformed("a block that was not sealed by that node, or not now")
        self._begin = end
        return body

    def _make_room(self, wanted: int) -> None:
        """Move the begun block to the front; get a larger buffer for a larger block, and give a very large one back."""
        if wanted > len(self._buffer):
            self._renew(wanted)
        elif len(self._buffer) > BUFFER_BYTES_KEPT and wanted <= BUFFER_BYTES and self._end - self._begin < wanted:
            self._renew(BUFFER_BYTES)
        elif self._begin:
            count = self._end - self._begin
            self._view[:count] = self._view[self._begin : self._end]
            self._begin, self._end = 0, count

    def _renew(self, size: int) -> None:
        rest = self._view[self._begin : self._end]
        self._buffer = bytearray(max(size, len(rest)))
        self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)

    def part(self) -> bool:
        """One step of an orderly end: all is written, no more comes. True: that is so."""
        try:
            self.write()
            if not self.queue and not self.held:
                self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv_into(self._buffer):
                pass
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self.is_closed = True
        self.queue.clear()
        self.held.clear()
        self.pending = []
        self.queue_bytes = self.held_bytes = self.pending_bytes = 0
        self.socket.close()
