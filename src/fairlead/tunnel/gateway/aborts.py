"""CONN_ABORT as the gateway writes it."""

from __future__ import annotations

from fairlead.tunnel.packets import Abort, AbortCode, Kind, encode

__all__ = ["abort_packet"]


def abort_packet(connection_id: int, code: AbortCode, text: str, version: int = 2) -> bytes:
    return encode(Kind.CONN_ABORT, connection_id, payload=Abort(code, text).payload(), version=version)
