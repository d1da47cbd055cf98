"""What may stand behind the `?` of a request: a struct for each operation, which checks it and describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from fairlead.console.problems import Denied
from fairlead.console.shapes import Level
from fairlead.console.shapes_messages import As, Name, Selector, Sort

Limit = Annotated[int, Meta(ge=1, le=1000, description="Rows of a page.")]
After = Annotated[str, Meta(max_length=1024, description="`next` of the page before.")]
Text = Annotated[str, Meta(max_length=255)]
Moment = Annotated[int, Meta(ge=0, le=2**53, description="Milliseconds since 1970.")]
Shown = Annotated[As, Meta(description="How bodies are shown; `auto`: as JSON or text where they are, else in hex.")]
Preview = Annotated[int, Meta(ge=0, le=262_144, description="Bytes of each body that are shown.")]

Q = TypeVar("Q", bound=Struct)


class Nothing(Struct, kw_only=True, forbid_unknown_fields=True):
    """No parameters."""


class DestinationsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[
        str, Meta(max_length=255, description="A pattern as in subscriptions, or a part of the name.")
    ] = ""
    kind: Literal["", "queue", "topic"] = ""
    sort: Sort = "name"
    descending: bool | None = None
    limit: Limit = 100
    after: After = ""


class DeleteQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    unused: Annotated[bool, Meta(description="Only if it has no messages and no consumers.")] = False


class MessagesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    after: After = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    selector: Selector = ""
    shown: Shown = field(name="as", default="auto")
    bytes: Preview = 2048


class MessageQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    shown: Shown = field(name="as", default="auto")
    bytes: Preview = 65_536


class DeadQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    queue: Name = "_DMQ"
    reason: Text = ""
    origin: Text = ""
    after: After = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    shown: Shown = field(name="as", default="auto")
    bytes: Preview = 2048


class SchedulesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    destination: Text = ""


class ConnectionsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(max_length=255, description="Looked for in user, type, instance and address.")] = ""
    limit: Limit = 200
    after: After = ""


class SessionsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    user: Text = ""
    limit: Limit = 200
    after: After = ""


class HistoryQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    series: Annotated[
        str, Meta(max_length=2048, description="Names with commas; `depth/*` stands for all that begin so.")
    ] = ""
    since_ms: Moment = 0
    step_s: Annotated[
        int, Meta(ge=0, le=86_400, description="0: a second for the last quarter of an hour, else ten.")
    ] = 0


class EventsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    level: Annotated[Level, Meta(description="This one and worse.")] = "info"
    code: Text = ""
    text: Annotated[str, Meta(max_length=255, description="Looked for in everything an event says.")] = ""
    since_ms: Moment = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class LiveQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    topics: Annotated[str, Meta(max_length=255, description="Names with commas; all if none are named.")] = ""


def read(kind: type[Q], pairs: list[tuple[str, str]]) -> Q:
    """What was asked; Denied says what is wrong with it."""
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name in given:
            raise Denied(422, f"{name[:40]!r} is given twice.", code="bad-parameter")
        given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Denied(422, f"{error}.", code="bad-parameter") from None
