"""TLS between a client's bytes and the engine: one call per read and one per flush, never one per message."""

from __future__ import annotations

import ssl
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairlead.errors import ConfigError
from fairlead.security.certificates import expires_s

READ_BYTES = 65536
ABOUT_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA")  # in the reasons of OpenSSL

_made: weakref.WeakKeyDictionary[ssl.SSLContext, tuple[str, str]] = weakref.WeakKeyDictionary()


def make_context(certificate: str, key: str) -> ssl.SSLContext:
    """What the server presents; TLS 1.2 or newer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(Path(certificate).expanduser(), Path(key).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The TLS certificate {certificate} and key {key} cannot be used: {error}") from None
    _made[context] = certificate, key
    return context


def renew_contexts() -> None:
    """Have every context of this process present what its files hold by now; ConfigError leaves them as they are."""
    for context, (certificate, key) in list(_made.items()):
        make_context(certificate, key)
        context.load_cert_chain(Path(certificate).expanduser(), Path(key).expanduser())


def ask_for_certificates(context: ssl.SSLContext, ca: str, crl: str = "", *, require: bool = False) -> None:
    """Have this side check what the other shows: signed by `ca`, in its time, not on the list of revoked ones.

    Who shows none gets through unless `require`: whoever asks in a higher protocol can say what is missing.
    """
    _trust(context, ca)
    if crl:
        _trust(context, crl)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = ssl.CERT_REQUIRED if require else ssl.CERT_OPTIONAL
    context.options |= ssl.OP_NO_TICKET  # a session that is taken up again is not checked again
    context.num_tickets = 0


def _trust(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(Path(file).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The certificates of {file} cannot be used: {error}") from None


def revoked_serials(file: str) -> frozenset[int]:
    """The numbers on a list of revoked certificates, for connections that are open when it comes."""
    try:
        from cryptography import x509
    except ImportError:
        raise ConfigError("reading it needs the extra `tokens`: pip install 'fairlead[tokens]'") from None
    try:
        data = Path(file).expanduser().read_bytes()
        blocks = [b"-----BEGIN X509 CRL-----" + part for part in data.split(b"-----BEGIN X509 CRL-----")[1:]]
        return frozenset(entry.serial_number for block in blocks for entry in x509.load_pem_x509_crl(block))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the list of revoked certificates {file} cannot be read: {error}") from None


def expiry_of(certificate: str, key: str) -> float | None:
    """When a certificate of ours expires, in seconds since 1970; 0: it has. None: that cannot be found out.

    Found by shaking hands with ourselves, since Python reads only certificates of others.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        server = make_context(certificate, key)
        _trust(client, certificate)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        theirs = server.wrap_bio(to_server, to_client, server_side=True)
        ours = client.wrap_bio(to_client, to_server)
        for _ in range(4):
            for side in (ours, theirs):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        return expires_s(ours.getpeercert() or {})
    except ssl.SSLCertVerificationError as error:
        return 0.0 if "expired" in error.verify_message else None
    except (ConfigError, ssl.SSLError, ValueError):
        return None


class TlsFilter:
    """The server's side of one TLS connection, over memory. `failed` is told why a handshake came to nothing."""

    def __init__(
        self, context: ssl.SSLContext, failed: Callable[[str, bool], None] = lambda reason, of_certificate: None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._failed = failed
        self._greeted = False
        self._over = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Ciphertext that arrived: (plain bytes in it, what has to be sent back). ssl.SSLError when it is no TLS."""
        if self._over:
            return b"", b""
        self._incoming.write(data)
        plain = bytearray()
        try:
            if not self._greeted:
                self._greet()
            while self._greeted and (piece := self._tls.read(READ_BYTES)):
                plain += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # as far as it goes; after a close_notify the transport's own end follows
        return bytes(plain), self._outgoing.read()

    def _greet(self) -> None:
        """Go on with the handshake; when it fails the other side is sent the alert that says so."""
        try:
            self._tls.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            if not self._outgoing.pending:
                raise
            self._over = True
            reason = getattr(error, "verify_message", "") or error.reason or "TLS"
            of_certificate = any(word in (error.reason or "") for word in ABOUT_CERTIFICATES)
            self._failed(reason, of_certificate)
        else:
            self._greeted = True

    def certificate(self) -> Mapping[str, Any] | None:
        """What the other side has shown and is true; None if that is nothing."""
        return self._tls.getpeercert() or None if self._greeted else None

    def send(self, data: bytes) -> bytes:
        """Ciphertext for these bytes; nothing before the handshake is over."""
        if not self._greeted:
            return b""
        self._tls.write(data)
        return self._outgoing.read()
