"""The client's road before a real agent and real cores of several groups, without sockets: frames travel as slowly as
the test wants, groups fail over, and the line is cut at any frame.
"""

from __future__ import annotations

import json
from bisect import insort
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.content import PLAIN
from fairlead.client.durable.pattern import PatternConsumer
from fairlead.client.durable.producer import Producer
from fairlead.client.durable.road import Road
from fairlead.client.durable.session import DurableSession
from fairlead.errors import from_wire
from fairlead.wire import durable, kinds
from fairlead.wire.frames import Message, Parser, encode_frame
from tests.client.durable_server import Ticket, Way
from tests.cluster.agent.world import Site
from tests.cluster.core_rig import Got

PINS = {"left": "a", "left.2": "a", "right": "b", "right.2": "b", "news.left": "a", "news.right": "b", "old": "b"}


class ClusterWorld:
    """One client with one road; `cut_at` cuts the line before that frame of all that travel, either way."""

    def __init__(
        self, folder: Path, groups: tuple[str, ...] = ("a", "b"), *, cut_at: int = -1, limit_s: float = 60.0
    ) -> None:
        self.words: list[tuple[str, str, dict[str, Any]]] = []  # of groups to groups
        self.site = Site(folder, groups, pins={name: group for name, group in PINS.items() if group in groups})
        for group in groups:
            self.lead(group)
        self.site.settle()
        self.link = self.site.manager()
        self.uid = 7
        self.way = Way()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.outward: deque[bytes] = deque()
        self.homeward: deque[Got] = deque()
        self.parser = Parser()
        self.frames = 0
        self.cut_at = cut_at
        self.cuts = 0
        self.commands: list[dict[str, Any]] = []
        self.deaf: set[str] = set()  # commands that do not get to the agent
        self.road = Road(self.way, client_name="test", limit_s=limit_s, now_ms=lambda: int(self.site.now_s * 1000),
                         later=self._later, wake=lambda: None, write=lambda: None)  # fmt: skip
        self.connect()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        insort(self.timers, (self.site.now_s + delay_s, len(self.timers), action), key=lambda timer: timer[:2])

    # --- The line -------------------------------------------------------------------------------------------------
    def connect(self) -> None:
        self.site.client(self.uid, self.link)
        self.parser = Parser()
        self.road.on_connected()

    def cut(self) -> None:
        """With everything that was under way."""
        self.cuts += 1
        self.site.gone(self.uid)
        self.road.on_disconnected()
        self.way.out.clear()
        self.outward.clear()
        self.homeward.clear()
        self.uid += 1
        self.connect()

    def say(self) -> None:
        self.road.flush()
        self.outward += self.way.out
        self.way.out.clear()

    def arrive(self) -> None:
        """The next frame of the client gets to its manager."""
        frame = self.outward.popleft()
        if not self._travels():
            return
        for message in self.parser.feed(frame):
            if message.kind == durable.KIND_COMMAND:
                self.commands.append(asked := json.loads(message.body))
                if asked["do"] in self.deaf:
                    continue
            self.site.frame(self.link, self.uid, message.kind, number=message.number, flags=message.flags,
                            correlation=message.correlation, peer=message.sender, body=message.body)  # fmt: skip

    def collect(self) -> None:
        self.site.collect()
        inbox, self.site.inbox = self.site.inbox, []
        self.homeward += [got for got in inbox if got.uid == self.uid]

    def hear(self) -> None:
        """The next frame for the client gets there."""
        got = self.homeward.popleft()
        if not self._travels():
            return
        if got.kind == kinds.KIND_ERROR:
            self.road.on_error(got.number, from_wire(got.headers["code"].decode(), got.body.decode()))
            return
        frame = encode_frame(got.kind, 0, got.number, got.correlation, got.peer, b"", b"", got.body)
        self.road.on_frames(list[Message](Parser().feed(frame)))

    def _travels(self) -> bool:
        self.frames += 1
        if self.frames == self.cut_at:
            self.cut()
            return False
        return True

    # --- Time -----------------------------------------------------------------------------------------------------
    def pump(self, rounds: int = 2000) -> None:
        """Until nobody has anything to say."""
        for _ in range(rounds):
            self.say()
            if not self.outward and not self.homeward:
                self.settle()
                self.collect()
                if not self.homeward:
                    return
            while self.outward:
                self.arrive()
            self.settle()
            self.collect()
            while self.homeward:
                self.hear()
        raise AssertionError("they never come to rest")

    def pass_time(self, seconds: float) -> None:
        until_s = self.site.now_s + seconds
        while self.timers and self.timers[0][0] <= until_s:
            self.site.now_s, _, action = self.timers.pop(0)
            action()
            self.pump()
        self.site.now_s = until_s
        self.pump()

    def lead(self, group: str) -> None:
        """A member leads with what is safe; the ids it gives are those of its own node."""
        member = self.site.lead(group)
        member.world.lives += 100_000 * (1 + member.index)

        def settle_send(to: str, message: dict[str, Any]) -> None:
            self.words.append((group, to, message))

        member.core.settle_send = settle_send

    def settle(self) -> None:
        """Everything between agent and groups arrives, and what groups say to each other."""
        for _ in range(20):
            self.site.settle()
            words, self.words = self.words, []
            for group, to, message in words:
                if to in self.site.members:
                    self.site.members[to].core.decisions.on_settle(group, message)
            if not words:
                return

    def fail_over(self, group: str) -> None:
        """Its primary is lost, and another member leads with what is safe."""
        self.site.kill(group)
        self.lead(group)

    # --- The application ------------------------------------------------------------------------------------------
    def session(self, ack: str = "individual") -> DurableSession:
        return self.road.session(ack)

    def consumer(self, session: DurableSession, name: str, prefetch: int = 10, **fields: Any) -> DurableConsumer:
        fields = {"kind": "queue", "create": True} | fields
        made = DurableConsumer(session.home, name, fields, prefetch=prefetch, prefetch_bytes=1 << 20, answered=True,
                               one_by_one=False, wake=lambda: None)  # fmt: skip
        session.add_consumer(made)
        return made

    def pattern(self, session: DurableSession, name: str, **fields: Any) -> PatternConsumer:
        fields = {"kind": "topic", "start": "new"} | fields
        made = PatternConsumer(session, name, fields, prefetch=10, prefetch_bytes=1 << 20, answered=True,
                               wake=lambda: None)  # fmt: skip
        session.add_pattern(made)
        return made

    def asked(self, *names: str) -> list[dict[str, Any]]:
        """The commands of these names that the client has said."""
        return [command for command in self.commands if command["do"] in names]

    def depth(self, name: str) -> int:
        found = self.find(name)
        return 0 if found is None else int(found.facts()["depth"])

    def find(self, name: str) -> Any:
        found = [one for member in self.site.members.values() if (one := member.core.find(name)) is not None]
        assert len(found) < 2, f"{name!r} is in several groups"
        return found[0] if found else None


def send(producer: Producer, *bodies: bytes) -> list[Ticket]:
    tickets = [Ticket() for _ in bodies]
    for body, ticket in zip(bodies, tickets, strict=True):
        producer.add(body, PLAIN, ticket)
    return tickets


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]
