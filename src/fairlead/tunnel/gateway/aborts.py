"""CONN_ABORT as the gateway writes it, and keeps it."""

from __future__ import annotations

from fairlead.tunnel.packets import Abort, AbortCode, Kind, Packet, encode

__all__ = ["abort_packet", "short"]

BYTES_MAX = 512


def abort_packet(connection_id: int, code: AbortCode, text: str, version: int = 2) -> bytes:
    return encode(Kind.CONN_ABORT, connection_id, payload=Abort(code, text).payload(), version=version)


def short(abort: Packet) -> bytes:
    """As it came, unless it is long: it is remembered for a while, and nobody shall fill our memory with reasons."""
    if len(abort.raw) <= BYTES_MAX:
        return abort.raw
    return encode(Kind.CONN_ABORT, abort.connection_id, payload=abort.payload[:BYTES_MAX], version=abort.version)
