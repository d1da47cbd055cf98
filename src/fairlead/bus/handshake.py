"""Who is at the other end of a new line: both show that they know the cluster's secret, without saying it.

Both say hello with a nonce; the dialler proves first, so that a stranger who only calls gets no proof to work on. The
keys of the two directions come from both hellos: what was recorded on one line is worth nothing on another, and each
block is sealed with its number, so that none can be repeated, left out or moved.
"""

from __future__ import annotations

import hashlib
import hmac
from struct import Struct
from typing import Final

import msgspec

from fairlead.bus.frames import SEAL_BYTES, Malformed

MAGIC: Final = b"FLBUS\0\1\n"
HELLO_BYTES_MAX: Final = 4096
SIZE: Final = Struct("<H")
NUMBER: Final = Struct("<Q")
PROOF_BYTES: Final = 32
ROLES: Final = ("member", "tap", "herald")


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first words of both sides."""

    cluster: str
    bus: str
    node: str
    start: int
    role: str  # "member", "tap" or "herald" (a keeper with news of its child)
    address: str
    nonce: bytes
    sealed: bool


decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Seal:
    """Marks the blocks of one direction. Without a key it marks nothing."""

    def __init__(self, key: bytes | None) -> None:
        self._mac = None if key is None else hmac.new(key, digestmod=hashlib.sha256)
        self._number = 0
        self.size = 0 if key is None else SEAL_BYTES

    def mark(self, pieces: list[bytes] | list[memoryview]) -> bytes:
        """The seal of the next block."""
        if self._mac is None:
            return b""
        mac = self._mac.copy()
        mac.update(NUMBER.pack(self._number))
        for piece in pieces:
            mac.update(piece)
        self._number += 1
        return mac.digest()[:SEAL_BYTES]

    def fits(self, seal: memoryview, body: memoryview) -> bool:
        return self._mac is None or hmac.compare_digest(self.mark([body]), seal)


class Handshake:
    """One end of a new line, until `done`. Raises Malformed for anything else than a node that belongs here."""

    def __init__(self, mine: Hello, secret: bytes | None, *, dialled: bool) -> None:
        self._mine = mine
        self._secret = secret
        self._dialled = dialled
        self._hello = MAGIC + self._sized(msgspec.msgpack.encode(mine))
        self._transcript = b""
        self._said = False
        self.theirs: Hello | None = None
        self.done = False
        self.out: list[bytes] = []
        if dialled:
            self.out.append(self._hello)

    @property
    def sealing(self) -> Seal:
        return Seal(self._key(b"D" if self._dialled else b"A"))

    @property
    def unsealing(self) -> Seal:
        return Seal(self._key(b"A" if self._dialled else b"D"))

    def take(self, data: memoryview) -> int:
        """How many of these bytes were of the handshake; the rest is wanted again, with more behind it."""
        used = 0
        if self.theirs is None:
            used = self._take_hello(data)
            if self.theirs is None:
                return 0
        if not self.done and len(data) - used >= PROOF_BYTES:
            self._take_proof(bytes(data[used : used + PROOF_BYTES]))
            used += PROOF_BYTES
        return used

    def _take_hello(self, data: memoryview) -> int:
        start = bytes(data[: len(MAGIC)])
        if not MAGIC.startswith(start):
            raise Malformed("not a node of this version: its first bytes are others")
        head = len(MAGIC) + SIZE.size
        if len(data) < head:
            return 0
        size: int = SIZE.unpack_from(data, len(MAGIC))[0]
        if size > HELLO_BYTES_MAX:
            raise Malformed(f"a hello of {size} bytes")
        if len(data) < head + size:
            return 0
        raw = bytes(data[: head + size])
        try:
            theirs = decode_hello(raw[head:])
        except msgspec.MsgspecError as error:
            raise Malformed(f"not a hello: {error}") from None
        self._check(theirs)
        both = (self._hello, raw) if self._dialled else (raw, self._hello)
        self._transcript = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in both)).digest()
        self.theirs = theirs
        if self._dialled:
            self.out.append(self._proof(b"D"))
        else:
            self.out.append(self._hello)
        return head + size

    def _take_proof(self, proof: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(b"A" if self._dialled else b"D")):
            raise Malformed("it does not know the cluster's secret")
        if not self._dialled:
            self.out.append(self._proof(b"A"))
        self.done = True

    def _check(self, theirs: Hello) -> None:
        if theirs.cluster != self._mine.cluster:
            raise Malformed(f"it is of the cluster {theirs.cluster[:64]!r}, not {self._mine.cluster!r}")
        if theirs.bus != self._mine.bus:
            raise Malformed(f"it is on the bus {theirs.bus[:64]!r}, not {self._mine.bus!r}")
        if theirs.sealed != (self._secret is not None):
            raise Malformed("one side has a secret and the other has none")
        if not 0 < len(theirs.node) <= 64 or len(theirs.nonce) != 32 or theirs.role not in ROLES:
            raise Malformed("a hello with impossible values")
        if theirs.nonce == self._mine.nonce:
            raise Malformed("our own words came back")

    def _proof(self, side: bytes) -> bytes:
        return self._derive(b"fairlead bus proof " + side) or bytes(PROOF_BYTES)

    def _key(self, side: bytes) -> bytes | None:
        return self._derive(b"fairlead bus key " + side)

    def _derive(self, purpose: bytes) -> bytes | None:
        if self._secret is None:
            return None
        return hmac.digest(self._secret, purpose + self._transcript, "sha256")

    @staticmethod
    def _sized(data: bytes) -> bytes:
        return SIZE.pack(len(data)) + data
