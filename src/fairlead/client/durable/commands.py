"""Questions to the message manager that wait for their answers, and what becomes of them when the line is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from fairlead.errors import RemoteProtocolError

if TYPE_CHECKING:
    from fairlead.client.durable.part import Part

__all__ = ["Answered", "Command", "Facts", "Reply", "facts_of", "moot"]

Facts: TypeAlias = dict[str, Any]
Reply: TypeAlias = Callable[[Facts, Exception | None], None]
"""Told once: the facts of the ANSWER, or why there is none."""

OnLoss: TypeAlias = Literal["again", "moot", "fail", "drop"]
"""Ask again on the next line; count as done; fail; or say nothing, since the resume asks something equivalent."""


class Answered(Protocol):
    """Something whose answer is awaited: a `Ticket` for facts."""

    def done(self) -> bool: ...

    def set_result(self, result: Facts, /) -> object: ...

    def set_exception(self, exception: Exception, /) -> object: ...


@dataclass(slots=True, eq=False)
class Command:
    """One COMMAND. The number of its session's part is filled in when it is sent, since it changes with every line.

    Without a part it is for whoever the server thinks is meant.
    """

    do: str
    fields: Facts
    reply: Reply
    part: Part | None = None
    on_loss: OnLoss = "again"
    of_session: bool = False  # it names its session; otherwise a handle of it
    refusals: int = 0  # how often it was answered that nobody is there
    is_over: bool = False
    apart: bool = False  # of no session and no group: whoever has the line answers, message manager or none

    def encode(self) -> bytes:
        fields = {"do": self.do, **self.fields}
        if self.part is not None and self.of_session:
            fields["session"] = self.part.number
        return msgspec.json.encode(fields)


def facts_of(body: bytes) -> Facts:
    """The JSON object of an ANSWER or NOTICE."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as fault:
        raise RemoteProtocolError(f"An answer or notice is not a JSON object: {fault}") from None


def moot(facts: Facts, error: Exception | None) -> None:
    """For commands whose answer nobody needs."""
