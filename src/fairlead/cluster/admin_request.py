"""An administration command as it travels, and the bounds of its answer (docs/administration.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

REMEMBERED_MAX: Final = 1024
ANSWER_BYTES_MAX: Final = 960 << 10
"""An answer travels in one frame; longer ones are to be asked for in pages."""


OWN: Final = frozenset({"audit"})
"""What only the server's own programs order, over its local socket: events are the server's word, not an
administrator's."""


class Scope(Struct, kw_only=True, frozen=True):
    """Whom a command is for; what is absent does not narrow it (CLU-181)."""

    node: str | list[str] | None = None
    kind: str | None = None
    group: str | None = None
    role: str | None = None


class Request(Struct, kw_only=True):
    """A command as it comes over `_ADMIN`."""

    command: str
    id: str = ""
    args: dict[str, Any] = {}
    reply: str = ""
    scope: Scope = Scope()
    user: str = ""  # by the word of the manager that passed it on, like the next two
    tenant: str = ""
    quota: dict[str, dict[str, int]] = {}


def not_for_clients(command: str) -> dict[str, Any]:
    return {"error": {"code": "not-allowed", "text": f"{command!r} is for the server's own programs."}}


def too_long(size: int) -> dict[str, Any]:
    """What is said instead of an answer of so many bytes."""
    text = f"The answer has {size} bytes and fits no frame; ask for smaller pages."
    return {"error": {"code": "too-large", "text": text}}


@dataclass(frozen=True, slots=True)
class Later:
    """What a handler returns whose answer takes a while: `begin` is told whom to give it, or an exception."""

    begin: Callable[[Callable[[Any], None]], None]
