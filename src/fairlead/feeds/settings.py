"""What a feed adapter is told: `feed.toml`, section by section (docs/feed-adapters.md).

A key nobody knows is refused by name, with the nearest known one suggested. Tables of sources and options of a
converter are judged by those who understand them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.runtime.addresses import TcpAddress, parse_listen

__all__ = [
    "EXAMPLE",
    "AdministrationSettings",
    "ConvertSettings",
    "FeedSettings",
    "ListenSettings",
    "OutputSettings",
    "RetainSettings",
    "StreamSettings",
    "advice",
    "check",
    "parse",
]

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Positive = Annotated[int, Meta(ge=1)]
Span = Annotated[float, Meta(gt=0, le=3600)]


class StreamSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[feed]`: which stream this is an adapter of, and how the group behaves. Equal in the whole group but for `name`
    and `preference`."""

    stream: Name
    name: Name
    preference: int = 100
    """The backup with the lowest one is promoted first."""
    threshold: Annotated[int, Meta(ge=-100_000, le=100_000)] = 8
    heartbeat_s: Annotated[float, Meta(ge=0.005, le=60)] = 0.2
    lead: Annotated[int, Meta(ge=1, le=100_000)] = 16
    """An administrative message is announced for so many numbers ahead."""
    revise_s: Span = 0.05
    """And for the next number when that place was not reached by then."""
    lag_max: Positive = 10_000
    """A backup that is further behind is not synchronised."""
    snapshots: bool = False
    """Keep the newest record of each key ([convert] keys) for those who join late."""


class AdministrationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[administration]`: the server where the stream administration is."""

    url: Name = "fairlead://127.0.0.1:7403"
    user: str = ""
    password: str = ""
    password_file: str = ""
    tls_ca: str = ""
    """Certificates to trust, for fairleads:// with one of your own."""
    retry_s: Span = 1.0
    """The longest pause between two attempts to reach it."""


class ListenSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[listen]`: the one port for programs (lines) and for the other adapters of the group (links)."""

    address: Name = "127.0.0.1:7500"
    advertise: str = ""
    """HOST:PORT that others are told to dial; without it, what is listened on."""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    """Certificates to trust when this adapter dials another one of its group."""
    insecure: bool = False
    """Beyond this host without TLS: whoever listens in reads the stream and the tokens."""
    hello_s: Span = 5.0
    """How long whoever dials may take to say who it is."""
    lines_max: Positive = 1024
    waiting_max: Positive = 128
    """Of those who have not said who they are."""
    questions_max: Positive = 32
    """Fills, snapshots and fetches of one line that are not answered yet; with one more the line is ended."""
    stalled_s: Span = 120.0
    """A line that takes in nothing for so long is ended; until then it may be slow, and is told what it missed."""
    send_bytes: Annotated[int, Meta(ge=4096, le=64 << 20)] = 256 << 10
    """What is handed to the system for one line at a time."""


class RetainSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[retain]`: `messages` or `seconds`, whichever is more, but never more than `bytes`."""

    messages: Positive = 100_000
    seconds: Annotated[float, Meta(ge=0)] = 60.0
    bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20


class ConvertSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[convert]`: what makes records of source messages."""

    converter: Name
    """The name of an entry point of the group fairlead.converters, or MODULE:FUNCTION."""
    options: dict[str, Any] = {}
    linger_s: Annotated[float, Meta(ge=0, le=1)] = 0.002
    """The shortest time between the beginnings of two batches. Each batch has a fixed cost: more saves processor time
    at high rates, and costs this much latency; the first message after a pause never waits."""
    keys: tuple[str, ...] = ()
    """The columns by which a snapshot tells one thing from another, such as ["symbol"]."""


class OutputSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[output]`: the active adapter also publishes each record to a topic of a server, at most once."""

    topic: str = ""
    server: str = "fairlead://127.0.0.1:7400"
    user: str = ""
    password: str = ""
    password_file: str = ""
    tls_ca: str = ""


class FeedSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of `feed.toml`."""

    feed: StreamSettings
    convert: ConvertSettings
    administration: AdministrationSettings = AdministrationSettings()
    listen: ListenSettings = ListenSettings()
    retain: RetainSettings = RetainSettings()
    output: OutputSettings = OutputSettings()
    source: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1, max_length=64)]


SECTIONS: dict[str, type[Struct]] = {
    name: kind for name, kind in get_type_hints(FeedSettings).items() if isinstance(kind, type)
}


def parse(text: str, origin: str = "feed.toml", overrides: Mapping[str, str] | None = None) -> FeedSettings:
    """What a file says, and the command line over it: {"listen.address": "127.0.0.1:0"}."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is not valid TOML: {error}") from None
    for name, given in (overrides or {}).items():
        _override(document, name, given)
    source = document.get("source")
    if isinstance(source, dict):
        document["source"] = [source]
    for sentence in _faults(document):
        raise ConfigError(f"{origin}: {sentence}")
    try:
        return msgspec.convert(document, FeedSettings)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        reason = reason.replace("Expected", "expected").replace("Object", "a section")
        raise ConfigError(f"{origin}: {where.rstrip('`') or 'a setting'}: {reason}") from None


def check(settings: FeedSettings) -> None:
    """ConfigError, with what to do about it, for what cannot work or would be unsafe."""
    listen, administration = settings.listen, settings.administration
    address = tcp(listen.address, "[listen] address")
    if listen.advertise:
        told = tcp(listen.advertise, "[listen] advertise")
        if not told.host or not told.port:
            raise ConfigError(f"[listen] advertise = {listen.advertise!r}: others need host and port; write HOST:PORT")
    elif not address.host or address.host in ("0.0.0.0", "::"):
        raise ConfigError("[listen] advertise is needed with an address of all interfaces: what should others dial?")
    if bool(listen.tls_certificate) != bool(listen.tls_key):
        missing = "tls_key" if listen.tls_certificate else "tls_certificate"
        raise ConfigError(f"TLS needs certificate and key: [listen] {missing} is not set")
    if not address.is_loopback and not listen.tls_certificate and not listen.insecure:
        raise ConfigError(
            f"whoever listens in on {address} would read the stream and the tokens of programs: set [listen] "
            "tls_certificate and tls_key, or say --insecure if the network is closed"
        )
    for section, one in (("administration", administration), ("output", settings.output)):
        if one.password and one.password_file:
            raise ConfigError(f"[{section}] has password and password_file: leave one out")
    if settings.feed.snapshots and not settings.convert.keys:
        raise ConfigError('[feed] snapshots needs [convert] keys, such as keys = ["symbol"]')


def advice(settings: FeedSettings) -> list[str]:
    """What works, and is worth a second thought."""
    found = []
    address = tcp(settings.listen.address, "[listen] address")
    if not address.is_loopback and not settings.listen.tls_certificate:
        found.append(f"the stream and the tokens of programs cross the network in the clear on {address}")
    if settings.output.topic:
        found.append(f"what is published to {settings.output.topic} may have holes when the active adapter changes")
    return found


def tcp(text: str, what: str) -> TcpAddress:
    """HOST:PORT."""
    try:
        address = parse_listen(text)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    if not isinstance(address, TcpAddress):
        raise ConfigError(f"{what} = {text!r}: lines are TCP; write HOST:PORT")
    return address


def _override(document: dict[str, Any], name: str, given: str) -> None:
    section, dot, key = name.partition(".")
    if not dot or not key:
        raise ConfigError(f"--set {name}={given}: write SECTION.KEY=VALUE, such as --set listen.address=127.0.0.1:7500")
    value: Any = given
    kind = get_type_hints(SECTIONS[section], include_extras=False).get(key) if section in SECTIONS else None
    if kind is not str:
        try:
            value = tomllib.loads(f"value = {given}")["value"]
        except tomllib.TOMLDecodeError:
            value = given
    table = document.setdefault(section, {})
    *path, last = key.split(".")
    for step in path:
        table = table.setdefault(step, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"--set {name}={given}: there are several [[{section}]]; change the file instead")
    table[last] = value


def _faults(document: dict[str, Any]) -> Iterator[str]:
    known = [*SECTIONS, "source"]
    for section, table in document.items():
        if section not in known:
            owners = [name for name, kind in SECTIONS.items() if section in kind.__struct_fields__]
            if owners and not isinstance(table, dict):
                yield f"`{section}` belongs under [{owners[0]}]"
            yield f"there is no section [{section}]{_nearest(section, known)}"
        if section == "source":
            continue
        if not isinstance(table, dict):
            yield f"`{section}` is a section; write [{section}] and its keys below it"
        fields = list(SECTIONS[section].__struct_fields__)
        for key in table:
            if key not in fields:
                owners = [name for name, kind in SECTIONS.items() if key in kind.__struct_fields__]
                elsewhere = f"; it belongs under [{owners[0]}]" if owners else _nearest(key, fields)
                yield f"[{section}] has no key `{key}`{elsewhere}"
    for section in ("feed", "convert", "source"):
        if section not in document:
            yield f"there is no section [{section}]; `fairlead feed example` shows a whole file"
    for section, kind in SECTIONS.items():
        for field in msgspec.structs.fields(kind):
            if field.required and section in document and field.name not in document[section]:
                yield f"[{section}] {field.name} is not set; `fairlead feed example` shows a whole file"


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known are {', '.join(known)}"


EXAMPLE = """\
# One of the two adapters of the stream prices.emea. The other one differs in name, address and perhaps preference:
# fairlead feed run --config feed.toml --set feed.name=b --set listen.address=127.0.0.1:7501

[feed]
stream = "prices.emea"
name = "a"
preference = 100            # the backup with the lowest is promoted first
threshold = 8               # T: how far past its place an administrative message may still be sent by the backup
heartbeat_s = 0.2

[administration]            # fairlead streams serve
url = "fairlead://127.0.0.1:7403"
# user = "feeds"
# password_file = "feeds.password"

[listen]                    # programs and the other adapter come here
address = "127.0.0.1:7500"
# advertise = "prices-a.example.org:7500"
# tls_certificate = "a.pem"
# tls_key = "a.key"

[retain]                    # messages or seconds, whichever is more, but never more than bytes
messages = 100_000
seconds = 60
bytes = 268_435_456

[source]
kind = "generator"
id = "DAY1"
rate = 1000
start_at = 0                # when the day begins, in seconds since 1970: an adapter that starts later catches up

[convert]
converter = "itch"

# [output]                  # also to a topic of a server, at most once
# topic = "prices.emea"
# server = "fairlead://127.0.0.1:7400"
"""
