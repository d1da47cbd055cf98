"""Servers and bridges without processes: the real bridge, the real feed of interest, and wires of any delay."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairlead.broker.instructions import Instruction
from fairlead.broker.interest import LINK_TOPIC, LINK_TYPE, SUBSCRIBED, Interest
from fairlead.broker.parties import Attachment
from fairlead.sites.bridge import Bridge
from fairlead.sites.end import End
from fairlead.topics import compile as compile_pattern
from fairlead.wire import kinds
from fairlead.wire.codec import Parser, encode_frame


class Port:
    """A bridge's session at a server, as far as the bridge uses it for broadcasts."""

    is_live = True

    def __init__(self, server: ModelServer, uid: int) -> None:
        self.server, self.uid = server, uid
        self.link = SimpleNamespace(confirm=SimpleNamespace(server=server.id))
        self.claims: dict[int, tuple[int, str]] = {}
        self.incoming: deque[bytes] = deque()
        self._number = 0

    def claim(self, kind: int, key: str, answer: Callable[[None], None], flags: int = 0) -> int:
        self._number += 1
        self.claims[self._number] = kind, key
        if key == LINK_TOPIC:
            self.server.attach(self)
        return self._number

    def disclaim(self, kind: int, number: int, answer: Callable[[None], None]) -> None:
        del self.claims[number]

    def publish(self, topic: bytes, section: bytes, body: bytes) -> None:
        self.server.publish(self.uid, topic.decode(), section, body)

    def wants(self, topic: str) -> bool:
        patterns = [key for kind, key in self.claims.values() if kind == kinds.KIND_SUBSCRIBE]
        return any(compile_pattern(pattern).matches(topic) for pattern in patterns)


class ModelServer:
    """A router and the clients of its server."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.interest = Interest()
        self.ports: dict[int, Port] = {}
        self.patterns: list[str] = []
        self.got: Counter[bytes] = Counter()
        self.carried: Counter[str] = Counter()  # broadcasts of links, by topic

    def attach(self, port: Port) -> None:
        attachment = Attachment(port.uid, port.uid, 0, port.uid, "")
        attachment.type, attachment.instance = LINK_TYPE, port_owner[port]
        told = self.interest.linked(attachment)
        self.ports[port.uid] = port
        self._tell(told)
        self.interest.links[port.uid] = attachment

    def subscribe(self, pattern: str) -> None:
        told = self.interest.changed([(SUBSCRIBED, pattern, 1)])
        self.interest.add(SUBSCRIBED, pattern, 1)
        self.patterns.append(pattern)
        self._tell(told)

    def unsubscribe(self, pattern: str) -> None:
        told = self.interest.changed([(SUBSCRIBED, pattern, -1)])
        self.interest.add(SUBSCRIBED, pattern, -1)
        self.patterns.remove(pattern)
        self._tell(told)

    def _tell(self, told: list[Instruction]) -> None:
        for instruction in told:
            uid = int.from_bytes(instruction.recipients, "little") >> 32
            self.ports[uid].incoming.append(instruction.content)

    def publish(self, uid: int, topic: str, section: bytes, body: bytes) -> None:
        if topic != LINK_TOPIC:
            self.carried[topic] += uid in self.ports
            self.got[body] += any(compile_pattern(pattern).matches(topic) for pattern in self.patterns)
        frame = encode_frame(kinds.KIND_PUBLISH, 0, 0, 0, uid, topic.encode(), section, body)
        for port in self.ports.values():
            if port.uid != uid and port.wants(topic):
                port.incoming.append(frame)


port_owner: dict[Port, str] = {}


class World:
    """Servers with their bridges; `run` lets everything arrive, in an order that `choose` decides."""

    def __init__(self, parents: dict[str, list[str]], choose: Callable[[int], int]) -> None:
        self.servers = {name: ModelServer(name) for name in parents}
        self.choose = choose
        self.bridges: dict[str, Bridge] = {}
        self.wires: list[tuple[Bridge, End, Port, Parser]] = []
        self.stale: set[str] = set()
        for name, above in parents.items():
            if above:
                self._bridge(name, above)

    def _bridge(self, name: str, above: list[str]) -> None:
        bridge = Bridge(name, [name, *above], queue_bytes=1 << 20, hold_s=0, log=lambda level, text: None)
        bridge.changed = lambda: self.stale.add(name)
        self.bridges[name] = bridge
        for end in bridge.ends:
            port = Port(self.servers[end.url], 1000 + len(self.wires))
            port_owner[port] = name
            session: Any = port
            end.session = session
            self.wires.append((bridge, end, port, Parser()))
            bridge.on_live(end)

    def run(self) -> None:
        for _ in range(100_000):
            moves: list[Callable[[], None]] = [self._step(wire) for wire in self.wires if wire[2].incoming]
            moves += [self._refreshing(name) for name in sorted(self.stale)]
            moves += [end.publish_next for bridge, end, *_ in self.wires if end.outbox]
            if not moves:
                return
            moves[self.choose(len(moves))]()
        raise AssertionError("it does not come to rest")

    def _step(self, wire: tuple[Bridge, End, Port, Parser]) -> Callable[[], None]:
        bridge, end, port, parser = wire

        def step() -> None:
            for message in parser.feed(port.incoming.popleft()):
                if message.kind == kinds.KIND_INTEREST:
                    bridge.on_interest(end, message.body)
                else:
                    bridge.on_publish(end, [message])

        return step

    def _refreshing(self, name: str) -> Callable[[], None]:
        def refresh() -> None:
            self.stale.discard(name)
            self.bridges[name].refresh()

        return refresh
