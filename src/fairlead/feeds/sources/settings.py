"""The tables `[source]` of a feed.toml, one for each kind of source (docs/feed-formats.md, section 5)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.feeds.words import Name, Relation, Source

__all__ = [
    "FileSource",
    "GeneratorSource",
    "SourceSettings",
    "TcpSource",
    "TopicSource",
    "UdpSource",
    "declared_id",
    "declared_source",
    "read_sources",
    "split_address",
    "with_siblings",
]

Address = Annotated[str, Meta(min_length=3, max_length=255)]
Span = Annotated[float, Meta(gt=0, le=3600)]
Positive = Annotated[int, Meta(ge=1)]
Sequence63 = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Beginning: TypeAlias = Literal["now", "first"] | Sequence63
Framing: TypeAlias = Literal["mold", "lines", "fix"]


class Related(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A relation to another source, whose `of` is an id as configured: it is meant within the same session."""

    kind: Literal["equivalent", "successor", "sibling"]
    of: Name
    offset: int = 0
    start: Sequence63 = 1


class Common(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    id: Annotated[str, Meta(min_length=1, max_length=100, pattern="^[!-~]+$")]
    relations: Annotated[tuple[Related, ...], Meta(max_length=64)] = ()


class Numbered(Common, frozen=True, kw_only=True):
    """A source whose packets have numbers: how its holes are dealt with."""

    session: str = ""
    """The only session believed; without it, whatever comes."""
    start: Beginning = "now"
    """What comes, the first of the session, or this sequence."""
    reorder_s: Span = 0.01
    ask_s: Span = 0.05
    patience_s: Span = 1.0
    silent_s: Span = 1.0
    window_messages: Positive = 262_144
    window_bytes: Positive = 64 << 20
    jump_max: Positive = 1_000_000

    @property
    def first(self) -> int:
        return {"now": 0, "first": 1}.get(self.start, 0) if isinstance(self.start, str) else self.start


class UdpSource(Numbered, frozen=True, kw_only=True, tag="udp"):
    """Numbered packets over UDP. `listen` has the lines, A and B as a rule; a multicast address is joined."""

    listen: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=8)]
    interface: str = "127.0.0.1"
    """The address of the interface on which multicast is joined."""
    rewind: Annotated[tuple[Address, ...], Meta(max_length=8)] = ()
    """udp://HOST:PORT or tcp://HOST:PORT, asked in turn."""
    buffer_bytes: Positive = 8 << 20


class TcpSource(Numbered, frozen=True, kw_only=True, tag="tcp"):
    """Numbered packets, lines, or FIX messages over TCP. Dials again for ever."""

    connect: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=8)]
    framing: Framing = "mold"
    sequence: str = "count"
    """Lines and FIX: "count" (from 1 in every connection: the source repeats all) or "34" (a FIX tag)."""
    retry_s: Span = 1.0


class FileSource(Common, frozen=True, kw_only=True, tag="file"):
    """A file that was recorded or generated. Messages are counted from 1, or have the numbers of their packets."""

    path: Annotated[str, Meta(min_length=1)]
    framing: Framing = "mold"
    rate: Annotated[float, Meta(ge=0)] = 0.0
    """Messages a second; 0: as fast as they are taken."""
    start_at: Annotated[float, Meta(ge=0)] = 0.0
    """Unix time of the first message, so that two adapters are at the same place; 0: at once."""


class GeneratorSource(Common, frozen=True, kw_only=True, tag="generator"):
    """A made-up trading day in the format `itch`."""

    seed: int = 1
    messages: Annotated[int, Meta(ge=4, le=10**12)] = 1_000_000
    symbols: Annotated[int, Meta(ge=1, le=17_576)] = 100
    malformed: Annotated[int, Meta(ge=0, le=10_000)] = 0
    rate: Annotated[float, Meta(ge=0)] = 1000.0
    start_at: Annotated[float, Meta(ge=0)] = 0.0


class TopicSource(Common, frozen=True, kw_only=True, tag="topic"):
    """A topic of a Fairlead server; without `sequence_header` a stored one, whose order numbers are the sequences."""

    topic: Name
    server: str = "fairlead://127.0.0.1:7400"
    user: str = ""
    password: str = ""
    password_file: str = ""
    tls_ca: str = ""
    sequence_header: str = ""
    session_header: str = ""
    """With `sequence_header`: another value of this header means that the sender counts afresh."""
    start: Beginning = "now"


SourceSettings: TypeAlias = UdpSource | TcpSource | FileSource | GeneratorSource | TopicSource
RELATIONS_MAX: Final = 64
_KINDS: Final[dict[str, type[SourceSettings]]] = {
    "udp": UdpSource,
    "tcp": TcpSource,
    "file": FileSource,
    "generator": GeneratorSource,
    "topic": TopicSource,
}


def read_sources(tables: Sequence[dict[str, Any]]) -> list[SourceSettings]:
    """The tables, checked; ConfigError names what is wrong, and what may have been meant."""
    if not tables:
        raise ConfigError("A feed needs a source: write a table [source].")
    found = [
        _read(table, f"[[source]] {place}" if len(tables) > 1 else "[source]") for place, table in enumerate(tables, 1)
    ]
    ids = [one.id for one in found]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"Every source needs an id of its own; there are {', '.join(ids)}.")
    return found


def _read(table: dict[str, Any], where: str) -> SourceSettings:
    kind = table.get("kind")
    if kind not in _KINDS:
        raise ConfigError(f"{where} kind = {kind!r}: it is one of {', '.join(_KINDS)}.")
    known = [*_KINDS[kind].__struct_fields__, "kind"]
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            meant = f"; did you mean `{close[0]}`?" if close else f"; known are {', '.join(known)}"
            raise ConfigError(f"{where} of kind {kind} has no key `{key}`{meant}")
    given = {key: [value] if key in ("listen", "connect", "rewind") and isinstance(value, str) else value
             for key, value in table.items()}  # fmt: skip
    try:
        settings: SourceSettings = msgspec.convert(given, _KINDS[kind])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} of kind {kind}: {error}.") from None
    if isinstance(settings, UdpSource | TcpSource):
        for text in settings.listen if isinstance(settings, UdpSource) else settings.connect:
            split_address(text, where)
    if isinstance(settings, UdpSource):
        for text in settings.rewind:
            scheme, found, address = text.partition("://")
            if not found or scheme not in ("udp", "tcp"):
                raise ConfigError(f"{where} rewind = {text!r}: write udp://HOST:PORT or tcp://HOST:PORT.")
            split_address(address, where)
    if isinstance(settings, TcpSource):
        is_tag = settings.framing == "fix" and settings.sequence.isdigit()
        if settings.sequence != "count" and not is_tag:
            raise ConfigError(f'{where} sequence = {settings.sequence!r}: it is "count", or a tag if framing = "fix".')
    return settings


def split_address(text: str, where: str = "[source]") -> tuple[str, int]:
    """HOST:PORT, IPv4 or a name."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{where}: {text!r} is no address; write HOST:PORT.")
    return host.strip("[]"), int(port)


def declared_id(configured: str, session: str) -> str:
    """The source stream id: a session is part of it, so that what counts afresh is another stream (STR-22)."""
    return f"{configured}:{session}" if session else configured


def declared_source(settings: SourceSettings, session: str = "", after: str = "") -> Source:
    """What is told about a source stream: the relations configured, and its predecessor."""
    relations = [
        Relation(kind=one.kind, of=declared_id(one.of, session), offset=one.offset, start=one.start)
        for one in settings.relations
    ]
    if after:
        relations.append(Relation(kind="successor", of=after, start=1))
    return Source(id=declared_id(settings.id, session), relations=tuple(relations))


def with_siblings(source: Source, others: Iterable[str]) -> Source:
    """The same, merged into one stream with these."""
    named = {relation.of for relation in source.relations} | {source.id}
    siblings = [Relation(kind="sibling", of=other) for other in others if other not in named]
    return Source(id=source.id, relations=(*source.relations, *siblings)[:RELATIONS_MAX])
