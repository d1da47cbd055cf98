"""The secret of a tunnel (TUN-63): the client shows it with every request; everybody else has only its SHA-256."""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest

__all__ = ["TOKEN_BYTES", "is_same_secret", "opens", "verifier_of"]

TOKEN_BYTES = 32


def verifier_of(token: bytes) -> bytes:
    return sha256(token).digest()


def opens(token: str, verifier: bytes) -> bool:
    """Is this, in hex, the token? How long the answer takes says nothing about it."""
    try:
        shown = bytes.fromhex(token)
    except ValueError:
        return False
    return compare_digest(sha256(shown).digest(), verifier)


def is_same_secret(shown: bytes, secret: bytes) -> bool:
    """Not even the length can be told from the time it takes."""
    return compare_digest(sha256(shown).digest(), sha256(secret).digest())
