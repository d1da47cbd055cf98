"""What a client and the registrar of its broker say to each other (docs/directory.md, section 4)."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from fairlead.directory.placing.attempts import WRONG
from fairlead.directory.rows import AppKind
from fairlead.errors import BadCredentials, FairleadError, RemoteProtocolError, ServerFull, from_wire

__all__ = ["REGISTRAR", "ConnectionMode", "Said", "Terms", "Way", "error_of", "first", "hear", "say"]

REGISTRAR: Final = "_REGISTRAR"
ConnectionMode = Literal["synchronous", "asynchronous"]


class Terms(NamedTuple):
    """As what a connection registers; all of it stays when the connection is made again elsewhere."""

    app: str
    kind: AppKind = "dynamic"
    mode: ConnectionMode = "asynchronous"
    cluster: str = ""


class Way(NamedTuple):
    """Where a message to an application goes at this broker: into `queue`; `to` is the queue where it is to end."""

    queue: str
    to: str


class Fault(Struct):
    code: str = ""
    text: str = ""


class Said(Struct):
    """Anything the registrar says; what it left out is empty."""

    ok: bool = False
    broker: str = ""
    label: str = ""
    error: Fault | None = None
    move: bool = False
    closed: str | None = None
    route: str | None = None
    number: int = 0
    queue: str = ""
    to: str = ""
    unknown: bool = False


def first(terms: Terms, *, identity: str, client: str, secure: bool, reservation: str) -> bytes:
    """The first words of a client: register this connection."""
    return say(
        app=terms.app,
        kind=terms.kind,
        identity=identity,
        client=client,
        mode=terms.mode,
        secure=secure,
        cluster=terms.cluster,
        reservation=reservation,
    )


def say(**words: Any) -> bytes:
    return msgspec.json.encode(words)


def hear(body: bytes) -> Said:
    try:
        return msgspec.json.decode(body, type=Said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise RemoteProtocolError(f"The broker's registrar said something that cannot be read: {fault}.") from None


def error_of(fault: Fault) -> FairleadError:
    """What a refusal means here."""
    if fault.code == "authentication":
        return BadCredentials(WRONG)
    if fault.code == "full":
        return ServerFull(fault.text or "The broker has as many connections as it may have.")
    return from_wire(fault.code or "internal", fault.text)
