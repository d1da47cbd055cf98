"""One socket of the bulk client: bytes between it and the protocol, and never a wait without an end.

Whatever goes wrong closes it: after half a frame there is nothing to go on with.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from math import ceil

from fairlead.client.bulk.protocol import Protocol
from fairlead.client.target import Address
from fairlead.errors import ConfigError, ConnectionLost, FairleadError, RequestTimeout
from fairlead.tunnel.options import TunnelOptions
from fairlead.wire.handshake import Connect

__all__ = ["Line", "dial"]

READS_MAX = 1024  # without looking at the clock
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Line:
    """One connection to the server."""

    def __init__(self, sock: socket.socket, address: Address, hello: Connect) -> None:
        self.protocol = Protocol(hello)
        self.closed = False
        self._socket = sock
        self._address = address
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._waits_to_write = False
        self._dry = False  # the last read brought less than there was room for: ask the kernel before the next

    def turn(self, until_s: float) -> None:
        """Write and take in what is possible now; if nothing is, wait for it. RequestTimeout at `until_s`."""
        try:
            is_busy = self._write() | self._read()
            left_s = until_s - time.monotonic()
            if left_s > 0 and is_busy:
                return
            self._watch(bool(self.protocol.out))
            if left_s <= 0 or not self._poll.poll(ceil(left_s * 1000)):
                raise RequestTimeout(f"{self._address} did not answer in time.")
            self._dry = False
        except BaseException as error:
            self._fail(error)
            raise

    def push(self) -> None:
        """Write and take in what is possible without waiting."""
        try:
            self._dry = False
            self._write()
            for _ in range(READS_MAX):
                if not self._read():
                    break
            self._write()
        except BaseException as error:
            self._fail(error)
            raise

    def goodbye(self) -> None:
        """Close it in order, as far as that is possible without waiting."""
        if not self.closed:
            self.protocol.goodbye()
            try:
                self._write()
            except OSError:
                pass
            self.close()

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def _write(self) -> bool:
        out, wrote = self.protocol.out, False
        while out:
            try:
                sent = self._socket.send(out[0])
            except NOT_NOW:
                break
            wrote = wrote or sent > 0
            if sent < len(out[0]):
                out[0] = memoryview(out[0])[sent:]
            else:
                out.popleft()
        return wrote

    def _read(self) -> bool:
        if self._dry:
            return False
        space = self.protocol.incoming.space
        try:
            count = self._socket.recv_into(space)
        except NOT_NOW:
            return False
        if not count:
            raise self.protocol.lost or ConnectionLost(f"{self._address} closed the connection.")
        self._dry = count < len(space) and not self._is_tls  # of TLS a part of what is there is normal
        self.protocol.on_bytes(count)
        if self.protocol.lost is not None:
            raise self.protocol.lost
        return True

    def _watch(self, write: bool) -> None:
        if write != self._waits_to_write:
            self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if write else 0))
            self._waits_to_write = write

    def _fail(self, error: BaseException) -> None:
        self.close()
        if isinstance(error, OSError) and not isinstance(error, FairleadError):
            raise ConnectionLost(f"The connection to {self._address} broke: {error}.") from error


def dial(
    address: Address,
    tls: ssl.SSLContext | None,
    hello: Connect,
    until_s: float,
    tunnel: TunnelOptions | None = None,
) -> Line:
    """A line that is ready, or the reason why there is none."""
    left_s = max(until_s - time.monotonic(), 0.001)
    try:
        if address.tunnel is not None:
            from fairlead.tunnel.edge.plug import plug

            sock = plug(address.tunnel, tunnel or TunnelOptions(), timeout_s=left_s, tls=tls)
        elif address.path:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(left_s)
            try:
                sock.connect(address.path)
            except OSError:
                sock.close()
                raise
        else:
            sock = socket.create_connection((address.host, address.port), left_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if tls is not None and address.tunnel is None:
            sock = tls.wrap_socket(sock, server_hostname=address.host or "localhost")
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"The certificate of {address} is not to be trusted: {error.verify_message}. "
            "Where it is your own, name the file of whoever signed it (tlsCa, tls_ca)."
        ) from error
    except OSError as error:
        if isinstance(error, FairleadError):
            raise  # a gateway's own words
        raise ConnectionLost(f"Cannot connect to {address}: {error}.") from error
    sock.setblocking(False)
    line = Line(sock, address, hello)
    while not line.protocol.is_live:
        line.turn(until_s)
    return line
