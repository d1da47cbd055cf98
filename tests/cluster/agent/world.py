"""A client manager without processes: a real agent before real cores, over a bus that is a list."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fairlead.bus.port import Bytes, Handler
from fairlead.cluster.client_manager.agent import Agent
from fairlead.cluster.client_manager.coordinator import Coordinator
from fairlead.cluster.client_manager.group_link import Served
from fairlead.cluster.client_manager.link_head import port_of
from fairlead.cluster.client_manager.managers import ManagerLink
from fairlead.cluster.client_manager.placement import Group
from fairlead.cluster.core import Core
from fairlead.cluster.demuxing import runs
from fairlead.cluster.edge.bus_links import BusLinks
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.options import Options
from fairlead.cluster.outgoing import Link
from fairlead.cluster.recovery import Recovery
from fairlead.wire import durable
from fairlead.wire.durable import STORE_HEAD, STORED_ITEM
from fairlead.wire.entry_codec import encode
from fairlead.wire.kinds import KIND_ERROR, KIND_PUBLISH
from tests.cluster.core_rig import Got, MemoryJournal, World, frames_of, messages_of


class Net:
    """Everything that is under way, in the order of sending."""

    def __init__(self) -> None:
        self.queue: deque[tuple[str, str, str, bytes]] = deque()
        self.there: dict[str, FakeBus] = {}
        self.sent = 0

    def deliver(self) -> bool:
        if not self.queue:
            return False
        sender, to, port, data = self.queue.popleft()
        bus = self.there.get(to)
        if bus is not None and port in bus.handlers:
            bus.handlers[port](sender, memoryview(data))
        return True


class FakeBus:
    def __init__(self, net: Net, node: str) -> None:
        self.node = node
        self.net = net
        self.handlers: dict[str, Handler] = {}
        net.there[node] = self

    def listen(self, port: str, handler: Handler) -> None:
        self.handlers[port] = handler

    def deaf(self, port: str) -> None:
        self.handlers.pop(port, None)

    def send(self, to: str, port: str, *pieces: Bytes) -> bool:
        if to not in self.net.there:
            return False
        self.net.sent += 1
        self.net.queue.append((self.node, to, port, b"".join(bytes(piece) for piece in pieces)))
        return True

    def backlog(self, to: str) -> int:
        return 0


class Member:
    """The primary of a group: a core over a journal in memory."""

    def __init__(self, net: Net, folder: Path, group: str, index: int, node: str, journal: MemoryJournal) -> None:
        self.net = net
        self.group, self.index, self.node, self.journal = group, index, node, journal
        self.world = World()
        self.world.lives = 1 + len(journal.records)
        large = SideFiles(folder / node)
        self.core = Core(journal, self.world, Options(), large, now_ms=1_000_000, group=group, index=index)
        recovery = Recovery(self.core)
        recovery.restore([])
        recovery.replay(iter(journal.records))
        recovery.finish()
        self.core.create_well_known()
        self.links = BusLinks(FakeBus(net, node), group)  # type: ignore[arg-type]

    def turn(self) -> None:
        core = self.core
        core.on_time(core.now_ms)
        core.run()
        self.journal.safe = len(self.journal.records)
        core.on_safe(self.journal.safe)
        core.run()
        core.finish()
        self.links.send()


class Site:
    """One client manager's node with its agent, and a member for each group."""

    def __init__(
        self, folder: Path, groups: tuple[str, ...] = ("a", "b"), *, pins: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.net = Net()
        self.bus = FakeBus(self.net, "cm1")
        self.now_s = 100.0
        self.said: list[str] = []
        pins = pins or {}
        self.specs = [Group(name, tuple(pin for pin, to in pins.items() if to == name)) for name in groups]
        self.members: dict[str, Member] = {}
        self.journals = {name: MemoryJournal() for name in groups}
        self.epochs = dict.fromkeys(groups, 0)
        self.clients: dict[int, ManagerLink] = {}
        self.numbers = itertools.count(1)
        self.ids: dict[int, int] = {}
        self.inbox: list[Got] = []
        self.muted = False  # managers do not say `announced`
        self.stuck = False  # managers do not read
        self.links: list[ManagerLink] = []
        self.start_agent()

    def start_agent(self) -> None:
        coordinator = Coordinator()
        self.agent = Agent(
            "cm1", self.specs, self.bus.send, coordinator, self.now_s, say=lambda level, text: self.said.append(text)
        )
        for group in self.specs:
            self.bus.listen(port_of(group.name), self._handler(group.name))

    def _handler(self, group: str) -> Callable[[str, memoryview], None]:
        return lambda sender, message: self.agent.links.from_group(group, sender, message)

    # --- Members --------------------------------------------------------------------------------------------------
    def lead(self, group: str, node: str = "") -> Member:
        """A member begins to serve, with everything that is safe in the group."""
        self.epochs[group] += 1
        node = node or f"{group}{self.epochs[group]}"
        index = [one.name for one in self.specs].index(group)
        self.journals[group].crash()
        member = self.members[group] = Member(self.net, self.folder, group, index, node, self.journals[group])
        member.links.serve(member.core, self.epochs[group])
        self.view()
        return member

    def kill(self, group: str) -> None:
        """Its node is gone, with everything under way to and from it."""
        node = self.members.pop(group).node
        del self.net.there[node]
        self.net.queue = deque(one for one in self.net.queue if node not in one[:2])
        self.view()

    def view(self) -> None:
        serving = {group: Served(one.node, self.epochs[group]) for group, one in self.members.items()}
        self.agent.now_s = self.now_s
        self.agent.links.on_view(len(self.net.there), self.net.there, serving)

    # --- Time -----------------------------------------------------------------------------------------------------
    def settle(self, turns: int = 40) -> None:
        for _ in range(turns):
            self.agent.now_s = self.now_s
            busy = False
            while self.net.deliver():
                busy = True
            for member in list(self.members.values()):
                member.turn()
            self.agent.tick()
            self.collect()
            if not busy and not self.net.queue:
                break

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()

    def collect(self) -> None:
        if self.stuck:
            return
        for link in list(self.agent.managers.values()):
            was_full = link.is_full
            found = frames_of(link)
            if was_full and not link.is_full:
                self.agent.has_room(link)
            for got in found:
                self.inbox.append(got)
                if got.uid == 0 and got.kind == durable.KIND_COMMAND and not self.muted:
                    self.frame(link, 0, durable.KIND_COMMAND, body=_json(do="announced", number=got.facts["number"]))

    # --- Managers and clients -------------------------------------------------------------------------------------
    def manager(self, number: int = 0) -> ManagerLink:
        link = self.agent.manager_opened()
        self.links.append(link)
        self.frame(link, 0, durable.KIND_COMMAND, number=1, body=_json(do="hello", manager=number))
        self.settle()
        return link

    def client(self, uid: int, link: ManagerLink) -> int:
        self.clients[uid] = link
        return uid

    def frame(self, link: ManagerLink, uid: int, kind: int, **facts: Any) -> None:
        outside = Link(0)
        outside.frame(uid, uid % 1000, kind, **facts)
        self.feed(link, b"".join(bytes(piece) for piece in outside.out))

    def feed(self, link: ManagerLink, data: bytes) -> None:
        view = memoryview(bytearray(data))
        found, used = runs(view, 0, len(view), True)
        assert used == len(view)
        self.agent.now_s = self.now_s
        self.agent.from_manager(link, view, found)

    def command(self, uid: int, do: str, **facts: Any) -> int:
        number = next(self.numbers)
        self.frame(self.clients[uid], uid, durable.KIND_COMMAND, number=number, body=_json(do=do, **facts))
        return number

    def answer(self, uid: int, number: int) -> dict[str, Any]:
        self.settle()
        for got in self.inbox:
            if got.uid == uid and got.number == number and got.kind in (durable.KIND_ANSWER, KIND_ERROR):
                self.inbox.remove(got)
                if got.kind == KIND_ERROR:
                    return {"error": got.headers["code"].decode(), "text": got.body.decode()}
                return got.facts
        raise AssertionError(f"command {number} was not answered; there is {self.inbox}")

    def ask(self, uid: int, do: str, **facts: Any) -> dict[str, Any]:
        return self.answer(uid, self.command(uid, do, **facts))

    def session(self, uid: int, group: str, **facts: Any) -> int:
        answer = self.ask(uid, "session", ack="individual", group=group, **facts)
        assert "session" in answer, answer
        self.ids[answer["session"]] = answer["ids"][0]
        return int(answer["session"])

    def producer(self, uid: int, session: int, name: str, kind: str = "queue") -> int:
        answer = self.ask(uid, "produce", session=session, destination=name, kind=kind, create=True)
        return int(answer["producer"])

    def consumer(self, uid: int, session: int, name: str, kind: str = "queue", **facts: Any) -> int:
        facts = {"messages": 1000, "bytes": 1 << 20, "create": True, **facts}
        return int(self.ask(uid, "consume", session=session, destination=name, kind=kind, **facts)["consumer"])

    def store(self, uid: int, session: int, producer: int, first: int, *bodies: bytes, transaction: int = 0) -> None:
        entries = b"".join(encode(body) for body in bodies)
        head = STORE_HEAD.pack(len(bodies), 0, 1_000_000, self.ids[session] + first)
        facts = {"number": producer, "correlation": first, "peer": transaction, "body": head + entries}
        self.frame(self.clients[uid], uid, durable.KIND_STORE, **facts)

    def acknowledge(self, uid: int, consumer: int, first: int, beyond: int, *, transaction: int = 0) -> None:
        body = durable.SETTLE_ITEM.pack(first, beyond, durable.ACKNOWLEDGE, 0)
        self.frame(
            self.clients[uid], uid, durable.KIND_SETTLE, number=consumer, correlation=transaction, peer=1, body=body
        )

    def publish(self, uid: int, topic: str, body: bytes, number: int = 0) -> None:
        self.frame(self.clients[uid], uid, KIND_PUBLISH, number=number, topic=topic.encode(), body=body)

    def gone(self, uid: int) -> None:
        self.frame(self.clients.pop(uid), uid, durable.KIND_COMMAND, body=_json(do="gone"))

    # --- What came ------------------------------------------------------------------------------------------------
    def take(self, uid: int, kind: int) -> list[Got]:
        self.settle()
        found = [got for got in self.inbox if got.uid == uid and got.kind == kind]
        for got in found:
            self.inbox.remove(got)
        return found

    def broadcasts(self) -> list[Got]:
        """Publishes handed to managers, without the log's."""
        return [got for got in self.take(0, KIND_PUBLISH) if not got.topic.startswith(b"_")]

    def notices(self, uid: int) -> list[dict[str, Any]]:
        return [got.facts for got in self.take(uid, durable.KIND_NOTICE)]

    def stored(self, uid: int) -> list[tuple[int, int, int]]:
        """producer, first, count of every receipt."""
        return [
            (got.number, *item[:2])
            for got in self.take(uid, durable.KIND_STORED)
            for item in STORED_ITEM.iter_unpack(got.body)
        ]

    def delivered(self, uid: int) -> list[tuple[int, bytes]]:
        """consumer and body."""
        return [
            (got.number, body) for got in self.take(uid, durable.KIND_DELIVER) for _, _, body in messages_of(got.body)
        ]


def _json(**facts: Any) -> bytes:
    return msgspec.json.encode(facts)
