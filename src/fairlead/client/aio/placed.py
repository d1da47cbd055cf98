"""The part of a connection that was placed: which broker it has, under which label, and how that came about.

::

    async with fairlead.connect("fairlead+directory://d1,d2/cluster-A", name="AX") as connection:
        print(connection.broker, await connection.labelled())
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from fairlead.client.aio.keeper import LEAVE_S, Keeper
from fairlead.client.aio.placing import Places, Scope, forget, places_of
from fairlead.client.aio.registering import RegisteringKeeper, Registrar
from fairlead.client.aio.waiting import agreed
from fairlead.client.effects import Event
from fairlead.client.target import Address, DirectoryTarget, Target, is_directory, parse_directory
from fairlead.directory.placing.attempts import Dial, Wish
from fairlead.directory.placing.mode import HEURISTICS
from fairlead.directory.placing.options import Options, PlacingOptions, read_options
from fairlead.directory.placing.registrar_talk import Terms
from fairlead.directory.rows import AppKind, Link
from fairlead.errors import ConfigError, ConnectionLost, FairleadError, LocalProtocolError
from fairlead.tunnel.options import TunnelOptions

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier
    from fairlead.client.aio.connection import Connection
    from fairlead.directory.edge.client import DirectoryClient

__all__ = ["OpenPlaces", "PlacedConnection", "PlacedKeeper", "open_places"]

CONNECT_S = 10.0
PLACE_S = 60.0
FAREWELL_S = 0.2
"""How long a failure is held back so that the directory can be told good-bye; a silent one is left beside."""
AT_A_BROKER = ("application", "kind", "mode")
"""Options that mean something without a directory; how secure a line is, the scheme of a broker's URL says."""
MOVE_S = 30.0
"""How long a connection that is asked to move may finish what it is at."""


class PlacedKeeper(RegisteringKeeper):
    """Lets the choice of brokers say where to connect, at first and after each loss."""

    places: Places
    wish: Wish
    _at = ""
    _is_leaving = False

    async def begin(self) -> None:
        await self._attach(patient=False)  # the request has a limit of its own, and reasons

    async def _find(self, *, patient: bool) -> None:
        wish = self.wish._replace(limit_s=None) if patient else self.wish
        broker = await self.places.place(wish, self._try, avoid=self._at)
        self._at = broker.name
        self._is_leaving = False

    async def _try(self, dial: Dial) -> None:
        broker, is_secure = dial.broker, self._tls is not None
        port = broker.secure_port if is_secure else broker.port
        if not port:  # never the other one (DIR-67)
            raise ConnectionLost(f"Broker {broker.name} has no {'TLS' if is_secure else 'plain'} port.")
        address = Address(broker.ip, port, name=broker.host)
        self._reservation = dial.reservation
        try:
            await self._dial(address, None, dial.timeout_s)
        except FairleadError:
            raise
        except TimeoutError:
            raise ConnectionLost(f"{address} did not answer within {dial.timeout_s:.3g} s.") from None
        except OSError as failure:
            raise ConnectionLost(f"Cannot connect to {address}: {failure}.") from None

    async def leave(self, addresses: list[Address], within_s: float) -> None:
        await self._leave(min(within_s, LEAVE_S))

    def on_move(self) -> None:
        """The registrar says that others have fewer connections: at a good moment."""
        self._carrier.spawn(self._leave(MOVE_S))

    async def _leave(self, within_s: float) -> None:
        carrier = self._carrier
        if not self._limit_s or self._is_leaving:
            return  # it would not be made again
        self._is_leaving = True
        epoch, until_s = carrier.epoch, carrier.loop.time() + within_s
        while (carrier.session.requests.open or any(busy() for busy in carrier.busy)) and carrier.loop.time() < until_s:
            await asyncio.sleep(0.01)
        if carrier.epoch == epoch and carrier.session.is_live:
            answer, wait = agreed(carrier)
            carrier.session.ping(answer)
            await asyncio.wait([wait], timeout=LEAVE_S)  # what was said is taken in
        if carrier.epoch == epoch:
            carrier.drop(ConnectionLost("The broker asked this client to connect elsewhere."))


class PlacedConnection:
    """What `Connection` adds where it belongs to an application."""

    _registrar: Registrar | None = None
    _places: Places | None = None
    _scope: Scope | None = None
    _placing: Options
    _wish: Wish
    _directory_target: DirectoryTarget | None = None
    _directory_tls: ssl.SSLContext | None = None
    _counted: Link | None = None  # the row of the line there is

    @property
    def app(self) -> str:
        """The application it is one of; empty: of none."""
        return self._registrar.terms.app if self._registrar is not None else ""

    @property
    def broker(self) -> str:
        """Name of the broker it is registered at."""
        return self._registrar.broker if self._registrar is not None else ""

    @property
    def cluster(self) -> str:
        return self._registrar.terms.cluster if self._registrar is not None else ""

    @property
    def label(self) -> str:
        """AX-4; empty while the directory has not given it one, and another one after a reconnect."""
        return self._registrar.label if self._registrar is not None else ""

    @property
    def identity(self) -> str:
        """By which both sides know its row in the directory."""
        return self._registrar.identity if self._registrar is not None else ""

    @property
    def mode(self) -> str:
        """Synchronous or asynchronous."""
        return self._registrar.terms.mode if self._registrar is not None else "asynchronous"

    @property
    def places(self) -> Places | None:
        """How brokers are chosen; None: this connection has a server of its own."""
        return self._places

    @property
    def _directory(self) -> DirectoryClient | None:
        return self._places.directory if self._places is not None else None

    async def labelled(self, timeout: float | None = None) -> str:
        """Wait for the label: while the directory is away there is none."""
        return await self._registered().labelled(timeout)

    async def register_as(self, kind: AppKind) -> None:
        """Ask that the application's registration be static, or dynamic, from now on."""
        await self._registered().change(kind)

    async def deregister(self, links: str = "refuse") -> None:
        """End the registration of the application: not while it has other connections, or with `close` them too."""
        await self._registered().deregister(links)

    def _registered(self) -> Registrar:
        if self._registrar is None:
            raise LocalProtocolError("This connection has no application: connect with `application`, or a directory.")
        if not self._registrar.identity:
            raise LocalProtocolError("The connection is not open: await it, or use `async with`.")
        return self._registrar

    def directory_status(self) -> dict[str, Any]:
        """What this client knows of the directory, how it chooses, and what it tried (DIR-7, DIR-40, DIR-81)."""
        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        return {
            "app": self.app,
            "cluster": self.cluster,
            "broker": self.broker,
            "label": self.label,
            "identity": self.identity,
            "connected": self.connected,
            "unsettled": self._applications.unsettled,
            **(self._places.facts() if self._places is not None else {}),
        }

    # Opening and closing.

    def _plan(
        self,
        url: str | Sequence[str],
        name: str | None,
        tunnel: TunnelOptions | None,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float | None,
        said: PlacingOptions,
    ) -> Target | None:
        """Read what the URL and the options say; None: it is the URL of a server, to be read as such."""
        if not is_directory(url):
            self._placing = options = read_options(said)
            if left := sorted(name for name, value in said.items() if name not in AT_A_BROKER and value is not None):
                raise ConfigError(f"{', '.join(left)}: only with a directory, fairlead+directory://host/CLUSTER.")
            if options.application:
                self._registrar = Registrar(Terms(options.application, options.kind, options.mode))
            return None
        target = self._directory_target = parse_directory(url, tunnel)
        self._placing = options = read_options(said, target.options)
        app, cluster = options.application or name, target.cluster or options.cluster
        if not app or not cluster:
            raise ConfigError("With a directory, `name` is the application's, and the URL ends in /CLUSTER.")
        is_secure = options.secure if options.secure is not None else target.targets[0].startswith("fairleads:")
        self._directory_tls = _for_directory(target, tls, said.get("directory_tls"))
        self._registrar = Registrar(Terms(app, options.kind, options.mode, cluster))
        self._wish = Wish(
            app,
            cluster,
            placement=HEURISTICS[options.placement] if options.placement is not None else None,
            rule=options.rule,
            secure=is_secure,
            start=options.start,
            attempt_s=options.attempt_timeout_s,
            limit_s=PLACE_S if connect_timeout_s == 0 else connect_timeout_s,
            directory_s=options.directory_timeout_s,
        )
        return Target([Address(cluster)], is_secure, target.user, target.password)

    @property
    def _keeper_kind(self) -> type[Keeper]:
        if self._directory_target is not None:
            return PlacedKeeper
        return Keeper if self._registrar is None else RegisteringKeeper

    def _equip(self, carrier: Carrier) -> None:
        """Give a new carrier's keeper what it needs."""
        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        keeper = carrier.keeper
        if isinstance(keeper, RegisteringKeeper):
            assert self._registrar is not None
            keeper.registrar = self._registrar
            carrier.listeners.insert(0, self._on_line)
            carrier.busy.append(lambda: self._applications.unsettled > 0)
        if isinstance(keeper, PlacedKeeper):
            assert self._directory_target is not None
            said = self._session.hello
            self._places = places_of(self._directory_target, self._placing, self._directory_tls, self._scope, said.user)
            self._places.acquire(said.user, said.password)
            keeper.places, keeper.wish = self._places, self._wish
            keeper.registrar.on_move = keeper.on_move

    def _on_line(self, event: Event) -> None:
        """A line is there, or gone: count it, and tell the directory too if that is wanted."""
        registrar, places = self._registrar, self._places
        assert registrar is not None
        if event.name in ("lost", "closed") and self._counted is not None:
            link, self._counted = self._counted, None
            if places is not None:
                places.left(link.broker)
                if self._placing.report:
                    places.closed(registrar.terms.app, link.identity, link.broker)
        elif event.name == "reconnected":
            self._count_line()
        if event.name == "closed":
            registrar.end()
            if places is not None:
                places.release()

    def _count_line(self) -> None:
        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        registrar, places = self._registrar, self._places
        if registrar is None:
            return
        terms = registrar.terms
        self._counted = Link(
            identity=registrar.identity,
            broker=registrar.broker,
            client=self.address,
            user=self._session.hello.user,
            kind=terms.mode,
            secure=registrar.secure,
            cluster=terms.cluster,
        )
        if places is not None and self._placing.report:
            places.opened(terms.app, self._counted, terms.kind, registrar.reservation)

    async def _unplace(self, within_s: float | None = None) -> None:
        if self._places is not None:
            await self._places.settled(within_s)


def _for_directory(
    target: DirectoryTarget, tls: ssl.SSLContext | None, own: ssl.SSLContext | None
) -> ssl.SSLContext | None:
    """That for brokers does, unless the line is plain; a tunnel changes the context it is given and needs its own."""
    return own or (tls if target.targets[0].startswith("fairleads:") else None)


class OpenPlaces:
    """A client of its own within this process: its connections rotate together, and with no others."""

    def __init__(self, url: str | Sequence[str], **options: Any) -> None:
        if not is_directory(url):
            raise ConfigError("Brokers are chosen with the URL of a directory: fairlead+directory://host/CLUSTER.")
        self._url = url
        self._options = {"client": secrets.token_hex(8), **options}
        self._held: Places | None = None

    async def __aenter__(self) -> Self:
        target = parse_directory(self._url, self._options.get("tunnel"))
        said = {name: value for name, value in self._options.items() if name in Options.__struct_fields__}
        tls = _for_directory(target, self._options.get("tls"), self._options.get("directory_tls"))
        user, password = self._options.get("user") or "", self._options.get("password") or ""
        self._held = places_of(target, read_options(said, target.options), tls, user=user)
        self._held.acquire(user, password)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Its connections are closed by whoever opened them."""
        held, self._held = self._held, None
        if held is not None:
            held.release()
            forget(held)
            await held.settled()

    @property
    def places(self) -> Places:
        if self._held is None:
            raise LocalProtocolError("Use `async with fairlead.open_places(…) as places`.")
        return self._held

    def connect(self, app: str, **options: Any) -> Connection:
        """A connection of an application, to be awaited or used with `async with`."""
        from fairlead.client.aio.connection import Connection

        return Connection(self._url, name=app, **{**self._options, **options})

    def status(self) -> dict[str, Any]:
        return self.places.facts()


def open_places(
    url: str | Sequence[str],
    *,
    user: str | None = None,
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    **options: Unpack[PlacingOptions],
) -> OpenPlaces:
    """A client that chooses brokers, to be used with `async with`; login and options are those of its connections."""
    return OpenPlaces(url, user=user, password=password, tls=tls, **options)
