"""A sealed body, byte by byte (docs/sealing.md has the same as a table). Nothing is decrypted here.

::

    8 bytes   89 46 4C 53 45 41 4C 0A
    1 byte    version, 1
    1 byte    kind: 1 under a shared key, 2 for the holders of key pairs
    16 bytes  kind 1: id of the shared key; kind 2: id of the sender's key pair
    kind 2:
      1 byte    how many holders, 1 to 16
      each:     16 bytes id of the holder's key pair, 24 bytes nonce, 48 bytes content key in a box for it
    24 bytes  nonce                                   up to here: the head, which is bound too
    kind 2:
      64 bytes  signature
    the rest  ciphertext and 16 bytes tag
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fairlead.errors import IntegrityError
from fairlead.sealing.sodium import ID_BYTES, KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES, TAG_BYTES

MAGIC: Final = b"\x89FLSEAL\n"
VERSION: Final = 1
SHARED: Final = 1
PAIRS: Final = 2
HOLDERS_MAX: Final = 16

_FIXED: Final = len(MAGIC) + 2 + ID_BYTES
_BOX_BYTES: Final = KEY_BYTES + TAG_BYTES
_HOLDER_BYTES: Final = ID_BYTES + NONCE_BYTES + _BOX_BYTES


class Holder(NamedTuple):
    """One that can open it: by the key pair of this id."""

    key: bytes
    nonce: bytes
    box: bytes


class Envelope(NamedTuple):
    kind: int
    key: bytes  # of the shared key, or of the sender's pair
    holders: tuple[Holder, ...]
    nonce: bytes
    head: bytes  # all of the above as it was written
    signature: bytes
    sealed: bytes  # ciphertext and tag


def head(kind: int, key: bytes, holders: tuple[Holder, ...], nonce: bytes) -> bytes:
    start = MAGIC + bytes((VERSION, kind)) + key
    if kind == PAIRS:
        start += bytes((len(holders),)) + b"".join(b"".join(holder) for holder in holders)
    return start + nonce


def looks_sealed(body: bytes) -> bool:
    """Does it begin like a sealed body? What does not begin so is none."""
    return body[: len(MAGIC)] == MAGIC


def read(data: bytes) -> Envelope:
    """Its parts; IntegrityError where it is none, is cut off, or was written by a version that is not known here."""
    if not looks_sealed(data) or len(data) < _FIXED:
        raise IntegrityError("This is not a sealed body; it was changed on the way, or was never sealed.")
    version, kind = data[len(MAGIC)], data[len(MAGIC) + 1]
    if version != VERSION or kind not in (SHARED, PAIRS):
        raise IntegrityError(
            f"A body sealed in a way that is not known here (version {version}, kind {kind}); it was changed on the "
            f"way, or this side needs a newer Fairlead."
        )
    key, at = data[_FIXED - ID_BYTES : _FIXED], _FIXED
    holders: tuple[Holder, ...] = ()
    if kind == PAIRS:
        count = data[at] if len(data) > at else 0
        if not 1 <= count <= HOLDERS_MAX:
            raise IntegrityError(f"A sealed body with {count} holders; 1 to {HOLDERS_MAX} can be.")
        at += 1
        holders = tuple(_holder(data, at + number * _HOLDER_BYTES) for number in range(count))
        at += count * _HOLDER_BYTES
    nonce, at = data[at : at + NONCE_BYTES], at + NONCE_BYTES
    signed = SIGNATURE_BYTES if kind == PAIRS else 0
    if len(data) < at + signed + TAG_BYTES:
        raise IntegrityError("A sealed body that was cut off.")
    return Envelope(kind, key, holders, nonce, data[:at], data[at : at + signed], data[at + signed :])


def _holder(data: bytes, at: int) -> Holder:
    box = at + ID_BYTES + NONCE_BYTES
    return Holder(data[at : at + ID_BYTES], data[at + ID_BYTES : box], data[box : box + _BOX_BYTES])
