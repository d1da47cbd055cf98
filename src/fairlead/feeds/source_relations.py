"""Which source streams go into a stream and how they are related (STR-44): said by adapters and by configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead.errors import ConfigError
from fairlead.feeds.words import Relation, Source

__all__ = ["Relations", "configured", "merged"]

SOURCES_MAX: Final = 1024
RELATIONS_MAX: Final = 64

Relations = Mapping[str, Mapping[str, tuple[Relation, ...]]]
"""By stream and source stream id."""

FORM: Final = "STREAM: SOURCE equivalent|successor|sibling OF [offset N] [start N]"


def configured(lines: Sequence[str]) -> Relations:
    """The relations of the setting `streams.relations`; ConfigError for a line that is none."""
    found: dict[str, dict[str, tuple[Relation, ...]]] = {}
    for line in lines:
        stream, source, relation = _read(line)
        of_source = found.setdefault(stream, {})
        of_source[source] = (*of_source.get(source, ()), relation)
    return found


def _read(line: str) -> tuple[str, str, Relation]:
    stream, colon, rest = line.partition(": ")
    words = rest.split()
    options = dict(zip(words[3::2], words[4::2], strict=False))
    try:
        if not (colon and stream and len(words) >= 3 and len(words) % 2) or options.keys() - {"offset", "start"}:
            raise ValueError
        source, kind, of = words[:3]
        if kind not in ("equivalent", "successor", "sibling"):
            raise ValueError
        start = int(options.get("start", 1))
        if start < 0:
            raise ValueError
        return stream, source, Relation(kind=kind, of=of, offset=int(options.get("offset", 0)), start=start)  # type: ignore[arg-type]
    except ValueError:
        raise ConfigError(f"streams.relations: {line!r} is not of the form `{FORM}`.") from None


def merged(said: Iterable[tuple[Source, ...]], configuration: Mapping[str, tuple[Relation, ...]]) -> tuple[Source, ...]:
    """All sources. Between the same two, configuration comes first, then who is asked first."""
    found: dict[str, dict[str, Relation]] = {}
    for source, relations in configuration.items():
        found[source] = {one.of: one for one in relations}
    for sources in said:
        for one in sources:
            known = found.setdefault(one.id, {})
            for relation in one.relations:
                known.setdefault(relation.of, relation)
    return tuple(
        Source(id=source, relations=tuple(relations.values())[:RELATIONS_MAX])
        for source, relations in list(found.items())[:SOURCES_MAX]
    )
