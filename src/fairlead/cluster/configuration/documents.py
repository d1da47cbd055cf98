"""From the text of a file to its values and back, and what two nodes compare instead of whole files.

A key nobody knows is refused by name, with the nearest known one; a key of another of the three files is refused with
the name of the file it belongs in (CLU-187).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from typing import Any, Final, TypeVar

import msgspec

from fairlead.cluster.configuration.types import BusSpec, ClusterConfig, ClusterSettings, GroupSpec, NodeConfig
from fairlead.errors import ConfigError
from fairlead.runtime.settings import SECTIONS

T = TypeVar("T", ClusterConfig, ClusterSettings, NodeConfig)

FILES: Final[dict[str, type[msgspec.Struct]]] = {
    "cluster.toml": ClusterConfig,
    "settings.toml": ClusterSettings,
    "node.toml": NodeConfig,
}
SETTINGS_BYTES_MAX: Final = 4 << 20

# Keys of nested tables that are said elsewhere in a cluster.
ELSEWHERE: Final = {
    ("settings.toml", "messages", "site_id"): "say `site_id` in cluster.toml",
    ("settings.toml", "messages", "enabled"): "message managers are the nodes of kind `mm`",
    ("node.toml", "server", "data"): "say `data` at the top of node.toml",
    ("node.toml", "security", "users"): "users are the same on all nodes: they are `users` of settings.toml",
    ("node.toml", "directory", "serve"): "whether a group keeps the directory stands in settings.toml",
    **{
        ("settings.toml", "directory", key): "it is of one server: say it in its node.toml"
        for key in ("servers", "name", "clusters", "user", "password_file", "advertise", "limit")
    },
}


def parse_cluster(text: str, where: str = "cluster.toml") -> ClusterConfig:
    return _parse(text, where, "cluster.toml", ClusterConfig)


def parse_settings(text: str, where: str = "settings.toml") -> ClusterSettings:
    return _parse(text, where, "settings.toml", ClusterSettings)


def parse_node(text: str, where: str = "node.toml") -> NodeConfig:
    return _parse(text, where, "node.toml", NodeConfig)


def essential_digest(data: bytes) -> str:
    """Of the bytes of cluster.toml, comments and all: `sha256sum` says the same."""
    return hashlib.sha256(data).hexdigest()


def canonical(settings: ClusterSettings) -> bytes:
    """The settings in the one form that is compared and sent: what is not the default, keys in order."""
    return json.dumps(_changed(settings), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def settings_digest(data: bytes) -> str:
    """Of the canonical form."""
    return hashlib.sha256(data).hexdigest()


def from_canonical(data: bytes) -> ClusterSettings:
    """What another node sent; ConfigError if it is no settings document of this version."""
    try:
        return msgspec.json.decode(data, type=ClusterSettings)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"another node sent settings this version cannot read: {error}") from None


def to_toml(document: ClusterConfig | ClusterSettings | NodeConfig, comment: str = "") -> str:
    """The text of a file with these values; defaults are left out."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += _table("", _changed(document))
    return "\n".join(lines).strip() + "\n"


def changed_settings(settings: ClusterSettings, changes: dict[str, Any]) -> ClusterSettings:
    """The next revision: these keys (`min_copies`, `messages.cache_bytes`, `groups`) with these values."""
    plain = _changed(settings)
    for name, value in changes.items():
        _set(plain, name, value)
    plain["revision"] = settings.revision + 1
    plain["predecessor"] = settings_digest(canonical(settings))
    return _convert(plain, "settings.toml", "the change", ClusterSettings)


# --- Reading ----------------------------------------------------------------------------------------------------
def _parse(text: str, where: str, file: str, kind: type[T]) -> T:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    return _convert(document, file, where, kind)


def _convert(document: dict[str, Any], file: str, where: str, kind: type[T]) -> T:
    _refuse_strangers(document, file, where)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_sentence(str(error))}") from None


def _refuse_strangers(document: dict[str, Any], file: str, where: str) -> None:
    fields = FILES[file].__struct_fields__
    for key, value in document.items():
        if key not in fields:
            raise ConfigError(f"{where}: {_stranger(key, file)}")
        if (section := SECTIONS.get(key)) is not None and isinstance(value, dict):
            for inner in value:
                if (reason := ELSEWHERE.get((file, key, inner))) is not None:
                    raise ConfigError(f"{where}: [{key}] {inner} has no place here: {reason}")
                if inner not in section.__struct_fields__:
                    known = list(section.__struct_fields__)
                    raise ConfigError(f"{where}: [{key}] has no key `{inner}`{nearest(inner, known)}")
    for key, struct in (("buses", BusSpec), ("groups", GroupSpec)):
        for table in document.get(key, ()) if isinstance(document.get(key), list) else ():
            for inner in table if isinstance(table, dict) else ():
                if inner not in struct.__struct_fields__:
                    known = list(struct.__struct_fields__)
                    raise ConfigError(f"{where}: [[{key}]] has no key `{inner}`{nearest(inner, known)}")


def _stranger(key: str, file: str) -> str:
    owners = [other for other, kind in FILES.items() if other != file and key in kind.__struct_fields__]
    if owners:
        return f"`{key}` does not belong in {file} but in {owners[0]}"
    return f"{file} has no key `{key}`{nearest(key, list(FILES[file].__struct_fields__))}"


def nearest(word: str, known: list[str]) -> str:
    """How a sentence about an unknown word ends."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known are {', '.join(known)}"


def _sentence(reason: str) -> str:
    text, _, path = reason.partition(" - at `$.")
    text = text.replace("Expected", "expected").replace("Invalid", "invalid").replace("Object missing", "missing")
    return f"{path.rstrip('`')}: {text}" if path else text


def _set(plain: dict[str, Any], name: str, value: Any) -> None:
    section, dot, key = name.partition(".")
    if section in ("revision", "predecessor"):
        raise ConfigError(f"`{section}` counts the changes by itself")
    if section not in ClusterSettings.__struct_fields__:
        if section in ClusterConfig.__struct_fields__:
            raise ConfigError(
                f"`{section}` is essential: it stands in cluster.toml, the same on all nodes, and cannot be changed "
                "while one runs; stop all nodes, distribute a new file, start them"
            )
        raise ConfigError(_stranger(section, "settings.toml"))
    if not dot:
        plain[section] = value
    elif section not in ("messages", "directory"):
        raise ConfigError(f"`{section}` has no parts; set it as a whole")
    else:
        plain[section] = plain.get(section, {}) | {key: value}


# --- Writing ----------------------------------------------------------------------------------------------------
def _changed(document: msgspec.Struct) -> dict[str, Any]:
    """Plain data of what is not the default, structs inside treated alike."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(document):
        value = getattr(document, field.name)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if value == default and field.name not in ("revision", "predecessor"):
            continue
        if isinstance(value, msgspec.Struct):
            value = _changed(value)
        elif isinstance(value, list):
            value = [_changed(item) if isinstance(item, msgspec.Struct) else item for item in value]
        found[field.name] = value
    return found


def _table(prefix: str, table: dict[str, Any]) -> list[str]:
    """Values first, then tables: what follows a header of TOML belongs to it."""
    lines: list[str] = []
    later: list[str] = []
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            later += ["", f"[{name}]", *_table(name, value)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                later += ["", f"[[{name}]]", *_table(name, item)]
        else:
            lines.append(f"{key} = {_shown(value)}")
    return lines + later


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_shown(item) for item in value)}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """JSON's quoting is TOML's, except for the one control character that JSON leaves alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
