"""A line to another node inside TLS: both show certificates of the cluster, each that of the node it says it is.

TLS is beneath the handshake with the secret, not in its place: whoever has only one of the two gets nowhere. Blocks are
read and written as on any other wire; what is different is that bytes can wait here that the queue knows nothing of.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Final, cast

from fairlead.bus.config import TlsFiles
from fairlead.bus.edge.wire import Wire
from fairlead.bus.frames import Malformed
from fairlead.bus.handshake import Handshake
from fairlead.errors import ConfigError
from fairlead.security.certificates import names_in

__all__ = ["SecureWire", "Tls"]

READ_BYTES: Final = 65_536
PLAIN_BYTES: Final = 65_536  # encrypted at a time, and not more before that is written


class Tls:
    """The certificates of a node. A renewed one is shown on the next line; one that cannot be used is not."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp: tuple[int, ...] = ()
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._load()

    def context(self, *, server_side: bool) -> ssl.SSLContext:
        if self._seen() != self._stamp:
            try:
                self._load()
            except ConfigError:
                pass  # half of a new pair: the old one goes on
        return self._contexts[server_side]

    def _seen(self) -> tuple[int, ...]:
        try:
            return tuple(Path(file).stat().st_mtime_ns for file in self._files)
        except OSError:
            return self._stamp

    def _load(self) -> None:
        stamp, files = self._seen(), self._files
        made = {}
        for server_side in (True, False):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.check_hostname = False  # nodes are called by names of their own: see `vouches`
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_cert_chain(files.certificate, files.key)
                context.load_verify_locations(files.ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"the certificates of this node cannot be used: {error}") from None
            made[server_side] = context
        self._contexts, self._stamp = made, stamp


class SecureWire(Wire):
    """Plain bytes to the rest of the bus, ciphertext to the network."""

    def __init__(
        self, sock: socket.socket, bus: str, address: str, handshake: Handshake, now_s: float, tls: Tls
    ) -> None:
        super().__init__(sock, bus, address, handshake, now_s)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        called = bool(address)
        self._tls = tls.context(server_side=not called).wrap_bio(self._incoming, self._outgoing, server_side=not called)
        self._is_secure = False
        self._unsent = b""
        self._is_full = False  # there was more than the buffer took
        if called:
            self._shake()

    @property
    def wants_write(self) -> bool:
        return bool(self._unsent or self._outgoing.pending or (self._is_secure and self.queue))

    @property
    def has_more(self) -> bool:
        return self._is_full

    def vouches(self, node: str) -> bool:
        certificate = self._tls.getpeercert() or {}
        return node in names_in(certificate, "san-dns") or node in names_in(certificate, "cn")

    def write(self, limit: int = 1 << 62) -> int:
        written = 0
        while not self.connecting and self._flush() and self._is_secure and self.queue and written < limit:
            written += self._encrypt()
        return written

    def _encrypt(self) -> int:
        """The next bytes of the queue, as ciphertext that is not sent yet."""
        pieces, size = [], 0
        while self.queue and size < PLAIN_BYTES:
            first = self.queue.popleft()
            if size + len(first) > PLAIN_BYTES:
                view = memoryview(first)
                self.queue.appendleft(view[PLAIN_BYTES - size :])
                first = view[: PLAIN_BYTES - size]
            pieces.append(first)
            size += len(first)
        self._tls.write(b"".join(pieces))
        self.queue_bytes -= size
        return size

    def _flush(self) -> bool:
        """Ciphertext to the network; False: it takes no more."""
        while self._unsent or self._outgoing.pending:
            self._unsent = self._unsent or self._outgoing.read()
            try:
                taken = self.socket.send(self._unsent, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return False
            self._unsent = self._unsent[taken:]
        return True

    def read(self) -> int:
        count = self._decrypt()
        if count:
            return count
        data = self.socket.recv(READ_BYTES)
        if not data:
            return 0
        self._incoming.write(data)
        if not self._is_secure:
            self._shake()
        count = self._decrypt()
        if not count:
            raise BlockingIOError
        return count

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            try:
                self._flush()  # the alert that says why
            except OSError:
                pass
            reason = getattr(error, "verify_message", "") or error.reason or "no TLS"
            raise Malformed(f"TLS with it comes to nothing: {reason}") from None
        self._is_secure = True

    def _decrypt(self) -> int:
        """What there is, as far as it fits into the buffer."""
        if not self._is_secure:
            return 0
        count, self._is_full = 0, False
        try:
            while self._end < len(self._buffer):
                room = self._view[self._end :]
                taken = cast(int, self._tls.read(len(room), cast(bytearray, room)))
                if not taken:
                    break
                self._end += taken
                count += taken
            self._is_full = self._end == len(self._buffer)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if not count:
                raise Malformed(f"TLS with it has ended: {error.reason or 'it is broken'}") from None
        return count

    def part(self) -> bool:
        try:
            self.write()
            if not self.wants_write and not self.held:
                self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(READ_BYTES):
                pass
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass
        return True
