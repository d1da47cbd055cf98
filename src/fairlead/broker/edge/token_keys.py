"""Where the keys of tokens come from: a file, or a URL that is asked now and then, never by the loop.

What was read last stays good while the source fails, for as long as the settings say. An answer is bounded in size and
in time, redirects are not followed, and plain HTTP is for this host only.
"""

from __future__ import annotations

import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Final

from fairlead.errors import ConfigError
from fairlead.runtime.config import check_keys_url
from fairlead.security.keysets import KEYS_BYTES_MAX, BadKeys, KeySet, read_keys

__all__ = ["KeySource"]

READ_S: Final = 5.0
WHOLE_S: Final = 10.0
PAUSE_S: Final = 5.0  # between two attempts that were not asked for by the clock
PIECE: Final = 16_384


class KeySource:
    """The keys of one issuer. `refresh` blocks: for helper threads only. Everything else answers at once."""

    def __init__(
        self,
        where: str,
        *,
        ca: str = "",
        refresh_s: float = 300.0,
        stale_s: float = 86400.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.where = where
        self.is_url = "://" in where
        self.problem = ""  # why the last attempt failed
        self._ca, self._refresh_s, self._stale_s, self._now_s = ca, refresh_s, stale_s, now_s
        self._keys = KeySet()
        self._read_s = -1e9
        self._tried_s = -1e9
        self._seen = (0, 0, 0)
        self._lock = threading.Lock()
        if self.is_url:
            check_keys_url(where)

    def keys(self) -> KeySet:
        """What is relied on at this moment; what came from a file is, until that is another one."""
        return self._keys if not self.is_url or self._now_s() - self._read_s <= self._stale_s else KeySet()

    def take_over(self, before: KeySource) -> None:
        """Rely on what another one of the same place has read, until this one has."""
        self._keys, self._read_s = before._keys, before._read_s

    def is_old(self) -> bool:
        """Is it time to read them again, and long enough since that was tried?"""
        now_s = self._now_s()
        return now_s - self._read_s > self._refresh_s and now_s - self._tried_s > PAUSE_S

    def is_worth_a_try(self) -> bool:
        """Somebody shows a key that is not among them: may there be newer ones?"""
        return self._now_s() - self._tried_s > PAUSE_S if self.is_url else self._stamp() != self._seen

    def refresh(self) -> bool:
        """Read them again; False, with a `problem`, leaves what there was."""
        with self._lock:
            self._tried_s = self._now_s()
            try:
                keys = read_keys(self._fetch() if self.is_url else self._read())
            except (OSError, ValueError, HTTPException) as error:
                self.problem = _told(error)
                return False
            self._keys, self._read_s, self.problem = keys, self._now_s(), ""
            return True

    def _stamp(self) -> tuple[int, int, int]:
        """Of the file, as it is: another one after it was written or replaced."""
        try:
            facts = Path(self.where).expanduser().stat()
        except OSError:
            return 0, 0, 0
        return facts.st_mtime_ns, facts.st_size, facts.st_ino

    def _read(self) -> bytes:
        self._seen = self._stamp()
        path = Path(self.where).expanduser()
        with path.open("rb") as file:
            data = file.read(KEYS_BYTES_MAX + 1)
        if path.stat().st_mode & 0o007 and any("HS256" in key.algorithms for key in read_keys(data).keys):
            raise BadKeys(f"everybody on this host can read the secret in {path}; run `chmod 600 {path}`")
        return data

    def _fetch(self) -> bytes:
        """The answer of the URL, whole, within bounds."""
        until_s = self._now_s() + WHOLE_S
        try:
            context = ssl.create_default_context(cafile=str(Path(self._ca).expanduser()) if self._ca else None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"[tokens] keys_ca cannot be used: {error}") from None
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler(), _Straight()
        )
        request = urllib.request.Request(self.where, headers={"Accept": "application/json", "User-Agent": "fairlead"})
        data = bytearray()
        with opener.open(request, timeout=READ_S) as answer:
            while piece := answer.read1(PIECE):
                data += piece
                if len(data) > KEYS_BYTES_MAX:
                    raise BadKeys(f"the answer has more than {KEYS_BYTES_MAX} bytes")
                if self._now_s() > until_s:
                    raise BadKeys(f"the answer did not come within {WHOLE_S:g} s")
        return bytes(data)


class _Straight(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: what is there was not checked by anybody."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _told(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"it answers with {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)[:200]
    return (str(error) or type(error).__name__)[:200]
