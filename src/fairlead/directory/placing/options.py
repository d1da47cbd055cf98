"""The options of `connect` that are about applications and the choice of a broker; also behind the `?` of the URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
from msgspec import Struct

from fairlead.directory.placing.mode import LATENCY_MAX_S, STABLE_S, Placement
from fairlead.directory.placing.registrar_talk import ConnectionMode
from fairlead.directory.placing.rotation import Start
from fairlead.directory.rows import AppKind, Rule
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["Options", "PlacingOptions", "read_options"]


class Options(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`secure` None: as the URL's scheme. `placement`, `rule` None: as the directory says of the cluster."""

    application: str = ""  # with the URL of a broker: register there; with that of a directory `name` says it
    cluster: str = ""  # if the URL does not say it
    kind: AppKind = "dynamic"
    mode: ConnectionMode = "asynchronous"
    secure: bool | None = None
    placement: Placement | None = None
    rule: Rule | None = None
    start: Start = "first"
    client: str = ""  # connections with the same one rotate together; empty: all of this process, or event loop
    report: bool = False  # tell the directory of openings and closings too, as the broker does
    attempt_timeout_s: float = 5.0
    directory_timeout_s: float = 10.0
    refresh_s: float = 30.0
    cache: str | None = None  # a file that outlives the program
    cache_age_s: float = 7 * 86_400.0  # how old what is in it may be
    latency_max_s: float = LATENCY_MAX_S  # for `auto`
    stable_s: float = STABLE_S  # for `auto`


class PlacingOptions(TypedDict, total=False):
    """The same as keyword arguments; and what a URL cannot say."""

    directory_tls: ssl.SSLContext | None  # if it is to be another one than that for brokers; through HTTPS it must be
    application: str
    cluster: str
    kind: AppKind
    mode: ConnectionMode
    secure: bool | None
    placement: Placement | None
    rule: Rule | None
    start: Start
    client: str
    report: bool
    attempt_timeout_s: float
    directory_timeout_s: float
    refresh_s: float
    cache: str | None
    cache_age_s: float
    latency_max_s: float
    stable_s: float


def read_options(said: Mapping[str, Any], in_url: Mapping[str, str] | None = None) -> Options:
    """Checked, what is said in the program before what the URL says; ConfigError names what is wrong."""
    words = {**(in_url or {}), **said}
    words.pop("directory_tls", None)
    if words.get("cache") is not None:
        words["cache"] = str(words["cache"])
    try:
        options = msgspec.convert(words, Options, strict=False)
    except msgspec.ValidationError as fault:
        raise ConfigError(f"The options of the connection cannot be used: {fault}.") from None
    for name in ("attempt_timeout_s", "directory_timeout_s", "refresh_s", "latency_max_s"):
        if not getattr(options, name) > 0:
            raise ConfigError(f"{name} must be more than 0 seconds.")
    for name in ("cache_age_s", "stable_s"):
        if not getattr(options, name) >= 0:
            raise ConfigError(f"{name} must be 0 seconds or more.")
    return options
