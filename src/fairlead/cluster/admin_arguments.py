"""The arguments of the commands of administration (docs/administration.md): checked here before a handler sees them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

PAGE_MAX: Final = 1000
Count = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Order = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=255)]


class Nothing(Struct):
    """No arguments."""


class Listing(Struct, kw_only=True):
    pattern: Annotated[str, Meta(max_length=512)] = ""
    kind: Literal["", "queue", "topic"] = ""
    sort: str = "name"
    descending: bool = False
    page: Annotated[int, Meta(ge=0)] = 0
    count: Count = 100


class Figures(Struct, kw_only=True):
    count: Annotated[int, Meta(ge=0, le=PAGE_MAX)] = 200  # by name; the others as one


class One(Struct, kw_only=True):
    destination: Name


class Delete(One, kw_only=True):
    unused: bool = False  # only if it has no messages and no consumers


class Create(One, kw_only=True):
    kind: Literal["queue", "topic"] = "queue"
    parameters: dict[str, Any] = {}


class Purge(One, kw_only=True):
    selector: str = ""


class Browse(One, kw_only=True):
    start: Order = 0
    count: Count = 50
    selector: str = ""
    body: Literal["text", "base64", "none"] = "text"
    body_bytes: Annotated[int, Meta(ge=0, le=262_144)] = 4096


class Message(One, kw_only=True):
    order: Order
    body: Literal["text", "base64", "none"] = "text"
    body_bytes: Annotated[int, Meta(ge=0, le=524_288)] = 524_288


class Drop(One, kw_only=True):
    orders: Annotated[list[Order], Meta(min_length=1, max_length=PAGE_MAX)]


class Move(One, kw_only=True):
    to: Name
    orders: Annotated[list[Order], Meta(max_length=PAGE_MAX)] = []
    selector: str = ""
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1000


class Set(Struct, kw_only=True):
    parameters: dict[str, Any]
    destination: Name = ""


class Unsubscribe(Struct, kw_only=True):
    name: Name
    client: str = ""


class OfSession(Struct, kw_only=True):
    page: Annotated[int, Meta(ge=0)] = 0
    count: Count = 100
    user: str = ""


class CancelSchedule(One, kw_only=True):
    order: Order


class ListCursors(Struct, kw_only=True):
    destination: Name = ""


class ReleaseCursor(One, kw_only=True):
    name: Name
