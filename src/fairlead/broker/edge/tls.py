"""TLS between a client's bytes and the engine: one call per read and one per flush, never one per message."""

from __future__ import annotations

import ssl
from pathlib import Path

from fairlead.errors import ConfigError

READ_BYTES = 65536


def make_context(certificate: str, key: str) -> ssl.SSLContext:
    """What the server presents; TLS 1.2 or newer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(Path(certificate).expanduser(), Path(key).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The TLS certificate {certificate} and key {key} cannot be used: {error}") from None
    return context


class TlsFilter:
    """The server's side of one TLS connection, over memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._greeted = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Ciphertext that arrived: (plain bytes in it, what has to be sent back). ssl.SSLError when it is no TLS."""
        self._incoming.write(data)
        plain = bytearray()
        try:
            if not self._greeted:
                self._tls.do_handshake()
                self._greeted = True
            while piece := self._tls.read(READ_BYTES):
                plain += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # as far as it goes; after a close_notify the transport's own end follows
        return bytes(plain), self._outgoing.read()

    def send(self, data: bytes) -> bytes:
        """Ciphertext for these bytes; nothing before the handshake is over."""
        if not self._greeted:
            return b""
        self._tls.write(data)
        return self._outgoing.read()
