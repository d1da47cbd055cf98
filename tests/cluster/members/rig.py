"""Real member nodes on loopback, and a client that speaks link frames to whoever serves a group."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from fairlead.bus.config import BusAddress, BusConfig
from fairlead.bus.edge.opening import open_bus
from fairlead.cluster.client_manager.link_head import CLOSE, DATA, LINK_HEAD, OPEN, REFUSED, port_of
from fairlead.cluster.configuration.edge.files import NOTES, write_file
from fairlead.cluster.configuration.edge.part import founding_notes
from fairlead.cluster.configuration.types import BusSpec, ClusterConfig, ClusterSettings, GroupSpec, NodeConfig
from fairlead.cluster.demuxing import scan
from fairlead.cluster.outgoing import Link
from fairlead.errors import Unavailable
from fairlead.runtime.admin import answer_of
from fairlead.runtime.member_node.plan import Plan
from fairlead.runtime.settings import Messages
from fairlead.wire import durable
from fairlead.wire.durable import CHUNK, STORE_HEAD, STORED_ITEM
from fairlead.wire.entry_codec import details, encode
from fairlead.wire.kinds import FLAG_LAST, KIND_ERROR

WAIT_S = 60.0


def free_ports(count: int) -> list[int]:
    socks = [socket.socket() for _ in range(count)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def until(
    condition: Callable[[], Any], what: str, wait_s: float = WAIT_S, step: Callable[[], None] | None = None
) -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + wait_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {wait_s:g} s: {what}"
        if step is not None:
            step()
        else:
            time.sleep(0.02)


class Nodes:
    """Member nodes and witnesses as processes, each with its keeper."""

    def __init__(
        self,
        directory: Path,
        *,
        members: int = 2,
        witnesses: int = 1,
        groups: tuple[str, ...] = ("a",),
        messages: dict[str, Any] | None = None,
        pins: dict[str, list[str]] | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.members = [f"m{n}" for n in range(1, members + 1)]
        self.names = [*self.members, *(f"w{n}" for n in range(1, witnesses + 1))]
        ports = free_ports(len(self.names))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(self.names, ports, strict=True)}
        self.cluster = ClusterConfig(
            name="test",
            carrier="tcp",
            buses=[BusSpec(name="main")],
            voters=self.names,
            detection_s=1.0,
            lease_s=1.0,
            margin_s=0.3,
        )
        self.settings = ClusterSettings(
            groups=[GroupSpec(name=group, members=self.members, pins=(pins or {}).get(group, [])) for group in groups],
            removal_s=1.0,
            messages=Messages(**(messages or {})),
            **settings,
        )
        self.keepers: dict[str, subprocess.Popen[bytes]] = {}
        self.clients: list[Client] = []
        for name in self.names:
            self.found(name)

    def data(self, name: str) -> Path:
        return self.directory / name

    def found(self, name: str) -> None:
        """Make its data directory, as one that begins with the cluster."""
        write_file(self.data(name) / NOTES, msgspec.json.encode(founding_notes(self.settings)))

    def node(self, name: str) -> NodeConfig:
        return NodeConfig(
            name=name,
            kind="mm" if name in self.members else "witness",
            data=str(self.data(name)),
            buses={"main": self.addresses[name]},
            seeds={"main": [address for other, address in self.addresses.items() if other != name]},
        )

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition while our clients stay alive; its value."""

        def step() -> None:
            for client in self.clients:
                client.turn(0.0)
            time.sleep(0.02)

        return until(condition, what, step=step)

    # --- Processes
    def start(self, *names: str, **changed: Any) -> None:
        """`changed`: values of [messages] that only these nodes have."""
        messages = msgspec.structs.replace(self.settings.messages, **changed)
        settings = msgspec.structs.replace(self.settings, messages=messages)
        for name in names or self.names:
            plan = Plan(self.node(name), self.cluster, settings)
            path = self.directory / f"{name}.json"
            path.write_bytes(plan.write().read_bytes())
            with open(self.directory / f"{name}.out", "ab") as out:
                self.keepers[name] = subprocess.Popen(
                    [sys.executable, "-m", "fairlead.runtime.member_node", str(path)], stdout=out, stderr=out
                )

    def stop(self, *names: str) -> None:
        """In order."""
        found = [self.keepers[name] for name in names or list(self.keepers) if name in self.keepers]
        for keeper in found:
            if keeper.poll() is None:
                keeper.send_signal(signal.SIGTERM)
        for keeper in found:
            try:
                keeper.wait(25)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
        for name in names or list(self.keepers):
            self.keepers.pop(name, None)

    def pid(self, name: str) -> int:
        """Of the member node, the keeper's child."""
        return int(self.until(lambda: self.status(name), f"{name} answers")["pid"])

    def kill(self, name: str) -> None:
        """The member node; its keeper starts it again."""
        os.kill(self.pid(name), signal.SIGKILL)

    def kill_both(self, name: str) -> None:
        """The keeper first, as a host that loses power does: nobody says that the node is dead."""
        pid = self.pid(name)
        keeper = self.keepers.pop(name)
        os.kill(keeper.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        keeper.kill()
        keeper.wait()

    # --- What they say
    def here(self, name: str, do: str, **args: Any) -> dict[str, Any]:
        return answer_of(self.data(name) / "run", "here", args={"do": do, **args}, timeout_s=10.0)

    def status(self, name: str) -> dict[str, Any]:
        try:
            return dict(self.here(name, "status")["status"])
        except Unavailable:
            return {}

    def group(self, name: str, group: str = "a") -> dict[str, Any]:
        return dict(self.status(name).get("groups", {}).get(group, {}))

    def primary(self, group: str = "a") -> str:
        """The one that serves; empty: none does."""
        for name in self.members:
            keeper = self.keepers.get(name)
            if keeper is not None and keeper.poll() is None and self.group(name, group).get("serving"):
                return name
        return ""

    def wait_primary(self, group: str = "a", *, other_than: str = "") -> str:
        return str(self.until(lambda: (name := self.primary(group)) and name != other_than and name, "a primary"))

    def wait_in_sync(self, count: int, group: str = "a") -> str:
        """Until the set has so many; who leads."""

        def found() -> str:
            name = self.primary(group)
            if not name or len(self.group(name, group)["set"]) != count:
                return ""
            roles = [self.group(one, group).get("role") for one in self.members]
            return name if roles.count("in-sync") == count - 1 else ""

        return str(self.until(found, f"{count} in sync"))

    def output(self, name: str) -> str:
        return (self.directory / f"{name}.out").read_text()


class Client:
    """One agent with one manager with one connection: talks to the primary over the bus, and begins anew with it."""

    def __init__(self, nodes: Nodes, group: str = "a", own: str = "cm") -> None:
        self.nodes, self.group = nodes, group
        address = f"127.0.0.1:{free_ports(1)[0]}"
        config = BusConfig(
            node=own,
            start=time.time_ns(),
            cluster="test",
            carrier="tcp",
            buses=[BusAddress("main", address)],
            seeds={"main": list(nodes.addresses.values())},
            detection_s=1.0,
            tag={"kind": "cm"},
        )
        self.bus = open_bus(config)
        self.bus.listen(port_of(group), self._on_message)
        self.bus.on_broken(self._on_lost)
        self.served: tuple[str, int] | None = None  # node, epoch
        self.generation = 0
        self.frames: list[tuple[int, int, bytes]] = []  # kind, number, body
        self.numbers = iter(range(1, 1 << 30))
        self.session: dict[str, Any] = {}
        self.refusals = 0
        nodes.clients.append(self)

    def close(self) -> None:
        self.nodes.clients.remove(self)
        self.bus.close()

    # --- The link
    def turn(self, wait_s: float = 0.02) -> None:
        self.bus.flush()
        select.select([self.bus.fileno()], [], [], min(wait_s, self.bus.patience_s(time.monotonic())))
        self.bus.turn(time.monotonic())
        self.bus.flush()

    def serving(self) -> tuple[str, int] | None:
        for peer in self.bus.view.peers.values():
            said = peer.tag.get("groups", {}).get(self.group, {})
            if said.get("serving"):
                return peer.name, said["epoch"]
        return None

    def connect(self, other_than: str = "") -> None:
        """Open a link to whoever serves."""

        def found() -> bool:
            served = self.serving()
            return served is not None and served[0] != other_than

        until(found, "somebody serves", step=self.turn)
        self.served = self.serving()
        self.generation += 1
        self.frames.clear()
        self._say(OPEN)
        answer = self.ask(0, "hello", manager=0, generation=self.generation, pid=1)
        assert answer["group"] == self.group

    def _say(self, what: int, *pieces: Any) -> None:
        if self.served is None:
            raise Lost
        node, epoch = self.served
        if not self.bus.send(node, port_of(self.group), LINK_HEAD.pack(what, 0, self.generation, epoch), *pieces):
            self.served = None
            raise Lost

    def _on_lost(self, node: str) -> None:
        if self.served is not None and self.served[0] == node:
            self.served = None

    def _on_message(self, sender: str, data: memoryview) -> None:
        what, _, generation, _ = LINK_HEAD.unpack_from(data)
        if self.served is None or sender != self.served[0] or generation != self.generation:
            return
        if what in (REFUSED, CLOSE):
            self.refusals += 1
            self.served = None
            return
        body = bytes(data[LINK_HEAD.size :])
        for uid, _, kind, _, number, _, _, _, _, at, end in scan(memoryview(bytearray(body)), 0, len(body))[0]:
            if uid == 0 and kind == durable.KIND_COMMAND:
                facts = msgspec.json.decode(body[at:end])
                if facts["do"] == "announce" and facts["number"]:
                    self.frame(0, durable.KIND_COMMAND, body=b'{"do":"announced","number":%d}' % facts["number"])
                continue
            self.frames.append((kind, number, body[at:end]))

    def frame(self, uid: int, kind: int, **facts: Any) -> None:
        outside = Link(0)
        outside.frame(uid, uid, kind, **facts)
        self._say(DATA, *outside.out)

    # --- What a client does
    def take(self, kind: int, number: int | None = None) -> list[bytes]:
        found = [one for one in self.frames if one[0] == kind and number in (None, one[1])]
        for one in found:
            self.frames.remove(one)
        return [one[2] for one in found]

    def ask(self, uid: int, do: str, **facts: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.frame(uid, durable.KIND_COMMAND, number=number, body=msgspec.json.encode({"do": do, **facts}))
        answer: dict[str, Any] = {}

        def answered() -> bool:
            for body in self.take(durable.KIND_ANSWER, number):
                answer.update(msgspec.json.decode(body) or {"": ""})
                answer.setdefault("", "")
            for body in self.take(KIND_ERROR, number):
                raise AssertionError(f"{do}: {body.decode()}")
            if self.served is None:
                raise Lost
            return bool(answer)

        until(answered, f"an answer to {do}", step=self.turn)
        return answer

    def open(self, *, resume: bool = False) -> dict[str, Any]:
        """A session, or the next life of ours; how far its sends were accepted."""
        facts: dict[str, Any] = {"ack": "individual"}
        if resume:
            old = self.session
            facts["resume"] = {"id": old["id"], "secret": old["secret"], "incarnation": old["incarnation"] + 1}
        self.session = self.ask(1, "session", **facts)
        return self.session

    def producer(self, name: str) -> int:
        asked = {"session": self.session["session"], "destination": name, "kind": "queue", "create": True}
        return int(self.ask(1, "produce", **asked)["producer"])

    def send(self, producer: int, first: int, *bodies: bytes) -> None:
        entries = b"".join(encode(body) for body in bodies)
        head = STORE_HEAD.pack(len(bodies), 0, 0, self.session["ids"][0] + first)
        self.frame(1, durable.KIND_STORE, number=producer, correlation=first, body=head + entries)

    def send_large(self, producer: int, first: int, body: bytes) -> None:
        """A message of which the body goes ahead in pieces; until it is confirmed."""
        self.upload(producer, body)
        entry = encode(durable.LARGE.pack(1, len(body), sha256(body).digest()), flags=durable.ENTRY_LARGE)
        head = STORE_HEAD.pack(1, 0, 0, self.session["ids"][0] + first)
        self.frame(1, durable.KIND_STORE, number=producer, correlation=first, body=head + entry)

        def stored() -> list[tuple[int, int, int]]:
            if self.served is None:
                raise Lost
            return list(self.stored())

        assert until(stored, "stored", step=self.turn) == [(first, 1, 0)]

    def upload(self, producer: int, body: bytes, upto: int | None = None) -> int:
        """Bring the pieces of a body there, or go on with that, until it is complete; where it began.

        `upto`: only so much of it, and wait for nothing more than that it may be sent.
        """
        asked = {"session": self.session["session"], "producer": producer, "transfer": 1, "length": len(body)}
        answer = self.ask(1, "transfer", **asked, resume=True)
        offset, end = answer["offset"], len(body) if upto is None else upto
        granted, sent, complete = offset + answer["window"], offset, answer["complete"]

        def done() -> bool:
            nonlocal granted, sent, complete
            if self.served is None:
                raise Lost
            for notice in map(msgspec.json.decode, self.take(durable.KIND_NOTICE)):
                assert notice["event"] == "transfer", notice
                granted = max(granted, notice["offset"])
                complete = complete or notice.get("complete", False)
            while sent < min(granted, end):
                piece = body[sent : min(sent + (256 << 10), granted, end)]
                flags = FLAG_LAST if sent + len(piece) == len(body) else 0
                self.frame(1, durable.KIND_PIECE, number=producer, correlation=1, peer=sent, flags=flags, body=piece)
                sent += len(piece)
            return bool(complete) or (upto is not None and sent >= upto)

        until(done, "the transfer is complete", step=self.turn)
        return int(offset)

    def receive_large(self, name: str, length: int) -> bytes:
        """The body of the first message of a queue, pulled; then it is acknowledged."""
        asked = {"session": self.session["session"], "destination": name, "kind": "queue", "create": False}
        consumer = self.ask(1, "consume", **asked, messages=1, bytes=1 << 30)["consumer"]
        (delivered,) = until(lambda: self.take(durable.KIND_DELIVER, consumer), "the delivery", step=self.turn)
        ((order, _),) = messages_of(delivered)
        self.frame(1, durable.KIND_PULL, number=consumer, correlation=order, peer=length)
        got = bytearray()

        def whole() -> bool:
            for piece in self.take(durable.KIND_DATA, consumer):
                got.extend(piece)
            return len(got) >= length

        until(whole, "the body", step=self.turn)
        body = durable.SETTLE_ITEM.pack(order, order + 1, durable.ACKNOWLEDGE, 0)
        self.frame(1, durable.KIND_SETTLE, number=consumer, peer=7, body=body)
        until(lambda: self.take(durable.KIND_SETTLED), "the settlement", step=self.turn)
        return bytes(got)

    def stored(self) -> Iterator[tuple[int, int, int]]:
        """first, count, status of each receipt."""
        for body in self.take(durable.KIND_STORED):
            for first, count, status, _, _ in STORED_ITEM.iter_unpack(body):
                yield first, count, status

    def receive(self, name: str, count: int, *, settle: bool = True) -> list[bytes]:
        """So many messages of a queue, by their order; all that were seen, if more."""
        asked = {"session": self.session["session"], "destination": name, "kind": "queue", "create": False}
        consumer = self.ask(1, "consume", **asked, messages=1 << 20, bytes=1 << 30)["consumer"]
        got: list[tuple[int, bytes]] = []

        def enough() -> bool:
            for body in self.take(durable.KIND_DELIVER, consumer):
                got.extend(messages_of(body))
            if self.served is None:
                raise Lost
            return len(got) >= count

        until(enough, f"{count} messages", step=self.turn)
        for _ in range(10):
            self.turn(0.01)
        enough()
        if settle and got:
            body = durable.SETTLE_ITEM.pack(got[0][0], got[-1][0] + 1, durable.ACKNOWLEDGE, 0)
            self.frame(1, durable.KIND_SETTLE, number=consumer, peer=7, body=body)
            until(lambda: self.take(durable.KIND_SETTLED), "the settlement", step=self.turn)
        orders = [order for order, _ in got]
        assert orders == sorted(set(orders)), "out of order, or twice"
        return [body for _, body in got]


class Lost(Exception):
    """The link ended."""


def messages_of(body: bytes) -> Iterator[tuple[int, bytes]]:
    view = memoryview(body)
    at = 0
    while at < len(view):
        order, _, _, _, _, _, size, _ = CHUNK.unpack_from(view, at)
        at += CHUNK.size
        for position, entry in enumerate(details(view, at, at + size)):
            yield order + position, bytes(view[entry.body_start : entry.body_end])
        at += size
