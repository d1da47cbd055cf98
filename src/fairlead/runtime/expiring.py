"""Notes about certificates of the server's own that expire soon, for whoever looks at its status."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

from fairlead.broker.edge.tls import expiry_of
from fairlead.runtime.settings import Config

__all__ = ["expiry_notes"]

SOON_S: Final = 30 * 86400.0
_known: dict[tuple[str, str, int], float | None] = {}  # by file and when it was written: finding out costs a handshake


def expiry_notes(config: Config, now_s: float) -> list[str]:
    """A sentence if the certificate of the server expires within 30 days, or has."""
    certificate, key = config.security.tls_certificate, config.security.tls_key
    if not certificate:
        return []
    try:
        seen = certificate, key, Path(certificate).expanduser().stat().st_mtime_ns
    except OSError as error:
        return [f"The certificate {certificate} cannot be read: {error.strerror}."]
    if seen not in _known:
        _known.clear()
        _known[seen] = expiry_of(certificate, key)
    expires_s = _known[seen]
    if expires_s is None or expires_s - now_s > SOON_S:
        return []
    what_to_do = "replace it and run `fairlead reload`."
    if expires_s <= now_s:
        return [f"The certificate {certificate} has expired: {what_to_do}"]
    day = datetime.datetime.fromtimestamp(expires_s, datetime.UTC).date()
    return [f"The certificate {certificate} expires on {day}: {what_to_do}"]
