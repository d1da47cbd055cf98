"""Tokens by which a client takes its attachment to another connection (docs/protocol.md, section 7).

A token is the attachment's uid and a keyed hash of it. Every manager of a server has the same secret, so any of them
can check what another one gave out, and nothing has to be kept.
"""

from __future__ import annotations

import hashlib
import hmac

SECRET_BYTES = 32


def token_for(secret: bytes, uid: int) -> str:
    """The token of one attachment."""
    return f"{uid:x}.{_mark(secret, uid)}"


def uid_of(secret: bytes, token: str) -> int | None:
    """The attachment a token stands for, or None when it is not one of ours."""
    number, _, mark = token.partition(".")
    try:
        uid = int(number, 16)
    except ValueError:
        return None
    if not 0 < uid < 1 << 64 or not hmac.compare_digest(mark.encode("utf-8", "replace"), _mark(secret, uid).encode()):
        return None
    return uid


def _mark(secret: bytes, uid: int) -> str:
    return hmac.new(secret, b"resume" + uid.to_bytes(8, "little"), hashlib.sha256).hexdigest()[:32]
