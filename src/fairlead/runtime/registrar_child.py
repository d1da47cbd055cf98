"""The registrar as a child of a server: what it is told by the settings, and its line to the supervisor.

If the directory says that another server that lives has this server's name, the whole server ends: two brokers of one
name would get each other's messages (DIR-33). A server that has been registered since it was started is left alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from fairlead.broker.edge.secret import server_secret
from fairlead.client.target import parse, parse_directory
from fairlead.directory.registrar.edge.program import Registrar, Settings
from fairlead.directory.rows import Broker, BrokerState
from fairlead.errors import ConfigError, NameTaken
from fairlead.runtime import config as configuring
from fairlead.runtime.addresses import TcpAddress, parse_listen
from fairlead.runtime.control import Command, Control, Start
from fairlead.runtime.program_child import ProgramChild, rules_of
from fairlead.runtime.restart import REFUSED
from fairlead.runtime.rundir import write_note
from fairlead.security import inside

IDENTITY_FILE: Final = "broker-identity"
NOTE_FILE: Final = "registrar.note"  # in the run directory: what the next registrar of this server has to know


def run(control: Control, start: Start) -> int:
    """Be a registrar until told to stop."""
    return asyncio.run(RegistrarProcess(control, start).run())


class Note(Struct):
    """That this server, since it was started, has been registered; and what its operator wants."""

    server: str
    registered: bool = False
    state: BrokerState = "up"


class RegistrarProcess(ProgramChild):
    """The edge between a registrar and its supervisor."""

    role = "registrar"

    def __init__(self, control: Control, start: Start) -> None:
        super().__init__(control, start)
        self._note = read_note(control.run_dir / NOTE_FILE, f"{start.server_id:016x}")
        self._settings = settings_of(start, control.run_dir, is_first=not self._note.registered)
        self._farewell = False

    def begin(self) -> Registrar:
        self._registrar = Registrar(self._settings, say=self._control.log, on_registered=self._on_registered)
        self._registrar.set_state(self._note.state)
        return self._registrar

    async def close(self) -> None:
        await self._registrar.close(farewell=self._farewell)

    def outcome(self, work: asyncio.Task[None]) -> int:
        """It ended by itself: another server has the name, or something is wrong with the program."""
        error = work.exception()
        taken, rest = error.split(NameTaken) if isinstance(error, BaseExceptionGroup) else (None, error)
        if taken is None or rest is not None:
            raise rest or RuntimeError("the registrar ended")
        name = self._settings.row.name
        self._control.send(
            "failed",
            text=f"This server cannot be broker {name} ([directory] name). {_first(taken)}",
        )
        return REFUSED

    def _on_registered(self) -> None:
        self._note.registered = True
        write_note(self._control.run_dir / NOTE_FILE, self._note)

    def _set_state(self, state: BrokerState) -> None:
        self._note.state = state
        write_note(self._control.run_dir / NOTE_FILE, self._note)
        self._registrar.set_state(state)

    def obey(self, command: Command) -> None:
        match command.name:
            case "stop":
                self._farewell = bool(command.args.get("server"))
            case "broker-state":
                self._set_state(command.args["state"])


def read_note(path: Path, server: str) -> Note:
    """An earlier server's note says nothing of this one."""
    try:
        note = msgspec.json.decode(path.read_bytes(), type=Note)
    except (OSError, msgspec.DecodeError):
        return Note(server)
    return note if note.server == server else Note(server)


def _first(group: BaseExceptionGroup[NameTaken]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def settings_of(start: Start, run_dir: Path, *, is_first: bool) -> Settings:
    """What the registrar of this server is to be; ConfigError if that cannot work."""
    directory = start.config.directory
    user, password = inside.REGISTRAR, inside.password_of(server_secret(start.store), inside.REGISTRAR)
    own = start.urls[0]
    parse(own)
    servers = directory.servers or own
    target = parse_directory(servers)
    at_home = not directory.servers
    abroad_user = directory.user or target.user
    abroad_password = read_password(directory.password_file) or target.password
    identity = lasting_identity(configuring.data_path(start.config) / IDENTITY_FILE)
    return Settings(
        own=own,
        user=user,
        password=password,
        row=row_of(start, run_dir, identity, target.targets[0]),
        clusters=directory.clusters,
        directory=servers,
        directory_user=user if at_home else abroad_user,
        directory_password=password if at_home else abroad_password,
        broker_user=abroad_user,
        broker_password=abroad_password,
        lease_s=directory.lease_s,
        at_home=at_home,
        is_first=is_first,
        rules=rules_of(start),
    )


def row_of(start: Start, run_dir: Path, identity: str, directory_url: str) -> Broker:
    """The broker as others are to know it."""
    settings, security = start.config.directory, start.config.security
    ip, port, host = advertised(start, directory_url)
    return Broker(
        name=settings.name or socket.gethostname(),
        ip=ip,
        port=port,
        secure_port=port if security.tls_certificate else 0,
        host=host,
        identity=identity,
        store=store_of(start, run_dir, identity),
        limit=settings.limit,
    )


def store_of(start: Start, run_dir: Path, identity: str) -> str:
    """Servers with the same answer have the same queues: the client managers of one cluster; else each its own."""
    if not start.config.agent:
        return identity
    from fairlead.runtime.member_node.plan import PLAN_NAME, Plan

    return f"cluster {Plan.read(run_dir / PLAN_NAME).cluster.name}"


def advertised(start: Start, directory_url: str) -> tuple[str, int, str]:
    """Address, port and host name under which clients reach this server."""
    advertise = start.config.directory.advertise
    if advertise:
        address = parse_listen(advertise)
        if not isinstance(address, TcpAddress) or not address.host:
            raise ConfigError(f"[directory] advertise = {advertise!r}: write HOST:PORT as clients reach this server.")
        port = address.port or _listening(start)[1]
        return _resolved(address.host), port, address.host
    host, port = _listening(start)
    if not host or host in ("0.0.0.0", "::"):
        host = _towards(directory_url)
    return _resolved(host), port, socket.gethostname()


def _listening(start: Start) -> tuple[str, int]:
    """The first TCP address this server listens on, with the port it really has."""
    for text, url in zip(start.config.server.listen, start.urls, strict=False):
        address = parse_listen(text)
        if isinstance(address, TcpAddress):
            return address.host, urlsplit(url).port or address.port
    raise ConfigError(
        "A broker of a directory listens on TCP: give an address with --listen, or [directory] advertise."
    )


def _resolved(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"The host name {host} has no address: {error}.") from None


def _towards(url: str) -> str:
    """The address of this host by which it reaches the directory: others reach it there as well, as a rule."""
    found = urlsplit(url)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(found.hostname, found.port or 1, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"This server listens on all interfaces and cannot tell by which of them others reach it ({error}); say so "
            "with [directory] advertise."
        ) from None


def lasting_identity(file: Path) -> str:
    """Who this server is in the directory, whatever its name and address: made once for a data directory."""
    if not file.exists():
        new = file.with_name(f"{file.name}.new")
        new.write_text(secrets.token_hex(16))
        new.rename(file)
    return file.read_text().strip()


def read_password(name: str) -> str:
    if not name:
        return ""
    path = Path(name).expanduser()
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"others can open the password file {path}; run `chmod 600 {path}`")
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the password file {path}: {error.strerror}") from None
