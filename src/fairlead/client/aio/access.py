"""What a client shows to get in, fresh for every connection: a token, another one each time if need be; certificates.

Files of certificates are looked at before each connection, so that a renewed one is shown without a restart. A token
is asked for when it is needed and never kept longer than its connection takes to open.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias, TypedDict

import msgspec

from fairlead.client.session import Session
from fairlead.errors import BadCredentials, ConfigError, ConnectionLost, FairleadError
from fairlead.wire.handshake import TOKEN_MAX

__all__ = ["Access", "File", "Shown", "TokenSource", "refused_certificate"]

File: TypeAlias = str | os.PathLike[str]
TokenSource: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token; or who gives one, a function that may block, or a coroutine function."""


class Shown(TypedDict, total=False):
    """The options of `connect` that are about this, for those who hand them on."""

    token: TokenSource | None
    certificate: File | None
    key: File | None
    ca: File | None
    tls: ssl.SSLContext | None


REFUSED = ("CERTIFICATE", "UNKNOWN_CA", "DECRYPT_ERROR")  # in the alerts of a server that does not like ours


class Access:
    """All that `connect` was told about it."""

    def __init__(
        self,
        *,
        token: TokenSource | None = None,
        certificate: File | None = None,
        key: File | None = None,
        ca: File | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if tls is not None and (certificate or key or ca):
            raise ConfigError("Give an SSL context, or certificate, key and ca; not both.")
        if key and not certificate:
            raise ConfigError("A key is of no use without its certificate.")
        self._token = token
        self._certificate, self._key, self._ca = (_path(file) for file in (certificate, key, ca))
        self._stamp: tuple[tuple[int, int], ...] = ()
        self.tls = tls
        """The context there is; None: the usual one, or none."""
        if self.has_files:
            self._load()

    @property
    def has_files(self) -> bool:
        return self._certificate is not None or self._ca is not None

    @property
    def is_renewable(self) -> bool:
        """Could the next connection show something newer than this one?"""
        return callable(self._token) or self._certificate is not None

    async def freshen(self, session: Session) -> None:
        """Before a connection is opened: what it is to show."""
        if self.has_files and self._seen() != self._stamp:
            self._load()
        if self._token is not None:
            session.hello = msgspec.structs.replace(session.hello, token=await self._ask())

    async def _ask(self) -> str:
        source = self._token
        if callable(source):
            try:
                given = source() if inspect.iscoroutinefunction(source) else await asyncio.to_thread(source)
                token = await given if inspect.isawaitable(given) else given
            except (FairleadError, asyncio.CancelledError):
                raise
            except Exception as error:
                raise ConnectionLost(f"No token could be had: {type(error).__name__}: {error}") from error
        else:
            token = source
        if not isinstance(token, str) or not token or len(token) > TOKEN_MAX:
            raise ConfigError(f"A token is text of 1 to {TOKEN_MAX} characters; this is none.")
        return token

    def _seen(self) -> tuple[tuple[int, int], ...]:
        found = []
        for path in (self._certificate, self._key, self._ca):
            if path is not None:
                try:
                    facts = path.stat()
                except OSError:
                    return self._stamp  # being replaced: what was read is good for once more
                found.append((facts.st_mtime_ns, facts.st_size))
        return tuple(found)

    def _load(self) -> None:
        try:
            context = ssl.create_default_context(cafile=self._ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self._certificate is not None:
                context.load_cert_chain(self._certificate, self._key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            if self.tls is not None:
                return  # half of a new pair: the old one goes on
            files = ", ".join(str(file) for file in (self._ca, self._certificate, self._key) if file)
            raise ConfigError(f"The certificates of {files} cannot be used: {error}") from None
        self.tls, self._stamp = context, self._seen()


def refused_certificate(error: BaseException | None) -> BadCredentials | None:
    """Does TLS say that the server does not take our certificate? What it says is the reason then."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLCertVerificationError):
        return None
    reason = error.reason or ""
    if "ALERT" not in reason or not any(word in reason for word in REFUSED):
        return None
    said = reason.lower().partition("alert_")[2].replace("_", " ")
    return BadCredentials(f"The server does not accept this client's certificate ({said}).")


def _path(file: File | None) -> Path | None:
    return Path(file).expanduser() if file else None
