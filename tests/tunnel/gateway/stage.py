"""A Gateway on a stage: a clock one can turn, brokers and clients who say what they are told, all written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from struct import Struct

from fairlead.tunnel.gateway import Answer, CloseLink, CloseStream, Gateway, Limits, Log, Reply, ToLink, ToStream
from fairlead.tunnel.link_init import LinkInit, LinkInitAck, LinkTunnel
from fairlead.tunnel.packets import Kind, Packet, encode, split
from fairlead.tunnel.rules import Option

SECRET = b"the secret of the links"
OPTION = Struct(">ii")


def packets_of(raw: bytes) -> list[Packet]:
    body = split(raw, 1 << 20)
    assert not body.damaged
    assert not body.fault
    return body.packets


def code_of(packet: Packet) -> int:
    assert packet.kind == Kind.CONN_ABORT
    return int.from_bytes(packet.payload[:2], "big")


def kinds(packets: list[Packet]) -> list[int]:
    return [packet.kind for packet in packets]


def option(connection_id: int, sequence: int, which: Option, value: int) -> bytes:
    return encode(Kind.CONN_OPTION, connection_id, sequence, payload=OPTION.pack(which, value))


class Stage:
    def __init__(
        self,
        limits: Limits | None = None,
        *,
        secret: bytes | None = SECRET,
        allow_v1: bool = False,
        servers: tuple[str, ...] = (),
        seed: int = 1,
    ) -> None:
        self.now_s = 1000.0
        self.limits = limits or Limits()
        self._secret, self._allow_v1, self._servers, self._seed = secret, allow_v1, servers, seed
        self.gateway = self._make()
        self.keys = count(1)
        self.brokers: dict[int, Broker] = {}
        self.answers: dict[int, Reply] = {}
        self.frames: dict[int, list[Packet]] = {}
        self.closed_streams: dict[int, str] = {}
        self.log: list[str] = []

    def _make(self) -> Gateway:
        return Gateway(
            self.limits,
            self.now_s,
            instance="here",
            secret=self._secret,
            allow_v1=self._allow_v1,
            random_bytes=Random(self._seed).randbytes,
            servers=self._servers,
        )

    def restart(self) -> None:
        """Another gateway, which knows nothing, in its place."""
        self.gateway = self._make()
        for broker in self.brokers.values():
            broker.closed = "the gateway went away"
        self.brokers.clear()

    def settle(self) -> None:
        for effect in self.gateway.effects():
            match effect:
                case ToLink(key, packets):
                    self.brokers[key].got += packets_of(b"".join(packets))
                case CloseLink(key, reason):
                    self.brokers.pop(key).closed = reason
                case Answer(key, reply):
                    assert key not in self.answers, "a pull is answered once"
                    self.answers[key] = reply
                case ToStream(key, packets):
                    assert key not in self.closed_streams
                    self.frames.setdefault(key, []).extend(packets_of(b"".join(packets)))
                case CloseStream(key, reason):
                    self.closed_streams[key] = reason
                case Log(text):
                    self.log.append(text)

    def wait(self, seconds: float) -> None:
        """Turns the clock on, and calls the gateway whenever it asked for it."""
        end_s = self.now_s + seconds
        for _ in range(1_000_000):
            at_s = self.gateway.next_at()
            if at_s > end_s:
                break
            self.now_s = max(self.now_s, at_s)
            self.gateway.on_time(self.now_s)
            self.settle()
        else:
            raise AssertionError("the gateway wants to be called again and again")
        self.now_s = end_s

    def dial(self) -> Broker:
        broker = Broker(self, next(self.keys))
        self.brokers[broker.key] = broker
        self.gateway.link(broker.key, self.now_s)
        self.settle()
        return broker

    def broker(self, name: str = "b1", *tunnels: LinkTunnel, **said: object) -> Broker:
        """One that is linked."""
        broker = self.dial()
        broker.introduce(name, *tunnels, **said)  # type: ignore[arg-type]
        return broker

    def connect(self, name: str = "b1", *, window: int = 100, address: str = "10.0.0.1", version: int = 2) -> Reply:
        body = encode(Kind.CONN_INIT, window=window, version=version)
        reply = self.gateway.connect(name, body, address, self.now_s)
        self.settle()
        return reply

    def client(self, name: str = "b1", *, window: int = 100, address: str = "10.0.0.1", version: int = 2) -> Client:
        reply = self.connect(name, window=window, address=address, version=version)
        assert reply.status == 200, reply
        (answer,) = packets_of(reply.body)
        assert answer.kind == Kind.CONN_INIT
        return Client(self, name, answer.connection_id, answer.payload.hex(), answer.version)

    def tunnel(self, name: str = "b1", **asked: object) -> Client:
        """One that is set up: CONN_INIT_ACK was fetched."""
        client = self.client(name, **asked)  # type: ignore[arg-type]
        broker = next(broker for broker in self.brokers.values() if broker.name == name)
        broker.send(encode(Kind.CONN_INIT_ACK, client.id, window=50, version=client.version))
        assert kinds(client.fetch()) == [Kind.CONN_INIT_ACK]
        return client


@dataclass
class Broker:
    stage: Stage
    key: int
    name: str = ""
    got: list[Packet] = field(default_factory=list)
    closed: str = ""

    def introduce(
        self,
        name: str,
        *tunnels: LinkTunnel,
        secret: bytes = SECRET,
        start_id: bytes = b"0123456789abcdef",
        version: int = 2,
    ) -> None:
        self.name = name
        said = LinkInit(name, secret, start_id, tunnels)
        self.send(encode(Kind.LINK_INIT, payload=said.encode(version), version=version))

    def send(self, *packets: bytes) -> None:
        self.stage.gateway.on_link(self.key, packets_of(b"".join(packets)), self.stage.now_s)
        self.stage.settle()

    def take(self) -> list[Packet]:
        got, self.got = self.got, []
        return got

    @property
    def refused(self) -> list[int]:
        """What LINK_INIT_ACK says."""
        ack = next(packet for packet in self.got if packet.kind == Kind.LINK_INIT_ACK)
        return list(LinkInitAck.decode(ack.payload).refused)

    def lose(self) -> None:
        self.stage.brokers.pop(self.key, None)
        self.stage.gateway.link_lost(self.key, self.stage.now_s)
        self.stage.settle()


@dataclass
class Client:
    stage: Stage
    name: str
    id: int
    token: str
    version: int = 2

    def push(self, *packets: bytes, token: str | None = None, url_id: int | None = None) -> Reply:
        token = self.token if token is None else token
        gateway, now_s = self.stage.gateway, self.stage.now_s
        reply = gateway.push(self.name, url_id or self.id, token, b"".join(packets), now_s)
        self.stage.settle()
        return reply

    def pull(self, hold_s: float = 0.0, *, token: str | None = None) -> Reply | int:
        """A number: it is held."""
        key = next(self.stage.keys)
        token = self.token if token is None else token
        reply = self.stage.gateway.pull(self.name, self.id, token, hold_s, key, self.stage.now_s)
        self.stage.settle()
        return key if reply is None else reply

    def fetch(self) -> list[Packet]:
        reply = self.pull()
        assert isinstance(reply, Reply)
        assert reply.status == 200
        return packets_of(reply.body)

    def status(self, hold_s: float = 0.0, *, token: str | None = None) -> int:
        reply = self.pull(hold_s, token=token)
        return reply.status if isinstance(reply, Reply) else 0

    def stream(self) -> Reply | int:
        key = next(self.stage.keys)
        reply = self.stage.gateway.stream(self.name, self.id, self.token, key, self.stage.now_s)
        self.stage.settle()
        return key if reply is None else reply

    def frame(self, key: int, *packets: bytes) -> None:
        self.stage.gateway.on_stream(key, b"".join(packets), self.stage.now_s)
        self.stage.settle()

    def data(self, sequence: int, payload: bytes = b"x") -> bytes:
        return encode(Kind.DATA, self.id, sequence, payload=payload, version=self.version)

    def ack(self, sequence: int, window: int = 10) -> bytes:
        return encode(Kind.ACK, self.id, sequence, window, version=self.version)

    def close(self, sequence: int) -> bytes:
        return encode(Kind.CONN_CLOSE, self.id, sequence, version=self.version)
