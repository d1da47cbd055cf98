"""Several groups and an agent without processes: real cores over journals in memory, the real coordinator between them.

Everything under way is in one list (`flight`): commands and answers over links, settling messages between groups, and
disks that become safe. A test delivers it one by one, in order or not, and lets nodes die in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from fairlead.cluster import records
from fairlead.cluster.client_manager.coordinator import Answer, Coordinator, Effect, Error, Part, Send, transaction_id
from fairlead.cluster.demux import scan
from fairlead.wire import durable
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import KIND_ERROR
from tests.cluster.manager_rig import Client, Manager

TAGS = 1_000_000
"""Numbers of commands from here on are the coordinator's tags."""


class Group(Manager):
    """One group's message manager."""

    def __init__(self, world: World, name: str, index: int, folder: Path) -> None:
        self.world = world
        self.name = name
        self.index = index
        self.is_down = False
        self.is_frozen = False
        self.boots = 0
        super().__init__(folder, resend_retention_s=120.0)

    def _begin(self) -> None:
        super()._begin()
        self.boots += 1
        self.core.group = self.name
        self.core.handles = self.index << 24
        self.core.settle_send = lambda group, message: self.world.settle(self.name, group, message)

    def new_id(self, kind: str) -> bytes:
        return bytes((self.index,)) + super().new_id(kind)[1:]

    def _collect(self) -> None:
        whole = b"".join(bytes(piece) for piece in self.link.out)
        frames, _ = scan(memoryview(whole), 0, len(whole))
        super()._collect()
        for uid, _, kind, _, number, _, _, _, headers, body, beyond in frames:
            if number >= TAGS and kind in (durable.KIND_ANSWER, KIND_ERROR):
                client = self.clients.get(uid)
                if client is not None:  # it is not the client's
                    client.received[:] = [one for one in client.received if one.number != number]
                said = whole[body:beyond]
                code = dict(decode_headers(whole[headers:body]))["code"].decode() if kind == KIND_ERROR else ""
                self.world.fly("answer", self.name, partial(self.world.heard, number - TAGS, code, said))

    def command(self, uid: int, number: int, command: dict[str, Any]) -> None:
        self.put(uid, durable.KIND_COMMAND, number=number, body=msgspec.json.encode(command))
        self.turn()

    def relinked(self) -> None:
        """The agent's link is lost and made anew."""
        self.core.link_lost(self.link)
        self.clients.clear()
        self.turn()
        self.link = self.core.link_opened()
        self.link.manager = 0

    def crash(self) -> None:
        holding = self.is_holding
        super().crash()
        self.is_holding = holding


class Flying(NamedTuple):
    what: str  # command, answer, settle, sync
    group: str
    boot: int  # of the group, or of the agent: of what was under way before, nothing arrives
    agent: int
    act: Callable[[], None]


class Transfer(NamedTuple):
    """A client that moves one coin from a queue of one group to a queue of another."""

    number: int
    coin: bytes
    source: str
    target: str
    parts: list[Part]
    clients: dict[str, Client]
    secrets: dict[str, dict[str, Any]]

    @property
    def decider(self) -> Part:
        return min(self.parts, key=lambda part: part.lowest)

    @property
    def id(self) -> str:
        return transaction_id(self.decider)


class World:
    kind_of_group = Group

    def __init__(self, folder: Path, names: tuple[str, ...] = ("a", "b"), *, seed: int | None = None) -> None:
        self.flight: list[Flying] = []
        self.random = Random(seed) if seed is not None else None
        self.now_s = 0.0
        self.agent = 0
        self.steps = 0
        self.told: dict[int, str] = {}  # transfer -> committed or an error code
        self.log: list[str] = []
        self.after: Callable[[int], None] = lambda step: None
        self.groups: dict[str, Group] = {}
        for index, name in enumerate(names):
            self.groups[name] = self.kind_of_group(self, name, index, folder / name)
        self.new_agent()
        self.transfers: list[Transfer] = []
        self.verified = 0  # so many of them

    # --- The agent --------------------------------------------------------------------------------------------------
    def new_agent(self) -> None:
        self.agent += 1
        self.coordinator = Coordinator()
        for name, group in self.groups.items():
            if not group.is_down:
                self.carry_out(self.coordinator.back(name, self.now_s))

    def kill_agent(self) -> None:
        self.log.append("kill agent")
        self.agent += 1
        for group in self.groups.values():
            if not group.is_down:
                group.relinked()
        self.new_agent()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.fly("command", effect.group, partial(self._command, effect))
                case Answer(connection, _, facts):
                    assert facts == {"outcome": "committed"}
                    self._tell(connection, "committed")
                case Error(connection, _, code, _):
                    self._tell(connection, code)

    def _tell(self, connection: Any, what: str) -> None:
        assert connection not in self.told, "a client is told once"
        self.told[connection] = what
        self.log.append(f"told {connection} {what}")

    def _command(self, send: Send) -> None:
        group = self.groups[send.group]
        uid = 0
        if send.connection is not None:
            uid = self.transfers[send.connection].clients[send.group].uid  # type: ignore[call-overload]
        group.command(uid, TAGS + send.tag, send.command)
        self.written(send.group)

    def heard(self, tag: int, code: str, said: bytes) -> None:
        if code:
            self.carry_out(self.coordinator.refused(tag, code, said.decode(), self.now_s))
        else:
            self.carry_out(self.coordinator.answer(tag, msgspec.json.decode(said), self.now_s))

    # --- Groups -----------------------------------------------------------------------------------------------------
    def settle(self, sender: str, group: str, message: dict[str, Any]) -> None:
        if group in self.groups:
            self.fly("settle", group, lambda: self._settle(sender, group, message))

    def _settle(self, sender: str, group: str, message: dict[str, Any]) -> None:
        one = self.groups[group]
        one.core.decisions.on_settle(sender, message)
        one.turn()
        self.written(group)

    def written(self, name: str) -> None:
        group = self.groups[name]
        if group.core.safe < group.core.last_index and not any(
            f.what == "sync" and f.group == name for f in self.flight
        ):
            self.fly("sync", name, lambda: self._sync(name))

    def _sync(self, name: str) -> None:
        group = self.groups[name]
        group.core.on_safe(group.core.last_index)
        group.turn()
        self.written(name)

    def crash(self, name: str) -> None:
        """It dies, loses what was not safe, and another life begins."""
        self.stop(name)
        self.start(name)

    def stop(self, name: str) -> None:
        self.log.append(f"crash {name}")
        self.groups[name].is_down = True
        self.carry_out(self.coordinator.lost(name, self.now_s))

    def start(self, name: str) -> None:
        group = self.groups[name]
        group.crash()
        group.is_down = False
        self.carry_out(self.coordinator.back(name, self.now_s))
        self.written(name)

    # --- What is under way ------------------------------------------------------------------------------------------
    def fly(self, what: str, group: str, act: Callable[[], None]) -> None:
        self.flight.append(Flying(what, group, self.groups[group].boots, self.agent, act))

    def step(self) -> bool:
        """Deliver one thing; False: nothing that could arrive is under way."""
        at = self._pick()
        if at is None:
            return False
        one = self.flight.pop(at)
        group = self.groups[one.group]
        lost = group.is_down or (one.what != "settle" and one.boot != group.boots)
        if lost or (one.what in ("command", "answer") and one.agent != self.agent):
            return True
        self.steps += 1
        self.log.append(f"{self.steps} {one.what} {one.group}")
        one.act()
        self._check_order()
        self.after(self.steps)
        return True

    def _check_order(self) -> None:
        """Nobody commits what the decider might still roll back (CLU-163)."""
        for one in self.transfers:
            has = [part for part in one.parts if self._commit_at(part) is not None]
            if has:
                at = self._commit_at(one.decider)
                only = has == [one.decider]
                assert only or (at is not None and at <= self.groups[one.decider.group].core.safe), self.log

    def _commit_at(self, part: Part) -> int | None:
        group = self.groups[part.group]
        head = bytes.fromhex(part.session_id) + part.transaction.to_bytes(8, "little")
        for record in reversed(group.journal.records):
            if record.kind == records.COMMIT and bytes(record.body[:28]) == head:
                return record.index
        return None

    def _pick(self) -> int | None:
        """The first, or any; but over one link everything comes in order."""
        firsts: dict[tuple[str, str], int] = {}
        for at, one in enumerate(self.flight):
            if not self.groups[one.group].is_frozen:
                firsts.setdefault((one.what, one.group), at)
        if not firsts:
            return None
        return min(firsts.values()) if self.random is None else self.random.choice(list(firsts.values()))

    def run(self) -> None:
        while self.step():
            pass

    def settle_down(self, most_s: int = 90) -> None:
        """Time passes until nothing is open."""
        for _ in range(most_s):
            self.run()
            if not len(self.coordinator) and all(
                not len(group.core.prepared) and not group.core.decisions.unfinished for group in self.groups.values()
            ):
                return
            self.later(1.0)
        raise AssertionError("something stays open")

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        for name, group in self.groups.items():
            if not group.is_down and not group.is_frozen:
                group.later(int(seconds * 1000))
                self.written(name)
        self.carry_out(self.coordinator.tick(self.now_s))

    # --- Clients ----------------------------------------------------------------------------------------------------
    def safely(self, holding: bool = False) -> None:
        for group in self.groups.values():
            group.is_holding = holding
            if not holding:
                group.turn()

    def begin(self, source: str, target: str, coin: bytes, *, others: tuple[str, ...] = ()) -> Transfer:
        """A client has taken the coin and sent it on, in a transaction that is not committed yet."""
        self.safely()
        number = len(self.transfers)
        parts: list[Part] = []
        clients: dict[str, Client] = {}
        secrets: dict[str, dict[str, Any]] = {}
        for name in sorted({source, target, *others}):
            group = self.groups[name]
            client = clients[name] = group.client()
            facts = secrets[name] = client.do("session", ack="transacted")
            session, sends = facts["session"], {}
            if name == source:
                wanted = {"messages": 1000, "bytes": 1 << 20}
                consumer = client.do("consume", session=session, destination="q", create=True, **wanted)["consumer"]
                order = next(one.order for one in client.delivered(consumer) if bytes(one.body) == coin)
                client.do("flow", handle=consumer, stop=True)
                for other in {one.order for one in client.delivered(consumer)} - {order}:
                    client.settle(consumer, (other, other + 1, durable.RELEASE))
                client.settle(consumer, (order, order + 1, durable.ACKNOWLEDGE), transaction=number + 1)
            else:
                body = coin if name == target else b"note %d" % number
                queue = "q" if name == target else "notes"
                producer = client.do("produce", session=session, destination=queue, create=True)["producer"]
                client.store(producer, 1, body, ids=facts["ids"][0], transaction=number + 1)
                sends = {str(producer): 1}
            group.turn()
            parts.append(Part(name, session, facts["id"], number + 1, sends, f"{group.index:02x}"))
        one = Transfer(number, coin, source, target, parts, clients, secrets)
        self.transfers.append(one)
        self.safely(holding=True)
        return one

    def commit(self, one: Transfer) -> None:
        self.carry_out(self.coordinator.begin(one.number, 1, one.parts, self.now_s))

    def ask(self, one: Transfer, *, by_id: bool = False) -> str:
        """The client resumes its session with the decider and asks what became of its commit (CLU-127)."""
        self.safely()
        decider = one.decider
        group, facts = self.groups[decider.group], one.secrets[decider.group]
        client = group.client()
        facts["incarnation"] += 1
        resume = {"id": facts["id"], "secret": facts["secret"], "incarnation": facts["incarnation"]}
        session = client.do("session", ack="transacted", resume=resume)["session"]
        about = {"id": one.id} if by_id else {"session": session, "transaction": decider.transaction}
        outcome = str(client.do("outcome", **about)["outcome"])
        self.safely(holding=True)
        return outcome

    # --- What there is ----------------------------------------------------------------------------------------------
    def fill(self, name: str, *coins: bytes) -> None:
        group = self.groups[name]
        self.safely()
        client = group.client()
        facts = client.do("session")
        producer = client.do("produce", session=facts["session"], destination="q", create=True)["producer"]
        client.store(producer, 1, *coins, ids=facts["ids"][0])
        group.turn()
        self.safely(holding=True)

    def held(self, name: str, queue: str = "q") -> list[bytes]:
        """What a consumer that comes now would get: neither hidden nor locked."""
        destination = self.groups[name].core.find(queue)
        if destination is None:
            return []
        cursor = destination.cursors[0]
        return [seen.body for seen in destination.browse(0, 1000).messages if cursor.is_free(seen.order)]

    def leave(self) -> None:
        """All clients go; whatever is locked after that is locked by nobody."""
        for group in self.groups.values():
            group.relinked()
        self.agent += 1
        self.new_agent()
        self.safely()

    def where(self, coin: bytes) -> list[str]:
        return [name for name in self.groups for body in self.held(name) if body == coin]


def verify(world: World) -> None:
    """All groups ended alike, and as the clients were told (CLU-155)."""
    world.leave()
    for one in world.transfers[world.verified :]:
        places = world.where(one.coin)
        assert len(places) == 1, (one.coin, places, world.log)
        told = world.told.get(one.number)
        others = [part.group for part in one.parts if part.group not in (one.source, one.target)]
        notes = [world.held(name, "notes").count(b"note %d" % one.number) for name in others]
        if told in ("committed", "commit-pending"):
            assert places == [one.target], (told, world.log)
        elif told == "transaction-aborted":
            assert places == [one.source], (told, world.log)
        assert all(found == (places == [one.target]) for found in notes), (notes, world.log)
    world.verified = len(world.transfers)
    for group in world.groups.values():
        for destination in group.core.destinations.values():
            facts = destination.facts()
            assert (facts["locked"], facts["transactions"]) == (0, 0), (group.name, facts)
    assert world.coordinator.contradicted == 0
