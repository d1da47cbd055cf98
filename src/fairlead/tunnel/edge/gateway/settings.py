"""What a gateway process is told: where it listens, whom it trusts, how much it takes."""

from __future__ import annotations

import hashlib
import socket
import stat
from pathlib import Path

from msgspec import Struct

from fairlead.errors import ConfigError
from fairlead.runtime.addresses import TcpAddress, UnixAddress, parse_listen
from fairlead.tunnel.gateway import Limits

__all__ = ["GatewaySettings", "advice", "check", "instance_of", "read_secret", "read_token"]

SECRET_BYTES_MIN = 16
DEFAULTS = Limits()


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Travels to the gateway's process as JSON. Empty: not there."""

    listen: str = ""
    """HOST:PORT or unix:PATH for clients; none where connections are handed in."""
    link_listen: str = ""
    """HOST:PORT or unix:PATH which brokers dial."""
    certificate: str = ""
    key: str = ""
    """For clients and for links."""
    link_ca: str = ""
    """Brokers must show a certificate which this one has signed (mutual TLS)."""
    secret_file: str = ""
    """What brokers must say in LINK_INIT."""
    servers: tuple[str, ...] = ()
    """Server ids that are expected: a connect to one that is not linked yet gets 503 rather than 404."""
    allow_v1: bool = False
    status_token: str = ""
    """Whoever shows it may see the status from anywhere; without it only from this host."""
    instance: str = ""
    """The name of this gateway among several behind one address; the same after a restart."""
    connections_max: int = 8192
    """HTTP connections at a time; more are closed at once."""
    connections_per_address: int = 4096
    """Of these, from one address that is not this host's."""
    patience_s: float = 30.0
    """How long a request may take to arrive, and a client not to read its answer."""
    arriving_bytes_max: int = 256 << 20
    """Of requests that have not arrived in full; beyond it the oldest of them is given up."""
    leave_s: float = 5.0
    """How long requests under way may take when the gateway is stopped."""
    tunnels_max: int = DEFAULTS.tunnels_max
    tunnels_per_address: int = DEFAULTS.tunnels_per_address
    tunnels_per_server: int = DEFAULTS.tunnels_per_server
    opens_per_s: float = DEFAULTS.opens_per_s
    buffered_bytes_max: int = DEFAULTS.buffered_bytes_max
    tunnel_bytes_max: int = DEFAULTS.tunnel_bytes_max
    body_max: int = DEFAULTS.body_max
    hold_s: float = DEFAULTS.hold_s
    """The longest a pull is held."""
    inactivity_s: float = DEFAULTS.inactivity_s
    grace_s: float = DEFAULTS.grace_s
    """How long tunnels wait for a lost link."""
    link_init_s: float = DEFAULTS.link_init_s
    """How long whoever dials the link may take to say who it is."""
    ping_s: float = DEFAULTS.ping_s
    link_lost_s: float = DEFAULTS.link_lost_s

    def limits(self) -> Limits:
        """Those of the machine."""
        return Limits(**{name: getattr(self, name) for name in Limits._fields if name in self.__struct_fields__})


def check(settings: GatewaySettings) -> None:
    """ConfigError for what would be unsafe or cannot work, with what to do about it."""
    listen = parse_listen(settings.listen) if settings.listen else None
    link = parse_listen(settings.link_listen) if settings.link_listen else None
    if bool(settings.certificate) != bool(settings.key):
        raise ConfigError("a certificate needs its key, and a key its certificate: give both or neither")
    if listen is not None and listen == link and not (isinstance(listen, TcpAddress) and listen.port == 0):
        raise ConfigError(f"clients and links cannot both use {listen}; give links a port of their own")
    if link is None or is_near(link):
        return
    if not settings.certificate:
        raise ConfigError(
            f"links on {link} could be read by others: give a certificate and its key, or listen on 127.0.0.1"
        )
    if not settings.secret_file and not settings.link_ca:
        raise ConfigError(
            f"anybody who reaches {link} could pretend to be a broker: give a secret file "
            "(make one with `fairlead node secret FILE`, and give it to the brokers too), or listen on 127.0.0.1"
        )


def advice(settings: GatewaySettings) -> list[str]:
    """What works, and is worth a second thought."""
    if not settings.listen or settings.certificate:
        return []
    listen = parse_listen(settings.listen)
    if is_near(listen):
        return []
    return [
        f"clients reach {listen} without TLS: whoever listens in can take over their tunnels. Give --certificate and "
        "--key, or put a proxy that speaks HTTPS in front."
    ]


def is_near(address: TcpAddress | UnixAddress) -> bool:
    """Can only this host reach it?"""
    return isinstance(address, UnixAddress) or address.is_loopback


def read_secret(settings: GatewaySettings) -> bytes | None:
    """What brokers must say."""
    return read_private(Path(settings.secret_file), "the secret of the links") if settings.secret_file else None


def read_token(path: Path) -> str:
    """What lets somebody see the status from anywhere."""
    try:
        return read_private(path, "the status token").decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} holds no token: it is a line of letters and digits") from None


def read_private(path: Path, what: str) -> bytes:
    path = path.expanduser()
    try:
        mode, secret = path.stat().st_mode, path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read {what} in {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"others on this host can open {what}; run `chmod 600 {path}`")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{path}: {what} has fewer than {SECRET_BYTES_MIN} bytes; make one with `fairlead node secret FILE`"
        )
    return secret


def instance_of(settings: GatewaySettings) -> str:
    """A gateway that comes back must be taken for the same one (TUN-49), so its name is not drawn anew."""
    if settings.instance:
        return settings.instance
    place = f"{socket.gethostname()} {settings.listen} {settings.link_listen}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]
