"""What `.option(…)` says, checked and typed, for the source and the sink named `fairlead`.

Names are case-insensitive, as everywhere in Spark. One that is not known is refused, with the nearest that is, for a
misspelt option that is silently ignored costs somebody an afternoon. Secrets are kept apart from what is shown: the
URL loses its password here, before anything can print it.
"""

from __future__ import annotations

import difflib
import json
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import unquote

from fairlead.client.bulk import BulkConnection
from fairlead.client.target import parse
from fairlead.errors import ConfigError
from fairlead.pipeline.arrow import SCHEMA
from fairlead.topics import compile as compile_pattern

__all__ = ["Access", "Reading", "Start", "Writing", "is_pattern"]

ACCESS = (
    *("url", "user", "password", "passwordFile", "tokenFile", "tlsCa", "tlsCertificate", "tlsKey", "tlsVerify"),
    *("patience", "destination"),
)
READING = (
    *("startingOffsets", "endingOffsets", "startingTime", "endingTime", "maxRowsPerTrigger", "maxBytesPerTrigger"),
    *("slices", "columns", "mode", "cursor", "waiting", "failOnDataLoss", "batchRows", "batchBytes"),
    "pushdown",
)
WRITING = ("create", "kind", "query", "batch")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPARKS = ("path", "checkpointLocation", "queryName", "outputMode")
"""Spark hands its own options to sources and sinks as well; `path` is what `load("…")` and `save("…")` name."""

Start: TypeAlias = Literal["earliest", "latest"] | dict[str, int | Literal["earliest", "latest"]]
"""Where to begin or to end: one word for all destinations, or a place for each by name."""


@dataclass(frozen=True)
class Access:
    """How to reach the server, and as whom."""

    url: str = "fairlead://localhost"
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    token_file: str = ""
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_verify: bool = True
    patience_s: float = 60.0

    def connect(self, name: str = "spark") -> BulkConnection:
        """A connection that opens itself on first use. Files are read here, so on the machine that connects."""
        return BulkConnection(
            self.url,
            user=self.user or None,
            password=self.secret() or None,
            token_file=self.token_file,
            tls=self.tls(),
            name=name,
            patience_s=self.patience_s,
        )

    def secret(self) -> str:
        """The password, from wherever it comes."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise ConfigError(f"passwordFile {self.password_file!r} cannot be read: {error}") from None

    def tls(self) -> ssl.SSLContext | None:
        """What TLS needs, or None for a URL without it."""
        if not self.url.startswith("fairleads:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
            if self.tls_certificate:
                context.load_cert_chain(self.tls_certificate, self.tls_key or None)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = ", ".join(filter(None, (self.tls_ca, self.tls_certificate, self.tls_key)))
            raise ConfigError(f"The TLS files cannot be used ({files or 'the system has none'}): {error}") from None
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True)
class Reading:
    """All a source is told."""

    access: Access
    destinations: tuple[str, ...]
    columns: tuple[str, ...]
    starting: Start | None = None
    ending: Start | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    rows_max: int = 0
    bytes_max: int = 0
    slices: int = 0
    mode: str = ""
    cursor: str = ""
    waiting: bool | None = None
    fail_on_data_loss: bool = True
    batch_rows: int = 10_000
    batch_bytes: int = 4 << 20
    pushdown: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Reading:
        """Of Spark's options; ConfigError names the one that is wrong."""
        given = _Given(options, (*ACCESS, *READING), other=WRITING, role="reading")
        destinations = _destinations(given)
        if not destinations:
            raise ConfigError("Say what to read: .option('destination', 'orders'), a list, or a pattern like trades.>")
        starting, ending = given.start("startingOffsets"), given.start("endingOffsets")
        starting_ms, ending_ms = given.time_ms("startingTime"), given.time_ms("endingTime")
        if starting is not None and starting_ms is not None:
            raise ConfigError("startingOffsets and startingTime exclude one another.")
        if ending is not None and ending_ms is not None:
            raise ConfigError("endingOffsets and endingTime exclude one another.")
        return cls(
            access=_access(given),
            destinations=destinations,
            columns=_columns(given.text("columns")),
            starting=starting,
            ending=ending,
            starting_ms=starting_ms,
            ending_ms=ending_ms,
            rows_max=given.number("maxRowsPerTrigger", 0, 1),
            bytes_max=given.number("maxBytesPerTrigger", 0, 1),
            slices=given.number("slices", 0, 1, 10_000),
            mode=given.one_of("mode", ("", "read", "consume")),
            cursor=given.text("cursor"),
            waiting=given.flag("waiting") if given.has("waiting") else None,
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            batch_rows=given.number("batchRows", 10_000, 1, 1_000_000),
            batch_bytes=given.number("batchBytes", 4 << 20, 64 << 10, 16 << 20),
            pushdown=given.flag("pushdown"),
        )


@dataclass(frozen=True)
class Writing:
    """All a sink is told."""

    access: Access
    destination: str = ""
    create: bool = False
    kind: str = ""
    query: str = ""
    batch: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Writing:
        """Of Spark's options; ConfigError names the one that is wrong."""
        given = _Given(options, (*ACCESS, *WRITING), other=READING, role="writing")
        destinations = _destinations(given)
        if len(destinations) > 1 or any(is_pattern(name) for name in destinations):
            raise ConfigError("A sink's destination is one name; several are named by a column `destination`.")
        if given.has("batch") and not given.has("query"):
            raise ConfigError("The option batch numbers the batches of a query: give the option query as well.")
        return cls(
            access=_access(given),
            destination="".join(destinations),
            create=given.flag("create", False),
            kind=given.one_of("kind", ("", "queue", "topic")),
            query=given.text("query"),
            batch=given.number("batch", 0, 0),
        )


def is_pattern(name: str) -> bool:
    """Does this stand for several destinations? BadPattern if it is neither name nor pattern."""
    return not compile_pattern(name).is_plain


class _Given:
    """Options by name whatever their case, each asked for in the type it has."""

    def __init__(self, options: Mapping[str, str], known: Collection[str], *, other: Collection[str], role: str):
        self._options = {name.lower(): value for name, value in options.items()}
        mine = {name.lower(): name for name in (*known, *SPARKS)}
        others = {name.lower() for name in other}
        for name in self._options:
            if name in mine or name.startswith("spark."):
                continue
            if name in others:
                raise ConfigError(f"The option {name} has no meaning for {role}.")
            near = difflib.get_close_matches(name, mine, 1, 0.5)
            hint = f" Did you mean {mine[near[0]]}?" if near else f" There are: {', '.join(known)}."
            raise ConfigError(f"There is no option {name}.{hint}")

    def has(self, name: str) -> bool:
        return name.lower() in self._options

    def text(self, name: str, default: str = "") -> str:
        return self._options.get(name.lower(), default)

    def flag(self, name: str, default: bool = False) -> bool:
        return self.one_of(name, ("true", "false"), str(default)) == "true"

    def one_of(self, name: str, values: Collection[str], default: str = "") -> str:
        value = self.text(name, default).strip().lower()
        if value not in values:
            raise ConfigError(f"{name} is {' or '.join(filter(None, values))}, not {value!r}.")
        return value

    def number(self, name: str, default: int, low: int, high: int = 2**62) -> int:
        if not self.has(name):
            return default
        text = self.text(name).replace("_", "").strip()
        if not text.isascii() or not text.isdecimal() or len(text) > 19 or not low <= int(text) <= high:
            raise ConfigError(f"{name} is a whole number from {low} to {high}, not {self.text(name)[:40]!r}.")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        if not self.has(name):
            return default
        try:
            value = float(self.text(name))
        except ValueError:
            value = -1.0
        if not 0 < value <= 86_400:
            raise ConfigError(f"{name} is seconds, from above 0 to 86400, not {self.text(name)[:40]!r}.")
        return value

    def time_ms(self, name: str) -> int | None:
        if not self.has(name):
            return None
        text = self.text(name).strip()
        if text.isascii() and text.isdecimal() and len(text) < 16:
            return int(text)
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(f"{name} is an ISO time or milliseconds since 1970, not {text[:40]!r}.") from None
        since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH
        return since // timedelta(milliseconds=1)  # arrivals are known by the millisecond: both ends are rounded down

    def start(self, name: str) -> Start | None:
        if not self.has(name):
            return None
        text = self.text(name).strip()
        if text in ("earliest", "latest"):
            return text  # type: ignore[return-value]  # mypy does not narrow `in` to literals
        try:
            value = json.loads(text)
            if not isinstance(value, dict):
                raise ValueError
            return {str(key): _place(place) for key, place in value.items()}
        except (ValueError, RecursionError):
            raise ConfigError(
                f'{name} is earliest, latest, or JSON like {{"orders": 17, "trades": "earliest"}}, not {text[:80]!r}.'
            ) from None


def _place(value: object) -> int | Literal["earliest", "latest"]:
    if value == "earliest" or value == "latest":
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError


def _access(given: _Given) -> Access:
    url, user, password = _apart(given.text("url", "fairlead://localhost"))
    parse(url)  # it complains about what is left, which holds no secret
    if given.has("password") and given.has("passwordFile"):
        raise ConfigError("password and passwordFile exclude one another.")
    if given.has("tokenFile") and (given.has("password") or given.has("passwordFile")):
        raise ConfigError("A password and tokenFile exclude one another.")
    return Access(
        url=url,
        user=given.text("user", user),
        password=given.text("password", "" if given.has("passwordFile") else password),
        password_file=given.text("passwordFile"),
        token_file=given.text("tokenFile"),
        tls_ca=given.text("tlsCa"),
        tls_certificate=given.text("tlsCertificate"),
        tls_key=given.text("tlsKey"),
        tls_verify=given.flag("tlsVerify", True),
        patience_s=given.seconds("patience", 60.0),
    )


def _apart(url: str) -> tuple[str, str, str]:
    """The URL without its login, and the login."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    return scheme + separator + hosts + slash + path, unquote(user), unquote(password)


def _destinations(given: _Given) -> tuple[str, ...]:
    text = given.text("destination") or given.text("path")
    if text.startswith(("regex:", "glob:")):
        names = [text]
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        is_pattern(name)
    return tuple(dict.fromkeys(names))


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in SCHEMA.names:
            near = difflib.get_close_matches(name, SCHEMA.names, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(SCHEMA.names)}."
            raise ConfigError(f"There is no column {name[:80]!r}.{hint}")
    return names or tuple(SCHEMA.names)
