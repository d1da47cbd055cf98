"""The middle of a message manager: takes frames, safe indexes and time; fills journal and links. It only computes.

It is the `Port` of every destination and the `Host` of sessions, transactions, transfers and administration. One
turn: `take` what came over the links into command queues, `on_safe` what the disk did, `on_time`, `run` the tasks a
bounded while, `finish` what was gathered for the links. Whatever may be told to anybody waits in `after` until it is
safe (CLU-116).
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from fairlead.cluster.admin import Admin
from fairlead.cluster.allowances import Allowances
from fairlead.cluster.bulk import Bulk
from fairlead.cluster.decisions import Decisions
from fairlead.cluster.deliveries import Deliveries, taker_of
from fairlead.cluster.demux import Frame
from fairlead.cluster.destination import Destination
from fairlead.cluster.destination_manager import POSTED, DestinationManager
from fairlead.cluster.directory_keeping import DirectoryKeeping
from fairlead.cluster.dispatchers import Dispatchers
from fairlead.cluster.flow import Flow
from fairlead.cluster.names import (
    NAMES_PER_FRAME,
    Announcements,
    Names,
)
from fairlead.cluster.options import AT_START, Options
from fairlead.cluster.outgoing import Link, chunked, chunks_of, encode_json
from fairlead.cluster.own_sends import OwnSends
from fairlead.cluster.parameters import Kind, Parameters
from fairlead.cluster.parties import Consumer, Line, Producer, Session
from fairlead.cluster.port import Bytes
from fairlead.cluster.prepared import Preparations
from fairlead.cluster.publishing import publishes_of
from fairlead.cluster.scans import Reader
from fairlead.cluster.sessions import Sessions
from fairlead.cluster.showcase import Showcase
from fairlead.cluster.stages import Stages
from fairlead.cluster.tally import Tally
from fairlead.cluster.tasks import HoldMe, Marks, Scheduler, Task
from fairlead.cluster.timers import Timers
from fairlead.cluster.transactions import Transactions
from fairlead.cluster.transfers import Transfers
from fairlead.cluster.uploads import Files
from fairlead.errors import FairleadError, StoreFull
from fairlead.journal.faults import JournalFailed
from fairlead.journal.index import Pool
from fairlead.wire import durable
from fairlead.wire.headers import encode_headers
from fairlead.wire.kinds import FLAG_IDENTITY, FRAGMENT_BYTES_MAX, KIND_PUBLISH

GROUP: Final = "a"
"""All destinations of a server without a cluster live in one group of this name."""
HANDLE_BITS: Final = 24  # numbers of sessions and handles below the index of their group
MESSAGE_BITS: Final = 48  # numbers of message ids below it


class Journal(Protocol):
    """What is asked of the journal while records are written."""

    hurry: bool  # somebody waits for what is pending to be written

    @property
    def full(self) -> str:
        """Why messages are refused at the moment; empty: they are not."""

    def append(self, kind: int, head: Bytes, payload: Bytes = b"") -> tuple[int, int]: ...

    def read(self, place: int, size: int) -> memoryview | None: ...

    def fetch(self, place: int, size: int) -> memoryview:
        """The same, however long it takes: for a start."""


class World(Protocol):
    """What only an edge can do."""

    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run the job in a thread, then `then` in the loop, with its result or the exception."""

    def token(self) -> bytes: ...

    def new_id(self, kind: str) -> bytes: ...

    def log(self, record: dict[str, Any]) -> None:
        """Hand a record to the log task's thread."""


class Core:
    """One message manager."""

    def __init__(
        self,
        journal: Journal,
        world: World,
        settings: Options,
        large: Files,
        *,
        now_ms: int = 0,
        pool: Pool | None = None,
        reader: Reader | None = None,
        group: str = GROUP,
        index: int = 0,
    ) -> None:
        self.now_ms = now_ms
        self.settings = settings
        self.group = group
        self.index = index  # of the group in the configuration; numbers given here say it
        self.handles = index << HANDLE_BITS  # below every session number and handle given here
        self.follows = False  # another member leads the group: nothing is written and nobody served here
        self.epoch = 0
        self.journal = journal
        self.world = world
        self.links: dict[int, Link] = {}
        self.last_index = 0
        self.written_bytes = 0
        self.safe = 0
        self.faults = 0
        self.tasks = Scheduler(_marks_of(settings), self._on_mark, self._on_fault)
        self.session_task, self.reliability_task, self.admin_task, self.manager_task, self.log_task = (
            self.tasks.add(Task(name, "single"))
            for name in ("session-manager", "reliability-manager", "admin-manager", "destination-manager", "log")
        )
        self.tasks.add(Task("configuration-distributor", "single"))
        self.tally = Tally()
        self.showcase = Showcase()
        self.timers = Timers()
        self.names = Names(self, pool)
        self.announcements = Announcements()
        self.manager = DestinationManager(self)
        self.own = OwnSends(self)
        self.flow = Flow(self)
        self.allowances = Allowances(self)
        self.dispatchers = Dispatchers(self)
        self.sessions = Sessions(self)
        self.transactions = Transactions(self)
        self.prepared = Preparations(self)
        self.decisions = Decisions(self)
        self.settle_send: Callable[[str, dict[str, Any]], None] = lambda group, message: None  # a cluster has another
        self.copies: Callable[[], int] = lambda: 1  # of everything kept here, on as many nodes
        self.holders: Callable[[], dict[str, tuple[int, bool]]] = dict  # by node: durable up to, and whether in sync
        self.deliveries = Deliveries()
        self.started_ms = now_ms
        self.transfers = Transfers(self, large)
        self.admin: Admin = Admin(self)
        self.stages: Stages = Stages(self)
        self.bulk = Bulk(self, reader)
        self.directory = DirectoryKeeping(self)
        self.sessions.commands.update(self.bulk.commands)
        self._actions: list[tuple[int, int, Callable[[], None]]] = []
        self._action_number = 0
        self._stored: dict[Producer, bytearray] = {}
        self._loading: dict[int, list[Destination | None]] = {}
        self._link_number = 0
        self.next_message = index << MESSAGE_BITS | 1

    def configure(self, settings: Options) -> None:
        """Other values of `[messages]`; those in `AT_START` wait for the next start."""
        kept = {name: getattr(self.settings, name) for name in AT_START}
        self.settings = replace(settings, **kept)
        self.tasks.marks = _marks_of(self.settings)
        self.directory.configure()

    # --- Port: records --------------------------------------------------------------------------------------------
    def append(self, kind: int, head: Bytes, payload: Bytes = b"") -> tuple[int, int]:
        index, place = self.journal.append(kind, head, payload)
        self.last_index = index
        self.written_bytes += len(head) + len(payload)
        return index, place

    def read(self, place: int, size: int) -> memoryview | None:
        found = self.journal.read(place, size)
        if found is None:
            task = self.tasks.current
            reader = task.key if task is not None and isinstance(task.key, Destination) else None
            readers = self._loading.setdefault(place, [])
            if reader not in readers:
                readers.append(reader)
        return found

    def after(self, index: int, action: Callable[[], None], *, patient: bool = False) -> None:
        if index <= self.safe and not (self._actions and self._actions[0][0] <= index):
            action()
            return
        if not patient:
            self.journal.hurry = True
        self._action_number += 1
        heapq.heappush(self._actions, (index, self._action_number, action))

    # --- Port: to the clients -------------------------------------------------------------------------------------
    def deliver(self, consumer: Consumer, pieces: Sequence[Bytes]) -> None:
        line = consumer.session.line
        link = self.links.get(line.link) if line is not None else None
        if line is None or link is None:
            return
        size = sum(map(len, pieces))
        self.tally.deliver(pieces, size)
        if consumer.taker is None:
            consumer.taker = taker_of(consumer, line.client)
        self.deliveries.add(self.now_ms, consumer.taker, pieces)
        if size <= FRAGMENT_BYTES_MAX:
            link.pieces(line.uid, line.index, durable.KIND_DELIVER, consumer.handle, pieces, size)
        else:
            for group, part in chunked(pieces):
                link.pieces(line.uid, line.index, durable.KIND_DELIVER, consumer.handle, group, part)
        if link.is_full:
            self.flow.link_full(link)

    def stored(self, producer: Producer, first: int, count: int, status: int, order: int, arrival_ms: int) -> None:
        self.tally.receipt(status, count)
        if producer.session.line is not None:
            item = durable.STORED_ITEM.pack(first, count, status, order, arrival_ms)
            items = self._stored.get(producer)
            if items is None:
                self._stored[producer] = bytearray(item)
            else:
                items += item

    def settled(self, consumer: Consumer, tag: int, stale: Sequence[tuple[int, int]]) -> None:
        line = consumer.session.line
        if line is not None:
            body = b"".join(durable.RANGE.pack(first, beyond) for first, beyond in stale)
            self.send(line, durable.KIND_SETTLED, number=consumer.handle, peer=tag, body=body)

    def notice(self, session: Session, **facts: Any) -> None:
        if session.line is not None:
            self.send(session.line, durable.KIND_NOTICE, number=0, body=encode_json(facts))

    def broadcast(self, destination: Destination, entries: Bytes, link: int) -> None:
        ways = [way for way in self._ways(link) if self._takes(way, link)]
        if not ways:
            return
        topic = destination.name.encode()
        for headers, body, identified in publishes_of(entries):
            flags = FLAG_IDENTITY if identified else 0
            for way in ways:
                way.frame(0, 0, KIND_PUBLISH, flags=flags, topic=topic, headers=headers, body=body)

    def large(self, session: Session, entries: Bytes) -> Bytes:
        return self.transfers.admit(session, entries)

    def large_kept(self, transfer: int) -> None:
        self.transfers.kept(transfer)

    def large_gone(self, transfer: int) -> None:
        self.transfers.gone(transfer)

    def find(self, name: str) -> Destination | None:
        return self.names.find(self.manager.own_name(name))

    def ready(self, destination: Destination) -> None:
        place = self.names.by_number.get(destination.number)
        if place is not None:
            self.tasks.ready(place.task)

    def wake_at(self, destination: Destination, ms: int) -> None:
        def tick() -> None:
            place = self.names.by_number.get(destination.number)
            if place is not None and place.destination is destination:
                self.tasks.put(place.task, 0, None, lambda: destination.on_tick(self.now_ms))

        self.timers.at(ms, tick, destination)

    def event(self, level: str, code: str, text: str, **ids: Any) -> None:
        if self.follows:  # whoever leads has it in the group's log
            self.world.log(
                {"ms": self.now_ms, "node": self.admin.node, "level": level, "code": code, "text": text, **ids}
            )
        else:
            self.own.event(level, code, text, **ids)

    def note(self, record: Mapping[str, Any]) -> None:
        """An event that another process of the server has to tell: a login, a refusal, a change of rights."""
        ids = {name: value for name, value in record.items() if name not in ("do", "level", "code", "text")}
        self.event(str(record.get("level", "info")), str(record.get("code", "")), str(record.get("text", "")), **ids)

    # --- Host: to the clients -------------------------------------------------------------------------------------
    def answer(self, line: Line, number: int, facts: Mapping[str, Any]) -> None:
        self.send(line, durable.KIND_ANSWER, number=number, body=encode_json(facts))

    def answer_long(self, line: Line, number: int, body: bytes) -> None:
        """An ANSWER of any length, in as many frames as it takes."""
        for flags, piece in chunks_of(body):
            self.send(line, durable.KIND_ANSWER, number=number, flags=flags, body=piece)

    def error(self, line: Line, number: int, code: str, text: str) -> None:
        link = self.links.get(line.link)
        if link is not None:
            link.error(line.uid, line.index, number, code, text)

    def send(
        self,
        line: Line,
        kind: int,
        *,
        number: int,
        correlation: int = 0,
        peer: int = 0,
        flags: int = 0,
        body: Bytes = b"",
    ) -> bool:
        link = self.links.get(line.link)
        if link is None:
            return True  # nobody is there to miss it
        if link.is_full and kind == durable.KIND_DATA:
            return False
        link.frame(
            line.uid, line.index, kind, number=number, correlation=correlation, peer=peer, flags=flags, body=body
        )
        return True

    def publish(
        self, topic: str, body: Bytes, headers: Sequence[tuple[str, bytes | str]] = (), *, link: int = -1
    ) -> None:
        section = encode_headers(headers)
        for way in self._ways(link)[:1]:
            way.frame(0, 0, KIND_PUBLISH, topic=topic.encode(), headers=section, body=body)

    def _ways(self, link: int) -> list[Link]:
        """One link to each client manager: that which a message came from first, of other nodes the oldest (CLU-1).

        A node's links have an order of their own, so one that stays keeps what one producer sent in its order.
        """
        came = self.links.get(link)
        ways = {} if came is None else {came.node: came}
        for one in self.links.values():
            if one.carries_broadcasts and one.node not in ways:
                ways[one.node] = one
        return list(ways.values())

    def _takes(self, way: Link, link: int) -> bool:
        """Has it room? Nobody waits for a node that is not the sender's: its transient subscribers miss something."""
        if way.is_full and way.node and way.number != link:
            way.missed += 1
            return False
        if way.missed:
            missed, way.missed = way.missed, 0
            text = f"{way.node} took no more for a while: its transient subscribers missed {missed} batches."
            self.event("warning", "broadcasts-missed", text, client_manager=way.node, count=missed)
        return True

    @property
    def is_link_full(self) -> bool:
        """Does a manager that broadcasts go through take no more for the moment?"""
        return any(way.is_full for way in self._ways(-1))

    # --- Host: work -----------------------------------------------------------------------------------------------
    @property
    def destinations(self) -> Mapping[int, Destination]:
        return self.names.destinations

    def post(self, destination: Destination, action: Callable[[], None], *, holdable: bool = False) -> None:
        place = self.names.by_number.get(destination.number)
        task = self.manager_task if place is None else place.task
        self.tasks.put(task, 0, POSTED, action, holdable=holdable)

    def call_at(self, ms: int, action: Callable[[], None]) -> None:
        self.timers.at(ms, action)

    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.world.work(job, then)

    def token(self) -> bytes:
        return self.world.token()

    def new_session_id(self) -> bytes:
        return self.world.new_id("session")

    def id_block(self, count: int) -> int:
        first = self.next_message
        self.next_message += count
        return first

    def needs(self, first: int, last: int) -> bool:
        """Is any record with an index from the first to the last staged or prepared?"""
        return self.stages.needs(first, last) or self.prepared.needs(first, last)

    def is_blocked(self, destination: Destination) -> bool:
        """Must its producers wait, for whatever reason?"""
        return destination.blocked or self.flow.is_blocked(destination)

    def create(
        self, name: str, kind: Kind, parameters: Parameters, *, owner: bytes = b"", reserved: bool = False
    ) -> Destination:
        return self.manager.create(name, kind, parameters, owner=owner, reserved=reserved)

    def delete(self, destination: Destination, reason: str) -> int:
        return self.manager.delete(destination, reason)

    def create_well_known(self) -> None:
        self.manager.create_well_known()

    # --- Commands -------------------------------------------------------------------------------------------------
    def store(
        self,
        producer: Producer,
        first: int,
        transaction: int,
        sent_ms: int,
        id_first: int,
        entries: memoryview,
        link: int,
    ) -> None:
        """A STORE, in its destination's task."""
        if self.journal.full:
            raise HoldMe
        destination = producer.destination
        if transaction and not self.transactions.touch(producer.session, transaction, destination):
            return
        try:
            destination.on_store(producer, first, transaction, sent_ms, id_first, entries, link)
        except FairleadError as fault:
            self.hold_if_full(fault)
            facts = {"producer": producer.handle, "first": first, "code": fault.code, "text": fault.text}
            self.notice(producer.session, event="refused", **facts)

    def hold_if_full(self, fault: FairleadError) -> None:
        """No room for what this command brings: it waits."""
        if fault.code == StoreFull.code:
            self.flow.store_full(fault.text)
            raise HoldMe from None

    def settle(self, consumer: Consumer, items: list[tuple[int, int, int, int]], transaction: int, tag: int) -> None:
        """A SETTLE in a transaction, in its destination's task. If that is over, what was taken in it comes again."""
        if self.transactions.touch(consumer.session, transaction, consumer.destination):
            consumer.destination.on_settle(consumer, items, transaction, tag)
        else:
            returned = [(first, beyond, durable.RETURN, 0) for first, beyond, _, _ in items]
            consumer.destination.on_settle(consumer, returned, 0, tag)

    def command(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """A COMMAND of a client, in the session manager's task."""
        self.sessions.on_command(line, number, request)

    # --- Links ----------------------------------------------------------------------------------------------------
    def link_opened(self, node: str = "", *, carries_broadcasts: bool = False) -> Link:
        """`node`: the client manager at its other end, in a cluster; else it carries broadcasts after its hello."""
        self._link_number += 1
        number = self._link_number
        link = self.links[number] = Link(number, node, carries_broadcasts=carries_broadcasts)
        return link

    def link_lost(self, link: Link) -> None:
        """The manager is gone, or its link: every connection of it lost its holder (CLU-62)."""
        self.links.pop(link.number, None)
        link.is_open = False
        link.out.clear()
        link.bytes = 0
        self.announcements.lost(link)
        for line in list(link.lines.values()):
            self.tasks.put(self.reliability_task, 0, None, self.line_gone, link, line)

    def line_gone(self, link: Link, line: Line) -> None:
        if link.lines.get(line.uid) is line:
            del link.lines[line.uid]
            self.sessions.on_gone(line)
            self.bulk.on_gone(line)

    def link_command(self, link: Link, number: int, request: dict[str, Any]) -> None:
        do = request.get("do")
        if do == "hello":
            link.manager = request["manager"] if isinstance(request.get("manager"), int) else 0
            link.carries_broadcasts = link.carries_broadcasts or not link.node
            link.announced = self.announcements.number
            names = self.names.listed()
            facts = {"names": names[:NAMES_PER_FRAME], "count": len(names), "group": self.group, "epoch": self.epoch}
            link.json(0, 0, durable.KIND_ANSWER, number, facts)
            for at in range(NAMES_PER_FRAME, len(names), NAMES_PER_FRAME):
                more = {"do": "announce", "add": names[at : at + NAMES_PER_FRAME], "remove": [], "number": 0}
                link.json(0, 0, durable.KIND_COMMAND, 0, more)
        elif do == "announced" and isinstance(request.get("number"), int):
            self.announcements.acknowledged(link, request["number"])
        elif do in self.decisions.commands:
            self.decisions.on_command(Line(link.number, 0, 0), number, request)
        elif do == "event":
            self.note(request)
        elif do == "admin":
            self.admin.on_link(link, number, request)
        else:
            self.dispatchers.dropped["link"] += 1
            link.error(0, 0, number, "bad-request", f"There is no link command {do!r:.60}.")

    # --- The turn -------------------------------------------------------------------------------------------------
    def take(self, link: Link, view: memoryview, frames: list[Frame]) -> None:
        """Frames that came over a link."""
        self.dispatchers.take(link, view, frames)

    def on_safe(self, index: int) -> None:
        """Everything up to this index is on stable storage."""
        self.safe = max(self.safe, index)
        actions = self._actions
        while actions and actions[0][0] <= self.safe:
            self.carry_out(heapq.heappop(actions)[2])

    def on_loaded(self, places: Sequence[int]) -> None:
        """These were fetched from disk."""
        for place in places:
            for reader in self._loading.pop(place, ()):
                if reader is not None and reader.number in self.names.by_number:
                    task = self.names.by_number[reader.number].task
                    self.tasks.put(task, 0, None, reader.on_loaded, place)

    def on_time(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for action in self.timers.due(now_ms):
            self.carry_out(action)

    def run(self) -> bool:
        """The tasks, a bounded while. True: more to do."""
        return self.tasks.run()

    def finish(self) -> None:
        """What the turn gathered, into the links."""
        if self._stored:
            for producer, items in self._stored.items():
                line = producer.session.line
                if line is not None:
                    self.send(line, durable.KIND_STORED, number=producer.handle, body=items)
            self._stored.clear()
        self.announcements.send(self.links)
        self.bulk.scans.feed()

    # --- What goes wrong ------------------------------------------------------------------------------------------
    def _on_mark(self, task: Task, over: bool) -> None:
        if isinstance(task.key, Destination):
            self.flow.over_mark(task.key, over)

    def carry_out(self, action: Callable[[], None]) -> None:
        """Something that was to follow; if it fails, what follows it still happens."""
        try:
            action()
        except Exception as error:
            self._on_fault(self.reliability_task, None, error)

    def fault(self, line: Line, number: int, error: Exception) -> None:
        """A command failed in a way nobody foresaw, after its task had gone on."""
        self._on_fault(self.reliability_task, None, error)
        self.error(line, number, "internal", "The server met a fault of its own; its log says more.")

    def _on_fault(self, task: Task, origin: object, error: Exception) -> None:
        """A command failed in a way nobody foresaw: its sender is told, the log says where.

        Only a failed journal is everybody's end.
        """
        if isinstance(error, JournalFailed):
            raise error
        self.faults += 1
        where = "".join(traceback.format_exception(error))
        self.event("error", "task-fault", f"A command of task {task.name!r} failed: {error!r}", where=where[-4000:])
        if isinstance(origin, Line):
            code, text = (error.code, error.text) if isinstance(error, FairleadError) else ("internal", "")
            self.error(origin, 0, code, text or "The server met a fault of its own; its log says more.")


def _marks_of(settings: Options) -> Marks:
    return Marks(
        settings.high_water_commands, settings.low_water_commands, settings.high_water_bytes, settings.low_water_bytes
    )
