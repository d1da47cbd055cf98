"""Reads the configuration at the door and judges it; inward it is handed on as values.

Defaults, then the TOML file, then FAIRLEAD_… variables, then the command line: the last one wins, and
`Config.origins` remembers which it was. A key nobody knows is refused by name, with the nearest known one
suggested: a setting with a typing mistake must never look as if it were in force.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from fairlead.bus.config import is_loopback
from fairlead.errors import ConfigError, FairleadError
from fairlead.feeds.source_relations import configured
from fairlead.runtime.addresses import TcpAddress, UnixAddress, parse_listen
from fairlead.runtime.settings import (
    MANAGERS_MAX,
    PREFIX,
    SECTIONS,
    SETTINGS,
    VARIABLES,
    Config,
    Destination,
    Setting,
    value_of,
)

__all__ = [
    "SETTINGS",
    "Config",
    "advice",
    "anonymous_allowed",
    "check",
    "check_keys_url",
    "data_path",
    "from_wire",
    "load",
    "managers_count",
    "to_wire",
    "token_keys_path",
    "tokens_taken",
    "users_path",
    "value_of",
]


WIRE_BYTES_MAX = 60_000  # it travels to the processes in one packet


def load(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """The configuration in force. `overrides` are the command line's: {"server.managers": 4}; None is no override.

    Without a `path` the file named by FAIRLEAD_CONFIG is read, else ~/.config/fairlead/fairlead.toml if it
    exists. Nothing else of the world is looked at: hand in `os.environ`, or an empty mapping in tests.
    """
    environ = {} if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if xdg := environ.get("XDG_DATA_HOME"):
        values["server.data"], origins["server.data"] = str(Path(xdg) / "fairlead"), "XDG_DATA_HOME"
    destinations: dict[str, Destination] = {}
    file = _find_file(path, environ)
    if file is not None:
        document = _read_document(file)
        destinations = dict(_destinations(file, document.pop("destinations", {})))
        origins |= {f"destinations.{name}": str(file) for name in destinations}
        for name, value in _read_sections(file, document):
            values[name], origins[name] = _convert(SETTINGS[name], value, str(file)), str(file)
    for variable, text in sorted(environ.items()):
        if setting := _from_variable(variable):
            values[setting.name] = _convert(setting, _parse(setting, text), variable, strict=False)
            origins[setting.name] = variable
    for name, override in (overrides or {}).items():
        if override is None:
            continue
        setting = SETTINGS.get(name) or _unknown_name(name)
        given = _parse(setting, override) if isinstance(override, str) else override
        values[name] = _convert(setting, given, "command line", strict=False)
        origins[name] = "command line"
    nested: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in values.items():
        section, _, key = name.partition(".")
        nested[section][key] = value
    return msgspec.convert(nested | {"origins": origins, "destinations": msgspec.to_builtins(destinations)}, Config)


def to_wire(config: Config) -> dict[str, Any]:
    """Plain data that survives JSON, for the supervisor to hand to its children."""
    wire: dict[str, Any] = msgspec.to_builtins(config)
    return wire


def from_wire(wire: Mapping[str, Any]) -> Config:
    """What `to_wire` was given."""
    try:
        return msgspec.convert(dict(wire), Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the supervisor sent a configuration this version cannot read: {error}") from None


def data_path(config: Config) -> Path:
    """The data directory, with `~` resolved."""
    return Path(config.server.data).expanduser()


def token_keys_path(config: Config) -> Path:
    """Where the server's own keys of tokens are, if there are any (`fairlead user token-key`)."""
    return data_path(config) / "token-keys.json"


def managers_count(config: Config, cores: int) -> int:
    """How many connection managers to start on a machine with so many cores."""
    return config.server.managers or max(1, min(cores, MANAGERS_MAX))


def users_path(config: Config) -> Path | None:
    """The users file in force, or None when there is none."""
    if config.security.users:
        return Path(config.security.users).expanduser()
    usual = data_path(config) / "users.toml"
    return usual if usual.is_file() else None


def is_broker(config: Config) -> bool:
    """Is this server known to a directory, or to its own, as one that applications may connect to?"""
    settings = config.directory
    return bool(settings.servers or (settings.serve and settings.name))


def tokens_taken(config: Config) -> bool:
    """Can somebody log in with a token?"""
    return bool(config.tokens.keys) or token_keys_path(config).is_file()


def anonymous_allowed(config: Config) -> bool:
    """May a client connect without a name?"""
    if config.security.allow_anonymous is None:
        return not (users_path(config) or tokens_taken(config) or config.security.client_certificates == "require")
    return config.security.allow_anonymous


def check(config: Config) -> None:
    """Raise a ConfigError, with what to do about it, if these values cannot work or are dangerous together."""
    addresses = [parse_listen(text) for text in config.server.listen]
    beyond = [str(a) for a in addresses if isinstance(a, TcpAddress) and not a.is_loopback]
    users = users_path(config)
    if users is not None and not users.is_file():
        raise ConfigError(f"there is no users file {users}; make it with `fairlead user add NAME`")
    if beyond and anonymous_allowed(config) and not config.server.insecure:
        raise ConfigError(
            f"listening on {', '.join(beyond)} would let anybody on the network in; add a user with `fairlead user add "
            "NAME`, or say --insecure if the network is closed"
        )
    _check_tls(config)
    _check_tokens(config)
    _check_tunnel(config)
    _check_console(config)
    configured(config.streams.relations)
    for address in addresses:
        if isinstance(address, UnixAddress) and len(address.path.encode()) > 107:
            raise ConfigError(f"the unix socket path {address.path} is longer than the 107 bytes the system allows")
    limits, fairness, store = config.limits, config.fairness, config.store
    if fairness.resume_below > fairness.limit:
        raise ConfigError(
            f"[fairness] resume_below = {fairness.resume_below} is above limit = {fairness.limit}: reading would go on "
            "before it stopped; set resume_below to the limit or less"
        )
    if fairness.queue_bytes & (fairness.queue_bytes - 1):
        raise ConfigError(f"[fairness] queue_bytes = {fairness.queue_bytes} is not a power of two; try 4194304")
    if limits.body_max > store.arena_bytes // 2:
        raise ConfigError(
            f"[limits] body_max = {limits.body_max} needs [store] arena_bytes of at least {2 * limits.body_max}, "
            "so that a large message does not wait for ever"
        )
    messages = config.messages
    for unit in ("commands", "bytes"):
        low, high = getattr(messages, f"low_water_{unit}"), getattr(messages, f"high_water_{unit}")
        if low >= high:
            raise ConfigError(
                f"[messages] low_water_{unit} = {low} is not below high_water_{unit} = {high}: producers would be "
                "released before they were blocked"
            )
    if len(msgspec.json.encode(config)) > WIRE_BYTES_MAX:
        raise ConfigError(
            f"with {len(config.destinations)} destinations the configuration is too long to be handed on; create some "
            "of them with `fairlead admin create`"
        )
    if messages.fragment_bytes > messages.large_bytes:
        raise ConfigError("[messages] fragment_bytes cannot exceed large_bytes")
    if messages.quota_bytes and messages.quota_bytes < 4 * messages.segment_bytes:
        raise ConfigError(
            f"[messages] quota_bytes = {messages.quota_bytes} has no room for four segments; set it to at least "
            f"{4 * messages.segment_bytes}, or segment_bytes lower"
        )
    if store.arena_step_bytes > store.arena_bytes:
        raise ConfigError("[store] arena_step_bytes cannot exceed arena_bytes")


def _check_tls(config: Config) -> None:
    security = config.security
    if bool(security.tls_certificate) != bool(security.tls_key):
        missing = "tls_key" if security.tls_certificate else "tls_certificate"
        raise ConfigError(f"TLS needs certificate and key: [security] {missing} is not set")
    for key in ("tls_certificate", "tls_key", "tls_client_ca", "tls_crl"):
        file = getattr(security, key)
        if file and not Path(file).expanduser().is_file():
            raise ConfigError(f"[security] {key}: there is no file {file}")
    links = config.links
    for key in ("tls_ca", "tls_certificate", "tls_key"):
        if (file := getattr(links, key)) and not Path(file).expanduser().is_file():
            raise ConfigError(f"[links] {key}: there is no file {file}")
    if bool(links.tls_certificate) != bool(links.tls_key):
        missing = "tls_key" if links.tls_certificate else "tls_certificate"
        raise ConfigError(f"a certificate for links needs its key: [links] {missing} is not set")
    if security.client_certificates != "off" and not (security.tls_client_ca and security.tls_certificate):
        missing = "tls_client_ca" if security.tls_certificate else "tls_certificate"
        raise ConfigError(f"[security] client_certificates = {security.client_certificates!r} needs {missing}")
    if security.client_certificates == "off" and (security.tls_client_ca or security.tls_crl):
        raise ConfigError(
            '[security] tls_client_ca and tls_crl do nothing while client_certificates is "off"; set it to "ask" or '
            '"require"'
        )


def _check_tokens(config: Config) -> None:
    tokens = config.tokens
    if not tokens.keys:
        return
    if "://" in tokens.keys:
        check_keys_url(tokens.keys)
    elif not Path(tokens.keys).expanduser().is_file():
        raise ConfigError(f"[tokens] keys: there is no file {tokens.keys}")
    if tokens.keys_ca and not Path(tokens.keys_ca).expanduser().is_file():
        raise ConfigError(f"[tokens] keys_ca: there is no file {tokens.keys_ca}")
    if not tokens.audience:
        raise ConfigError(
            "[tokens] audience is not set: a token made for any other service would open this server. Set it to the "
            'name your provider puts into `aud`, or to ["*"] if it puts none'
        )
    if not tokens.algorithms:
        raise ConfigError("[tokens] algorithms is empty: no token could ever be accepted")


def check_keys_url(url: str) -> None:
    """Raise a ConfigError unless nobody on the way can put in keys of their own."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("https", "http") or not host:
        raise ConfigError(f"[tokens] keys: {parts.scheme}://{host} is no URL of a JWKS; write https://HOST/PATH")
    if parts.username or parts.password:
        raise ConfigError("[tokens] keys: a JWKS is public; write its URL without a login")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(
            f"[tokens] keys: whoever is on the way to {host} could put in keys of their own; write https://"
        )


def _check_tunnel(config: Config) -> None:
    tunnel = config.tunnel
    if (tunnel.gateways or tunnel.link_listen) and not tunnel.enabled:
        raise ConfigError("[tunnel] gateways and link_listen need [tunnel] enabled = true")
    for key in ("link_secret_file", "gateway_ca", "link_ca", "link_certificate", "link_key"):
        file = getattr(tunnel, key)
        if file and not Path(file).expanduser().is_file():
            raise ConfigError(f"[tunnel] {key}: there is no file {file}")
    if (file := tunnel.link_secret_file) and Path(file).expanduser().stat().st_mode & 0o077:
        raise ConfigError(f"[tunnel] link_secret_file: others on this host can open it; run `chmod 600 {file}`")
    if bool(tunnel.link_certificate) != bool(tunnel.link_key):
        missing = "link_key" if tunnel.link_certificate else "link_certificate"
        raise ConfigError(f"a certificate for links needs its key: [tunnel] {missing} is not set")
    if tunnel.link_ca and not config.security.tls_certificate:
        raise ConfigError("[tunnel] link_ca asks brokers for certificates, over TLS: set [security] tls_certificate")
    for gateway in tunnel.gateways:
        address = parse_listen(gateway)
        if not isinstance(address, TcpAddress) or not address.host or not address.port:
            raise ConfigError(f"[tunnel] gateways: {gateway!r} is no gateway elsewhere; write HOST:PORT")
    if tunnel.gateways and anonymous_allowed(config) and not config.server.insecure:
        raise ConfigError(
            f"whoever reaches {', '.join(tunnel.gateways)} would get in here without a name; add a user with `fairlead "
            "user add NAME`, or say --insecure if the network is closed"
        )
    if not tunnel.link_listen:
        return
    link = parse_listen(tunnel.link_listen)
    if isinstance(link, UnixAddress) or link.is_loopback:
        return
    if not config.security.tls_certificate:
        raise ConfigError(
            f"links on {link} could be read by others: set [security] tls_certificate and tls_key, or listen on "
            "127.0.0.1"
        )
    if not tunnel.link_secret_file and not tunnel.link_ca:
        raise ConfigError(
            f"anybody who reaches {link} could pretend to be a broker: make a secret with `fairlead node secret FILE`, "
            "set [tunnel] link_secret_file to it, and give it to the brokers too"
        )


def _check_console(config: Config) -> None:
    if not config.console.enabled:
        return
    for text in config.console.listen:
        address = parse_listen(text)
        if isinstance(address, UnixAddress) or address.is_loopback:
            continue
        if users_path(config) is None and not config.server.insecure:
            raise ConfigError(
                f"a console on {address} would let anybody on the network in; add a user with `fairlead user add "
                "NAME`, or say --insecure if the network is closed"
            )
        if not config.security.tls_certificate and not config.server.insecure:
            raise ConfigError(
                f"a console on {address} would show passwords to whoever is on the way: set [security] tls_certificate "
                "and tls_key, listen on 127.0.0.1 behind a proxy that speaks TLS, or say --insecure"
            )


def advice(config: Config) -> list[str]:
    """What works, but an operator may want to know."""
    found: list[str] = []
    addresses = [parse_listen(text) for text in config.server.listen]
    beyond = [str(a) for a in addresses if isinstance(a, TcpAddress) and not a.is_loopback]
    if beyond and config.server.insecure and anonymous_allowed(config):
        found.append(f"anybody who reaches {', '.join(beyond)} can read and send everything (--insecure)")
    if beyond and not config.security.tls_certificate:
        found.append(
            f"passwords and messages cross the network in the clear on {', '.join(beyond)}: set tls_certificate"
        )
    return found


def _find_file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is None:
        path = environ.get(f"{PREFIX}CONFIG") or None
    if path is not None:
        return Path(path)
    home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
    usual = Path(home, "fairlead", "fairlead.toml") if home else None
    return usual if usual is not None and usual.is_file() else None


def _read_document(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _read_sections(file: Path, document: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for section, table in document.items():
        if section not in SECTIONS:
            raise ConfigError(f"{file}: {_unknown_section(section, table)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: `{section}` is a section; write [{section}] and its keys below it")
        for key, value in table.items():
            if f"{section}.{key}" not in SETTINGS:
                raise ConfigError(f"{file}: {_unknown_key(section, key)}")
            yield f"{section}.{key}", value


def _destinations(file: Path, tables: object) -> Iterator[tuple[str, Destination]]:
    """Every `[destinations.NAME]` of the file."""
    if not tables:
        return
    from fairlead.cluster.names import check_name  # only with such a section: much comes with it

    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{file}: write one [destinations.NAME] a queue or topic, and its parameters below it")
    known = list(Destination.__struct_fields__)
    for name, table in tables.items():
        where = f"{file}: [destinations.{name}]"
        for key, value in table.items():
            if isinstance(value, dict):
                raise ConfigError(f'{where}: put a name with dots into quotes: [destinations."{name}.{key}"]')
            if key not in known:
                raise ConfigError(f"{where} has no key `{key}`{_nearest(key, known)}")
        try:
            check_name(name)
            yield name, msgspec.convert(table, Destination)
        except (msgspec.ValidationError, FairleadError) as error:
            raise ConfigError(f"{where}: {error}") from None


def _from_variable(variable: str) -> Setting | None:
    """The setting of an environment variable; FAIRLEAD_ variables that name no section are not ours."""
    if setting := VARIABLES.get(variable):
        return setting
    section, _, key = variable.removeprefix(PREFIX).lower().partition("_")
    if not variable.startswith(PREFIX) or section not in SECTIONS or not key:
        return None
    raise ConfigError(f"environment variable {variable}: {_unknown_key(section, key)}")


def _unknown_name(name: str) -> Setting:
    section, _, key = name.partition(".")
    raise ConfigError(_unknown_key(section, key) if section in SECTIONS else _unknown_section(section, None))


def _unknown_section(section: str, value: object) -> str:
    if not isinstance(value, dict | None):
        owners = [s.section for s in SETTINGS.values() if s.key == section]
        if owners:
            return f"`{section}` belongs under [{owners[0]}]"
    return f"there is no section [{section}]{_nearest(section, [*SECTIONS, 'destinations'])}"


def _unknown_key(section: str, key: str) -> str:
    owners = [s.section for s in SETTINGS.values() if s.key == key]
    if owners:
        return f"[{section}] has no key `{key}`; it belongs under [{owners[0]}]"
    known = [s.key for s in SETTINGS.values() if s.section == section]
    return f"[{section}] has no key `{key}`{_nearest(key, known)}"


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known are {', '.join(known)}"


def _parse(setting: Setting, text: str) -> object:
    """What a text from the environment or the command line means for a setting of this type."""
    bare = get_args(setting.type)[0]
    if get_origin(bare) is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if bare is str or get_origin(bare) is Literal:
        return text
    if bare in (int, float):
        return text.replace("_", "")
    return {"yes": True, "on": True, "no": False, "off": False}.get(text.lower(), text)


def _convert(setting: Setting, value: object, origin: str, *, strict: bool = True) -> object:
    try:
        return msgspec.convert(value, setting.type, strict=strict)
    except msgspec.ValidationError as error:
        reason = str(error).split(" - at `")[0].replace("Expected", "expected").replace("Invalid", "invalid")
        if get_origin(bare := get_args(setting.type)[0]) is Literal:
            reason = f"it is one of {', '.join(get_args(bare))}"
        raise ConfigError(f"{origin}: [{setting.section}] {setting.key} = {value!r}: {reason}") from None
