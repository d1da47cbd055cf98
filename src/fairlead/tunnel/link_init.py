"""What the first packets on a link say: who dialled, which tunnels it still has (TUN-44), which of them are refused.

Version 1 carries neither authentication nor verifiers. A tunnel without a verifier (it was opened in version 1, and has
no token) shows 32 zero bytes in version 2 and `b""` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from fairlead.errors import RemoteProtocolError

__all__ = [
    "LINK_PAYLOAD_MAX",
    "LINK_TUNNELS_MAX",
    "SERVER_BYTES_MAX",
    "START_ID_BYTES",
    "VERIFIER_BYTES",
    "LinkInit",
    "LinkInitAck",
    "LinkTunnel",
    "shown_secret",
]

LINK_PAYLOAD_MAX = 1 << 20
"""LINK_INIT holds all tunnels of a broker, so it may be larger than packets of a tunnel: some 22 000 of them."""
LINK_TUNNELS_MAX = (LINK_PAYLOAD_MAX - (66 << 10)) // 44
"""As many fit beside the longest server id and authentication."""
SERVER_BYTES_MAX = 255
START_ID_BYTES = 16
VERIFIER_BYTES = 32

SHORT = Struct(">H")
COUNT = Struct(">I")
TUNNEL = {1: Struct(">Ii"), 2: Struct(">IiI32s")}
NO_VERIFIER = bytes(VERIFIER_BYTES)


class LinkTunnel(NamedTuple):
    """A tunnel that lives: what a gateway must know to carry on with it."""

    connection_id: int
    pull_period_s: int = 0
    inactivity_s: int = 0
    """0: not said, as in version 1."""
    verifier: bytes = b""


class LinkInit(NamedTuple):
    """`start_id` is drawn anew whenever a broker starts: the same broker, dialling again, has the same."""

    server: str
    authentication: bytes = b""
    start_id: bytes = b""
    tunnels: Sequence[LinkTunnel] = ()

    def encode(self, version: int = 2) -> bytes:
        server = self.server.encode()
        if not 0 < len(server) <= SERVER_BYTES_MAX:
            raise ValueError(f"a server id has 1 to {SERVER_BYTES_MAX} bytes")
        parts = [SHORT.pack(len(server)), server]
        entry = TUNNEL[version]
        if version == 1:
            parts.append(COUNT.pack(len(self.tunnels)))
            parts += [entry.pack(one.connection_id, one.pull_period_s) for one in self.tunnels]
            return b"".join(parts)
        if len(self.start_id) != START_ID_BYTES:
            raise ValueError(f"a start id has {START_ID_BYTES} bytes")
        parts += (SHORT.pack(len(self.authentication)), self.authentication, self.start_id)
        parts.append(COUNT.pack(len(self.tunnels)))
        for one in self.tunnels:
            if len(one.verifier) not in (0, VERIFIER_BYTES):
                raise ValueError(f"a verifier has {VERIFIER_BYTES} bytes")
            parts.append(entry.pack(one.connection_id, one.pull_period_s, one.inactivity_s, one.verifier))
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: bytes, version: int = 2) -> LinkInit:
        """RemoteProtocolError for whatever `encode` would not have made."""
        raw, at = take_string(payload, 0)
        try:
            server = raw.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("The server id of LINK_INIT is not UTF-8.") from None
        if not 0 < len(raw) <= SERVER_BYTES_MAX:
            raise RemoteProtocolError(f"The server id of LINK_INIT has {len(raw)} bytes; 1 to {SERVER_BYTES_MAX} fit.")
        authentication = start_id = b""
        if version != 1:
            authentication, at = take_string(payload, at)
            start_id = payload[at : at + START_ID_BYTES]
            at += START_ID_BYTES
        if len(payload) < at + COUNT.size:
            raise RemoteProtocolError("LINK_INIT is cut off.")
        (count,) = COUNT.unpack_from(payload, at)
        at += COUNT.size
        entry = TUNNEL[1 if version == 1 else 2]
        if len(payload) - at != count * entry.size:
            raise RemoteProtocolError(f"LINK_INIT announces {count} tunnels and does not hold as many.")
        tunnels = [LinkTunnel(*fields) for fields in entry.iter_unpack(payload[at:])]
        tunnels = [one._replace(verifier=b"") if one.verifier == NO_VERIFIER else one for one in tunnels]
        ids = {one.connection_id for one in tunnels}
        if 0 in ids or len(ids) != len(tunnels):
            raise RemoteProtocolError("LINK_INIT lists a tunnel twice, or one without an id.")
        return cls(server, authentication, start_id, tunnels)


def shown_secret(payload: bytes) -> bytes:
    """The authentication of a LINK_INIT of version 2 alone: the tunnels a stranger lists need not be read."""
    _, at = take_string(payload, 0)
    return take_string(payload, at)[0]


class LinkInitAck(NamedTuple):
    """The listed tunnels which the gateway has ended; all others go on."""

    refused: Sequence[int] = ()

    def encode(self) -> bytes:
        return COUNT.pack(len(self.refused)) + b"".join(map(COUNT.pack, self.refused))

    @classmethod
    def decode(cls, payload: bytes) -> LinkInitAck:
        if len(payload) < COUNT.size or len(payload) != COUNT.size * (1 + COUNT.unpack_from(payload)[0]):
            raise RemoteProtocolError("LINK_INIT_ACK does not hold as many ids as it announces.")
        return cls([one for (one,) in COUNT.iter_unpack(payload[COUNT.size :])])


def take_string(payload: bytes, at: int) -> tuple[bytes, int]:
    """A 16-bit length and as many bytes; and where the next thing begins."""
    if len(payload) < at + SHORT.size:
        raise RemoteProtocolError("LINK_INIT is cut off.")
    (size,) = SHORT.unpack_from(payload, at)
    at += SHORT.size
    if len(payload) < at + size:
        raise RemoteProtocolError("LINK_INIT is cut off within a string.")
    return payload[at : at + size], at + size
