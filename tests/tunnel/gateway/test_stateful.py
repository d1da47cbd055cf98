"""Anything in any order: clients connect, push, pull and vanish; links come, go, are replaced and list what they like.

Every data packet says whose it is, so whoever gets one can tell whether it was meant for him.
"""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead.tunnel.gateway import Limits, Reply
from fairlead.tunnel.gateway.tokens import verifier_of
from fairlead.tunnel.link_init import LinkTunnel
from fairlead.tunnel.packets import Kind, Packet, encode
from fairlead.tunnel.rules import Option
from tests.tunnel.gateway.stage import Broker, Client, Stage, option, packets_of
from tests.tunnel.gateway.test_growth import sizes

NAMES = ("b1", "b2")
LIMITS = Limits(
    tunnels_max=6,
    tunnels_per_address=4,
    buffered_bytes_max=4000,
    tunnel_bytes_max=1500,
    tunnel_packets_max=8,
    ended_max=8,
    opens_per_s=1e6,
)

names = st.sampled_from(NAMES)
picks = st.integers(0, 1000)
sequences = st.sampled_from([1, 2, 3, 4, 5, 2**32 - 1, 0])


class GatewayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(LIMITS)
        small = count(1)
        draw = self.stage.gateway._requests._random_bytes
        self.stage.gateway._requests._random_bytes = lambda size: (
            (next(small) % 9).to_bytes(4, "big") if size == 4 else draw(size)
        )
        self.clients: list[Client] = []
        self.held: dict[int, Client] = {}
        self.streams: dict[int, Client] = {}
        self.serial = count()

    # -- helpers ------------------------------------------------------------------------------------------------------

    def client(self, pick: int) -> Client:
        return self.clients[pick % len(self.clients)]

    def broker(self, pick: int) -> Broker:
        return list(self.stage.brokers.values())[pick % len(self.stage.brokers)]

    def data(self, way: str, client: Client, sequence: int) -> bytes:
        text = f"{way} {client.name} {client.id} {client.token[:8]} {next(self.serial)}"
        return encode(Kind.DATA, client.id, sequence, payload=text.encode() * 3)

    def check_packets(self, packets: list[Packet], way: str, name: str, client: Client | None) -> None:
        for packet in packets:
            if client is not None:
                assert packet.connection_id == client.id
            if packet.kind == Kind.DATA:
                said_way, said_name, number, token, *_ = packet.payload.decode().split(" ")
                assert (said_way, said_name, number) == (way, name, str(packet.connection_id))
                if client is not None:
                    assert token == client.token[:8], "somebody else had this number before"

    def check_reply(self, client: Client, reply: Reply) -> None:
        if reply.status == 200:
            self.check_packets(packets_of(reply.body), "down", client.name, client)
        elif reply.status == 410:
            assert [packet.kind for packet in packets_of(reply.body)] == [Kind.CONN_ABORT]
        else:
            assert reply.body == b""

    # -- links --------------------------------------------------------------------------------------------------------

    @rule(name=names, start=st.sampled_from([b"A" * 16, b"B" * 16]), secret=st.booleans(), chosen=st.sets(picks))
    def dial(self, name: str, start: bytes, secret: bool, chosen: set[int]) -> None:
        listed = {self.client(pick).id: self.client(pick) for pick in chosen} if self.clients else {}
        tunnels = [
            LinkTunnel(one.id, 0, 0, verifier_of(bytes.fromhex(one.token)))
            for one in listed.values()
            if one.name == name
        ]
        before = {one.name for one in self.stage.brokers.values()}
        broker = self.stage.broker(
            name, *tunnels, start_id=start, secret=b"the secret of the links" if secret else b"?"
        )
        if not secret:
            assert broker.closed
            assert {one.name for one in self.stage.brokers.values()} == before

    @precondition(lambda self: self.stage.brokers)
    @rule(pick=picks)
    def cut(self, pick: int) -> None:
        self.broker(pick).lose()

    @precondition(lambda self: self.stage.brokers and self.clients)
    @rule(pick=picks, which=picks, sequence=sequences, kind=st.sampled_from(sorted({*Kind} - {Kind.LINK_INIT})))
    def broker_sends(self, pick: int, which: int, sequence: int, kind: int) -> None:
        """To a tunnel of its own, or of nobody it knows."""
        broker, client = self.broker(pick), self.client(which)
        mine = Client(self.stage, broker.name, client.id, client.token)
        if client.name == broker.name and kind == Kind.DATA:
            broker.send(self.data("down", client, sequence))
        elif kind == Kind.CONN_OPTION:
            broker.send(option(mine.id, sequence, Option.INACTIVITY, 30))
        elif kind != Kind.DATA:
            broker.send(encode(kind, mine.id, sequence, 5, payload=b"\0\1" if kind == Kind.CONN_ABORT else b""))

    @precondition(lambda self: self.stage.brokers)
    @rule(pick=picks)
    def second_link_init(self, pick: int) -> None:
        broker = self.broker(pick)
        broker.introduce(broker.name)
        assert broker.closed

    # -- clients ------------------------------------------------------------------------------------------------------

    @rule(name=names, address=st.sampled_from(["10.0.0.1", "10.0.0.2"]), window=st.sampled_from([1, 4, 65535]))
    def connect(self, name: str, address: str, window: int) -> None:
        reply = self.stage.connect(name, address=address, window=window)
        if reply.status == 200:
            (answer,) = packets_of(reply.body)
            new = Client(self.stage, name, answer.connection_id, answer.payload.hex())
            self.clients.append(new)
            broker = next(one for one in self.stage.brokers.values() if one.name == name)
            broker.send(encode(Kind.CONN_INIT_ACK, new.id, window=9))
        else:
            assert reply.status in (404, 429, 503)

    @precondition(lambda self: self.clients)
    @rule(pick=picks, sequence=sequences, close=st.booleans(), ack=sequences)
    def push(self, pick: int, sequence: int, close: bool, ack: int) -> None:
        client = self.client(pick)
        last = client.close(sequence) if close else self.data("up", client, sequence)
        self.check_reply(client, client.push(client.ack(ack), last))

    @precondition(lambda self: self.clients)
    @rule(pick=picks, hold_s=st.sampled_from([0.0, 10.0]))
    def pull(self, pick: int, hold_s: float) -> None:
        client = self.client(pick)
        reply = client.pull(hold_s)
        if isinstance(reply, Reply):
            self.check_reply(client, reply)
        else:
            self.held[reply] = client

    @precondition(lambda self: self.clients)
    @rule(pick=picks)
    def stream(self, pick: int) -> None:
        client = self.client(pick)
        reply = client.stream()
        if isinstance(reply, Reply):
            self.check_reply(client, reply)
        else:
            self.streams[reply] = client

    @precondition(lambda self: self.streams)
    @rule(pick=picks, sequence=sequences, ping=st.booleans())
    def frame(self, pick: int, sequence: int, ping: bool) -> None:
        key = list(self.streams)[pick % len(self.streams)]
        client = self.streams[key]
        client.frame(key, encode(Kind.PING, client.id) if ping else self.data("up", client, sequence))

    @precondition(lambda self: self.held or self.streams)
    @rule(pick=picks)
    def vanish(self, pick: int) -> None:
        keys = [*self.held, *self.streams]
        key = keys[pick % len(keys)]
        self.held.pop(key, None)
        self.streams.pop(key, None)
        self.stage.gateway.forget(key, self.stage.now_s)
        self.stage.settle()

    @precondition(lambda self: self.clients)
    @rule(pick=picks, other=picks, sequence=sequences)
    def trespass(self, pick: int, other: int, sequence: int) -> None:
        """Another's token, and another's packet behind one's own."""
        victim, thief = self.client(pick), self.client(other)
        if victim.token == thief.token:
            return
        found = self.stage.gateway._hub.table.find(victim.name, victim.id)
        is_thiefs = victim.id == thief.id and victim.name == thief.name
        for token in (thief.token, "", "00"):
            if is_thiefs and token == thief.token:
                continue  # the number is the thief's own by now
            push = victim.push(self.data("stolen", victim, sequence), token=token)
            pull = victim.pull(10, token=token)
            assert isinstance(pull, Reply)
            expected = (401, 403) if found is not None else (410, 503)
            assert push.status in expected
            assert pull.status in expected
        if victim.id != thief.id:
            mixed = thief.push(self.data("up", thief, sequence), self.data("stolen", victim, sequence))
            assert mixed.status in (403, 410, 503)

    @rule(seconds=st.sampled_from([0.5, 3.0, 16.0, 31.0, 70.0]))
    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds // 5)):
            for broker in list(self.stage.brokers.values()):
                broker.send(encode(Kind.PONG))
            self.stage.wait(5)
        self.stage.wait(seconds % 5)

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def what_came_was_meant_for_whoever_got_it(self) -> None:
        stage = self.stage
        for key in [key for key in self.held if key in stage.answers]:
            self.check_reply(self.held.pop(key), stage.answers.pop(key))
        for key, packets in stage.frames.items():
            if key in self.streams:
                self.check_packets(
                    [one for one in packets if one.kind != Kind.PONG], "down", self.streams[key].name, self.streams[key]
                )
        stage.frames.clear()
        for key in list(stage.closed_streams):
            self.streams.pop(key, None)
        for broker in stage.brokers.values():
            self.check_packets(broker.got, "up", broker.name, None)
            aborted = [packet.connection_id for packet in broker.take() if packet.kind == Kind.CONN_ABORT]
            assert len(aborted) == len(set(aborted)), "told twice"

    @invariant()
    def everything_stays_within_its_limits(self) -> None:
        hub = self.stage.gateway._hub
        tunnels = list(hub.table.tunnels())
        assert (
            hub.buffered == sum(one.buffer.bytes for one in tunnels) <= LIMITS.buffered_bytes_max + 100 * len(tunnels)
        )
        for one in tunnels:
            assert one.buffer.bytes <= LIMITS.tunnel_bytes_max + 100
            assert len(one.buffer) <= LIMITS.tunnel_packets_max + 2
        assert hub.places.total == sum(one.done_s is None for one in tunnels) <= LIMITS.tunnels_max
        assert len(hub.table.ended) <= LIMITS.ended_max
        assert len(hub.table.done) <= LIMITS.ended_max
        assert set(hub.pulls.values()) == {one for one in tunnels if one.held is not None}
        assert set(hub.streams.values()) == {one for one in tunnels if one.stream is not None}
        assert not any(one.held is not None and one.stream is not None for one in tunnels)

    def teardown(self) -> None:
        """Both sides fall silent: at last nothing is left."""
        self.stage.wait(100_000)
        left = {name: size for name, size in sizes(self.stage).items() if size}
        assert set(left) <= {"servers"}, left


GatewayMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGateway = GatewayMachine.TestCase
