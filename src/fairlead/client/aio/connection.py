"""A connection to Fairlead: the names applications use.

::

    async with fairlead.connect("fairlead://localhost", name="pricing-ui") as connection:
        async with connection.subscribe("prices.>") as prices:
            await connection.publish("prices.eur.usd", b"1.0843")
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack, overload

from fairlead.client.aio.access import Access, File, TokenSource
from fairlead.client.aio.app_connection import ApplicationConnection, is_application, unused
from fairlead.client.aio.app_message import AppMessage
from fairlead.client.aio.applications import WhenBusy
from fairlead.client.aio.asking import Ask, FanOut, Reply, ReplyStream
from fairlead.client.aio.carrier import Carrier
from fairlead.client.aio.durable import DurableConnection
from fairlead.client.aio.feed_connection import FeedConnection
from fairlead.client.aio.inbox import Inbox
from fairlead.client.aio.placed import CONNECT_S, FAREWELL_S
from fairlead.client.aio.serving import Handler, Registration, RequestQueue, Responder, as_bytes
from fairlead.client.aio.subscription import Subscription
from fairlead.client.aio.talks import Acceptor, Conversation
from fairlead.client.aio.tracing import Switch, opened
from fairlead.client.aio.waiting import agreed
from fairlead.client.durable.content import Value
from fairlead.client.durable.receipt import Receipt
from fairlead.client.effects import Event
from fairlead.client.identity import hello
from fairlead.client.registrations import TOPIC_HEADER
from fairlead.client.session import Session
from fairlead.client.target import parse
from fairlead.directory.placing.options import PlacingOptions
from fairlead.errors import BadParameter, BadTopic, LocalProtocolError
from fairlead.message import Message
from fairlead.topics import validate_topic
from fairlead.tunnel.options import TunnelOptions
from fairlead.wire.handshake import is_name
from fairlead.wire.headers import application_pairs, encode_headers
from fairlead.wire.kinds import (
    FLAG_LAST,
    FLAG_NAMED,
    KIND_FANOUT,
    KIND_REQUEST,
    TOPIC_SEPARATOR,
)

if TYPE_CHECKING:
    from fairlead.sealing import Keyring

__all__ = ["Connection", "connect"]

Body: TypeAlias = bytes | str
Headers: TypeAlias = Mapping[str, bytes | str]
AddressOf: TypeAlias = int | str
"""A client: its uid, or its "type/instance"."""

NOT_OPEN = "The connection is not open: await it, or use `async with`."
TUNNEL_KEEP_ALIVE_S = 60.0
CLIENT_S = 1.0
APPLICATION_S = 30.0
"""How long to wait for an answer."""
TURN_BYTES = 65_536
"""A program that publishes without pause lets others run after so many bytes."""
MANY = 4096
TOPICS_REMEMBERED_MAX = 10_000


class Connection(ApplicationConnection, DurableConnection, FeedConnection):
    """One client of a server. Made by `connect`; open after `await` or inside `async with`."""

    def __init__(
        self,
        url: str | Sequence[str] = "fairlead://localhost",
        *,
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - the protocol's word
        org: str = "",
        user: str | None = None,
        password: str | None = None,
        token: TokenSource | None = None,
        certificate: File | None = None,
        key: File | None = None,
        ca: File | None = None,
        tls: ssl.SSLContext | None = None,
        tunnel: TunnelOptions | None = None,
        keep_alive_s: float = 10,
        credit: int = 65_536,
        reconnect: bool = True,
        reconnect_limit_s: float = 60,
        connect_timeout_s: float | None = 0,
        when_busy: WhenBusy = "refuse",
        keys: Keyring | None = None,
        sealed_only: bool = False,
        tracing: Switch = "auto",
        **placing: Unpack[PlacingOptions],
    ) -> None:
        self._tracing = opened(tracing)
        self._speak(when_busy, keys, sealed_only)
        access = Access(token=token, certificate=certificate, key=key, ca=ca, tls=tls)
        tls = access.tls
        placed = self._plan(url, name, tunnel, tls, connect_timeout_s, placing)
        self._target = target = placed or parse(url, tunnel)
        if target.tunnel is not None:
            # A tunnel outlives what breaks a connection, and may ask only now and then (TUN-100, TUN-30).
            keep_alive_s = max(keep_alive_s, TUNNEL_KEEP_ALIVE_S + 3 * target.tunnel.pull_period_s)
        self._session = Session(
            hello(
                name=name if placed is None else None,  # one application has many connections
                type=type or (self.app if placed and is_name(self.app) else None),
                org=org,
                user=self._target.user if user is None else user,
                password=self._target.password if password is None else password,
                credit=credit,
                keep_alive_s=keep_alive_s,
            )
        )
        self._tls = tls if placed is None or target.tls else None
        if self._tls is None and target.tls and target.tunnel is None:
            self._tls = ssl.create_default_context()
        self._access = access
        self._connect_timeout_s = connect_timeout_s or CONNECT_S
        self._reconnect_limit_s = reconnect_limit_s if reconnect else 0.0
        self._durable_limit_s = reconnect_limit_s  # the line may be whole while there is no message manager
        self._opened: Carrier | None = None
        self._listeners: list[Callable[[Event], None]] = [self._count_interruptions]
        self._topics: dict[str | tuple[str, ...], bytes] = {}
        self._streams = set()
        self._inbox: Inbox

    # Its life.

    def __await__(self) -> Generator[object, None, Self]:
        return self._open().__await__()

    async def _open(self) -> Self:
        if self._opened is None:
            self._opened = carrier = Carrier(
                self._session,
                self._target,
                self._tls,
                connect_timeout_s=self._connect_timeout_s,
                reconnect_limit_s=self._reconnect_limit_s,
                keeper=self._keeper_kind,
                access=self._access,
            )
            carrier.listeners = self._listeners
            carrier.tracing = self._tracing
            self._session.inbox = self._inbox = Inbox(carrier)
            self._equip(carrier)
            try:
                await carrier.open()
            except BaseException:
                await self._unplace(FAREWELL_S)
                raise
            self._count_line()
        return self

    async def close(self) -> None:
        """Say goodbye; everything sent before it is taken in by the server."""
        if self._opened is not None:
            await self._close_streams()
            if self._opened.ended is None:
                await self._close_durable()
            await self._opened.close()
            await self._unplace()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def _carrier(self) -> Carrier:
        if self._opened is None:
            raise LocalProtocolError(NOT_OPEN)
        return self._opened

    @property
    def closed(self) -> bool:
        """Is it closed for good?"""
        return self._opened is not None and self._opened.ended is not None

    @property
    def connected(self) -> bool:
        """Is there a live connection at this moment?"""
        return self._session.is_live

    @property
    def uid(self) -> int:
        """The number by which others address this client; another one after a reconnect, the same after a move."""
        return self._session.uid

    @property
    def type(self) -> str:
        return self._session.hello.type

    @property
    def instance(self) -> str:
        return self._session.hello.instance

    @property
    def address(self) -> str:
        """`type/instance`: the name by which others address this client, also after a reconnect."""
        return f"{self.type}/{self.instance}"

    @property
    def server(self) -> str:
        """The server's id."""
        link = self._session.link
        return link.confirm.server if link is not None else ""

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Hear of `lost`, `reconnected`, `moved`, `undelivered` and `closed`."""
        self._listeners.append(callback)

    def forget_listener(self, callback: Callable[[Event], None]) -> None:
        """Tell this one no more."""
        self._listeners.remove(callback)

    def _count_interruptions(self, event: Event) -> None:
        if event.name == "lost":
            for entry in self._session.dispatch.entries.values():
                if isinstance(entry.sink, Subscription):
                    entry.sink.interruptions += 1

    # Broadcast.

    def subscribe(self, pattern: str, *, no_local: bool = False, buffer: int = 65_536) -> Subscription:
        """Messages of all topics the pattern stands for; `no_local` leaves out what this client publishes itself.

        While more than `buffer` messages wait here, the server is given no further credit.
        """
        return Subscription(self._carrier, pattern, no_local=no_local, buffer=buffer)

    async def publish(
        self,
        topic: str | Sequence[str],
        body: Body,
        *,
        headers: Headers | None = None,
        reply_to: str | None = None,
    ) -> None:
        """Send to all subscribers of a topic, or of several; fire and forget."""
        carrier = self._opened or self._carrier
        if carrier.brake:
            await carrier.room()
        section = self._section(headers, reply_to) if headers or reply_to else b""
        wire_topic = self._topics.get(topic) or self._topic(topic) if isinstance(topic, str) else self._topic(topic)
        content = body if isinstance(body, bytes) else as_bytes(body)
        if self._tracing is not None:
            name = topic if isinstance(topic, str) else topic[0]
            with self._tracing.sending("publish", name, len(content), headers) as spanned:
                section = spanned.section(section)
        session = self._session
        session.publish(wire_topic, section, content)
        if session.out_bytes > TURN_BYTES:
            carrier.flush()
            await asyncio.sleep(0)
        else:
            carrier.pushed()

    async def publish_many(self, topic: str, bodies: Iterable[Body], headers: Headers | None = None) -> None:
        """Publish each of `bodies` to one topic: the fast way for many."""
        carrier, session = self._carrier, self._session
        wire_topic = self._topic(topic)
        section = self._section(headers, None) if headers else b""
        everything = [body if isinstance(body, bytes) else as_bytes(body) for body in bodies]
        if self._tracing is not None and everything:
            with self._tracing.sending("publish", topic, -1, headers, len(everything)) as spanned:
                section = spanned.section(section)
        for batch in _slices(everything):
            if carrier.brake:
                await carrier.room()
            session.publish_many(wire_topic, section, batch)
            if session.out_bytes > TURN_BYTES:
                carrier.flush()
                await asyncio.sleep(0)
        carrier.pushed()

    async def flush(self) -> None:
        """Wait until the server has taken in everything said so far."""
        await self._carrier.room()
        answer, wait = agreed(self._carrier)
        self._session.ping(answer)
        await wait

    # Request and response.

    async def request(
        self,
        topic: str,
        body: Body = b"",
        *,
        timeout: float | None = 1.0,
        headers: Headers | None = None,
        to: AddressOf | None = None,
    ) -> Message:
        """Ask one of those who serve the topic (or `to`), and wait for the response.

        Of several responses this is the first; the others are given up (see `request_stream`).
        """
        if self._tracing is None:
            return await self._request(topic, body, timeout, headers, to)
        with self._tracing.asking("request", topic or str(to)) as spanned:
            message = await self._request(topic, body, timeout, spanned.headers(headers), to)
            spanned.answered(len(body), len(message.body))
            return message

    async def _request(
        self, topic: str, body: Body, timeout: float | None, headers: Headers | None, to: AddressOf | None
    ) -> Message:
        carrier = self._opened or self._carrier
        session, loop = self._session, carrier.loop
        reply = Reply(loop.create_future(), inf if timeout is None else loop.time() + timeout)
        if carrier.brake:
            await carrier.room(reply.deadline_s)
        content = body if isinstance(body, bytes) else as_bytes(body)
        if to is None and headers is None:
            wire_topic = self._topics.get(topic) or self._topic(topic)
            correlation = session.request(reply, KIND_REQUEST, 0, 0, wire_topic, b"", content)
        else:
            flags, peer, wire_topic, section = self._addressed(to, topic, headers)
            correlation = session.request(reply, KIND_REQUEST, flags, peer, wire_topic, section, content)
        if reply.deadline_s < carrier.deadline_at:
            carrier.watch()
        carrier.pushed()
        try:
            message = await reply.future
        except asyncio.CancelledError:
            session.give_up(correlation)
            carrier.pushed()
            raise
        if not message.flags & FLAG_LAST:
            session.cancel(correlation)
            carrier.pushed()
        return message

    def request_stream(
        self,
        topic: str,
        body: Body = b"",
        *,
        timeout: float | None = 1.0,
        headers: Headers | None = None,
        to: AddressOf | None = None,
    ) -> ReplyStream:
        """Ask one receiver, and iterate over its responses until the last."""
        spanned = None if self._tracing is None else self._tracing.asking("request", topic or str(to))
        if spanned is not None:
            headers = spanned.headers(headers)
        flags, peer, wire_topic, section = self._addressed(to, topic, headers)
        ask = Ask(KIND_REQUEST, flags, peer, wire_topic, section, as_bytes(body))
        return ReplyStream(self._carrier, ask, timeout, spanned)

    def request_all(
        self,
        topic: str = "",
        body: Body = b"",
        *,
        timeout: float | None = 1.0,
        type: str | None = None,  # noqa: A002
        org: str | None = None,
        headers: Headers | None = None,
    ) -> FanOut:
        """Ask everybody who listens on the topic, or all of a program type or organisation, or both."""
        if not topic and type is None and org is None:
            raise BadTopic("A fan-out request needs a topic, a type or an organisation.")
        spanned = None if self._tracing is None else self._tracing.asking("request", topic or type or org or "")
        if spanned is not None:
            headers = spanned.headers(headers)
        pairs: list[tuple[str, bytes | str]] = [] if type is None else [(":type", type)]
        pairs += [] if org is None else [(":org", org)]
        pairs += application_pairs(headers) if headers else []
        wire_topic = self._topic(topic) if topic else b""
        ask = Ask(KIND_FANOUT, 0, 0, wire_topic, encode_headers(pairs), as_bytes(body))
        return FanOut(self._carrier, ask, timeout, spanned)

    async def respond(self, topic: str, handler: Handler) -> Registration:
        """Serve requests for a topic with `handler(request)`: a function, a coroutine function or a generator."""
        validate_topic(topic)
        responder = Responder(self._carrier, topic, handler)
        await responder.start()
        return responder

    def serve(self, topic: str) -> RequestQueue:
        """Serve requests for a topic from a loop: `async for request in requests: await request.reply(…)`."""
        validate_topic(topic)
        return RequestQueue(self._carrier, topic)

    # Conversations.

    def converse(self, topic: str, *, to: AddressOf | None = None) -> Conversation:
        """Talk to one of those who accept conversations on the topic, and always to the same one."""
        flags, peer, wire_topic, section = self._addressed(to, topic, None)
        return Conversation(self._carrier, topic=topic, address=(flags, peer, wire_topic), headers=section)

    def accept(self, topic: str = "") -> Acceptor:
        """Conversations others begin on the topic; without a topic, those addressed to this client itself."""
        if topic:
            validate_topic(topic)
        return Acceptor(self._carrier, topic)

    # Between two applications.

    async def send_to(
        self,
        address: AddressOf,
        body: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - the word of the message model
        sealed: bool | str = False,
        timeout: float | None = None,
    ) -> Receipt | None:
        """To an application, wherever it is connected: `send_to("AZ", …)`; the receipt comes when it is stored for it.

        Undeliverable: nobody knows the name. The options are those of `Queue.send`; `sealed=True` closes the body for
        everybody but the recipient (docs/sealing.md), a text names a shared key.

        A uid or `type/instance` means one client of this server: one-way, not stored, no receipt; if there is none the
        event `undelivered` tells, later.
        """
        options = {"ttl": ttl, "priority": priority, "key": key, "type": type, "sealed": sealed, "timeout": timeout}
        if is_application(address):
            given: Mapping[str, Value] | None = headers
            return await self._applications.send(
                str(address or ""), body, headers=given, ttl=ttl, priority=priority, key=key, type=type, sealed=sealed,
                timeout=timeout,
            )  # fmt: skip
        if left := unused(options):
            raise BadParameter(f"A message to a client, and not to an application, has no {left}.")
        if self._carrier.brake:
            await self._carrier.room()
        flags, peer, name, section = self._addressed(address, "", headers)
        if self._tracing is not None:
            with self._tracing.sending("send", str(address), len(body), headers) as spanned:
                section = spanned.section(section)
        self._session.send_to(flags, peer, name, section, as_bytes(body))
        self._carrier.pushed()
        return None

    def inbox(self) -> Inbox:
        """What others sent to this client with `send_to`."""
        if self._opened is None:
            raise LocalProtocolError(NOT_OPEN)
        self._inbox.open()
        return self._inbox

    @overload
    async def call(
        self, address: int, body: Body = b"", *, timeout: float | None = ..., headers: Headers | None = None
    ) -> Message: ...

    @overload
    async def call(
        self,
        address: str,
        body: Any = b"",
        *,
        timeout: float | None = ...,
        headers: Mapping[str, Any] | None = None,
        priority: int | None = None,
        type: str | None = None,
        sealed: bool | str = False,
    ) -> Any: ...

    async def call(
        self,
        address: AddressOf,
        body: Any = b"",
        *,
        timeout: float | None = -1.0,
        headers: Mapping[str, Any] | None = None,
        priority: int | None = None,
        type: str | None = None,  # noqa: A002
        sealed: bool | str = False,
    ) -> Message | AppMessage:
        """Ask an application, and wait for the answer of one of its connections, 30 s unless said otherwise.

        A uid or `type/instance` means one client of this server, which answers with `respond_direct`, in 1 s.
        """
        if is_application(address):
            limit_s = APPLICATION_S if timeout == -1.0 else timeout
            return await self._applications.call(
                str(address or ""), body, headers=headers, priority=priority, type=type, sealed=sealed, timeout=limit_s
            )
        if left := unused({"priority": priority, "type": type, "sealed": sealed}):
            raise BadParameter(f"A request to a client, and not to an application, has no {left}.")
        limit_s = CLIENT_S if timeout == -1.0 else timeout
        return await self.request("", body, timeout=limit_s, headers=headers, to=address)

    async def respond_direct(self, handler: Handler) -> Registration:
        """Serve what is addressed to this client itself, by uid or name."""
        responder = Responder(self._carrier, "", handler)
        await responder.start()
        return responder

    # Inside.

    def _topic(self, topic: str | Sequence[str]) -> bytes:
        """Checked and encoded, once per topic."""
        key = topic if isinstance(topic, str) else tuple(topic)
        known = self._topics.get(key)
        if known is None:
            topics = [key] if isinstance(key, str) else key
            if not topics:
                raise BadTopic("There is no topic to publish to.")
            for one in topics:
                validate_topic(one)
            if len(self._topics) >= TOPICS_REMEMBERED_MAX:
                self._topics.clear()
            known = self._topics[key] = TOPIC_SEPARATOR.join(topics).encode()
        return known

    def _section(self, headers: Headers | None, reply_to: str | None) -> bytes:
        pairs: list[tuple[str, bytes | str]] = []
        if reply_to is not None:
            validate_topic(reply_to)
            pairs.append((":reply", reply_to))
        if headers:
            pairs += application_pairs(headers)
        return encode_headers(pairs)

    def _addressed(self, to: AddressOf | None, topic: str, headers: Headers | None) -> tuple[int, int, bytes, bytes]:
        """Flags, peer, topic and headers of a message to a client, or to whoever serves the topic."""
        pairs = application_pairs(headers) if headers else []
        if to is None:
            return 0, 0, self._topic(topic), encode_headers(pairs)
        wire_topic = self._topic(topic) if topic else b""
        if isinstance(to, int):
            return 0, to, wire_topic, encode_headers(pairs)
        kind, slash, instance = to.partition("/")
        if not (kind and slash and instance):
            raise LocalProtocolError(f"{to!r} is neither a uid nor `type/instance`.")
        if topic:
            pairs.insert(0, (TOPIC_HEADER, topic))
        return FLAG_NAMED, 0, to.encode(), encode_headers(pairs)


def connect(
    url: str | Sequence[str] = "fairlead://localhost",
    *,
    name: str | None = None,
    type: str | None = None,  # noqa: A002
    org: str = "",
    user: str | None = None,
    password: str | None = None,
    token: TokenSource | None = None,
    certificate: File | None = None,
    key: File | None = None,
    ca: File | None = None,
    tls: ssl.SSLContext | None = None,
    tunnel: TunnelOptions | None = None,
    keep_alive_s: float = 10,
    credit: int = 65_536,
    reconnect: bool = True,
    reconnect_limit_s: float = 60,
    connect_timeout_s: float | None = 0,
    when_busy: WhenBusy = "refuse",
    keys: Keyring | None = None,
    sealed_only: bool = False,
    tracing: Switch = "auto",
    **placing: Unpack[PlacingOptions],
) -> Connection:
    """A connection, to be awaited or used with `async with`.

    A URL may name several hosts, `fairlead://a:7400,b:7400`, or there may be several URLs: one is picked at random, and
    another one when it fails. `https://host/tunnel/NAME` goes through a gateway by HTTP, where nothing else gets
    through; `tunnel` says how (docs/tunnel.md), and a server that is silent then has a minute more.
    `type` is the program's, `name` this instance of it; with a name alone, the instance is made from it and is
    unique. `credit` is how many unread messages the server may send ahead. A server that is silent for `keep_alive_s`
    is asked for a sign of life, and lost after twice that. After a loss the connection is made again, with growing,
    randomised pauses, for up to `reconnect_limit_s`; then whoever waits gets ConnectionLost. `connect_timeout_s` 0 is
    the usual time.

    Who it is (docs/security.md): `user` and `password`; or a `token`, a text or a function that gives a fresh one for
    every connection; or a `certificate` with its `key`. `ca` is whom to trust instead of whom the system does; `tls` is
    an SSL context in place of these three files.

    `fairlead+directory://d1,d2/CLUSTER` asks for any broker of a cluster that a directory knows (docs/directory.md);
    `name` is the application's then, the other options are in `directory.placing.options`, and a connection is tried
    for for 60 s, or for ever if `connect_timeout_s` is None. With the URL of a broker, `application` registers there.

    `tracing`: "auto" makes spans where the program has set a tracer provider of OpenTelemetry (docs/tracing.md).
    """
    return Connection(
        url,
        name=name,
        type=type,
        org=org,
        user=user,
        password=password,
        token=token,
        certificate=certificate,
        key=key,
        ca=ca,
        tls=tls,
        tunnel=tunnel,
        keep_alive_s=keep_alive_s,
        credit=credit,
        reconnect=reconnect,
        reconnect_limit_s=reconnect_limit_s,
        connect_timeout_s=connect_timeout_s,
        when_busy=when_busy,
        keys=keys,
        sealed_only=sealed_only,
        tracing=tracing,
        **placing,
    )


def _slices(bodies: list[bytes]) -> Iterable[list[bytes]]:
    """Portions of at most MANY bodies and about a MiB."""
    at, size = 0, 0
    for index, body in enumerate(bodies):
        size += len(body)
        if size > 1 << 20 or index - at >= MANY:
            yield bodies[at : index + 1]
            at, size = index + 1, 0
    if at < len(bodies):
        yield bodies[at:]
