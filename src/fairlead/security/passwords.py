"""Password hashes that are slow and memory-hard on purpose: `scrypt$n$r$p$salt$hash`.

One check takes about 32 MiB and a tenth of a second, with the interpreter lock released: call it where
that may block, such as a helper thread. The parameters stand in each hash, so raising them later keeps
old passwords valid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

COST_N = 2**15
BLOCK_R = 8
PARALLEL_P = 1
SALT_BYTES = 16
HASH_BYTES = 32
MEMORY_MAX_BYTES = 256 << 20  # a hash in the file that asks for more is not tried


def hash_password(password: str) -> str:
    """A new hash with a salt of its own."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _scrypt(password, salt, COST_N, BLOCK_R, PARALLEL_P, HASH_BYTES)
    return "$".join(("scrypt", str(COST_N), str(BLOCK_R), str(PARALLEL_P), _text(salt), _text(digest)))


def verify_password(password: str, stored: str) -> bool:
    """Does the password belong to this hash? Compared in constant time."""
    n, r, p, salt, digest = parse_hash(stored)
    return hmac.compare_digest(_scrypt(password, salt, n, r, p, len(digest)), digest)


def parse_hash(stored: str) -> tuple[int, int, int, bytes, bytes]:
    """n, r, p, salt and digest of a stored hash; ValueError if it is not one, or asks for too much."""
    parts = stored.split("$")
    if len(parts) != 6 or parts[0] != "scrypt":
        raise ValueError("a password hash reads scrypt$n$r$p$salt$hash")
    n, r, p = (int(part) for part in parts[1:4])
    salt, digest = (base64.b64decode(part, validate=True) for part in parts[4:])
    if n < 2 or n & (n - 1) or r < 1 or p < 1 or 128 * n * r * p > MEMORY_MAX_BYTES or len(digest) < 16:
        raise ValueError("the parameters of this password hash are out of range")
    return n, r, p, salt, digest


DUMMY_HASH = "$".join(
    ("scrypt", str(COST_N), str(BLOCK_R), str(PARALLEL_P), "AAAAAAAAAAAAAAAAAAAAAA==", "A" * 43 + "=")
)
"""Checked in place of a user who does not exist, so that guessing names takes as long as guessing passwords."""


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int, length: int) -> bytes:
    needed = 128 * r * (n + p + 2)
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=needed + (1 << 20), dklen=length
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
