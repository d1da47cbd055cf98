"""The trace a message belongs to, as it travels: W3C `traceparent` and `tracestate`.

They are an ordinary header (of a broadcast or a request) or an ordinary property (of a stored message), so whatever
carries a message carries them too. Whoever wrote them is a stranger: what is not exactly as the recommendation says
counts as absent, and a `tracestate` that is too long is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["TRACEPARENT", "TRACESTATE", "TraceContext", "header_section", "property_section"]

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
STATE_CHARACTERS_MAX: Final = 512
STATE_MEMBERS_MAX: Final = 32
PARENT_CHARACTERS_MAX: Final = 256
"""A version to come may say more than ours; so much of it is looked at."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_MEMBER: Final = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class TraceContext(NamedTuple):
    """A span that made a message, known by its ids; also without OpenTelemetry."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    sampled: bool = True
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def headers(self) -> dict[str, str]:
        """For `headers` of a broadcast or request, or `properties` of a stored message: it is of this trace."""
        found = {TRACEPARENT: self.traceparent}
        return found | {TRACESTATE: self.state} if self.state else found

    @classmethod
    def parse(cls, parent: object, state: object = None) -> TraceContext | None:
        """What the two say; None if that is no trace context."""
        text = _text(parent)
        match = _PARENT.fullmatch(text) if text is not None and len(text) <= PARENT_CHARACTERS_MAX else None
        if match is None:
            return None
        version, trace_id, span_id, flags, more = match.groups()
        if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & 1), _checked_state(state))

    @classmethod
    def of(cls, headers: Mapping[str, object]) -> TraceContext | None:
        """That of a message with these headers or properties."""
        parent = headers.get(TRACEPARENT)
        return None if parent is None else cls.parse(parent, headers.get(TRACESTATE))


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode("ascii")
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


def _checked_state(value: object) -> str:
    text = _text(value)
    if not text or len(text) > STATE_CHARACTERS_MAX:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    if len(members) > STATE_MEMBERS_MAX or not all(_MEMBER.fullmatch(member) for member in members):
        return ""
    return ",".join(members)


# --- As bytes of a message; what was checked where it was made --------------------------------------------------------

_HEADER: Final = b"\x0btraceparent" + (55).to_bytes(2, "little")
_PROPERTY: Final = b"\x0btraceparent" + (56).to_bytes(2, "little") + b"s"


def header_section(parent: str, state: str = "") -> bytes:
    """To be added to a section of `wire/headers.py`."""
    section = _HEADER + parent.encode()
    if state:
        section += b"\x0atracestate" + len(state).to_bytes(2, "little") + state.encode()
    return section


def property_section(parent: str, state: str = "") -> bytes:
    """To be added to a section of `wire/properties.py`."""
    section = _PROPERTY + parent.encode()
    if state:
        section += b"\x0atracestate" + (len(state) + 1).to_bytes(2, "little") + b"s" + state.encode()
    return section
