"""The durable road of one connection: its sessions, the frames that come for them, and losses of every kind.

A lost connection, a lost manager and a restarted message manager are one case for the parts of sessions that they
concern: `on_lost`, and in time `open`. In a cluster one group may be lost and the others not. What is to be said is
gathered during a turn; `flush`, called at the end of it, makes frames of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fairlead.client.durable.commands import Command, Facts, facts_of
from fairlead.client.durable.commit import Doubt
from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.group import PAUSE_FIRST_S, PAUSE_MAX_S, Group
from fairlead.client.durable.notices import tell_consumer, tell_producer
from fairlead.client.durable.places import Places
from fairlead.client.durable.producer import Producer
from fairlead.client.durable.session import DurableSession
from fairlead.errors import ConnectionLost, FairleadError, NoMessageManager
from fairlead.message import Message
from fairlead.wire import durable
from fairlead.wire.codec import encode_frame

__all__ = ["Road", "Way"]

LATE_FRAMES_MAX = 1024


class Way(Protocol):
    """The connection as the road needs it (`Outgoing`)."""

    def send(self, frame: bytes) -> None: ...

    def next_command(self) -> int: ...


class Flushed(Protocol):
    """Has something to say at the end of the turn."""

    def flush(self) -> None: ...


class Road:
    """`now_ms` is the calendar clock; `later` calls back after so many seconds; `wake` asks for a `flush` soon."""

    def __init__(
        self,
        way: Way,
        *,
        client_name: str,
        limit_s: float,
        now_ms: Callable[[], int],
        later: Callable[[float, Callable[[], None]], object],
        wake: Callable[[], None],
        write: Callable[[], None],
    ) -> None:
        self.way = way
        self.client_name = client_name
        self.limit_s = limit_s
        self.now_ms = now_ms
        self.later = later
        self.connected = False  # to a manager, whatever is behind it
        self.ended: Exception | None = None
        self.is_known = False  # whether there is a cluster
        self.groups: tuple[str, ...] = ()  # of the cluster, if there is one
        self.first = Group(self, "")  # where sessions are at home
        self.scouted = ""  # a group that may be asked in place of the first, which does not answer
        self.places = Places(self)
        self.doubts: dict[str, Doubt] = {}  # transactions of which nobody knew whether they were committed, by id
        self.sessions: list[DurableSession] = []
        self.handles: dict[int, Producer | DurableConsumer] = {}
        self.opening = 0  # `consume` commands that are not answered
        self.listeners: list[Callable[[], None]] = []  # told when room, blocking or the state of a session changed
        self.stale = 0  # settlements that came too late, and whose outcome nobody asked for
        self.fragment = 262_144
        self._others: dict[str, Group] = {}
        self._wake = wake
        self._write = write
        self._commands: dict[int, Command] = {}
        self._answers: dict[int, list[bytes]] = {}  # of which more is to come
        self._waiting: list[Command] = []  # for a line
        self._dirty: dict[Flushed, None] = {}
        self._late: dict[int, list[bytes]] = {}
        self._changed = False

    # Groups.

    @property
    def is_cluster(self) -> bool:
        """Are there several groups? With one, everything is as without a cluster."""
        return len(self.groups) > 1

    @property
    def is_live(self) -> bool:
        """Can commands that belong to no session be asked?"""
        return self.connected and (self.first.is_live or self.is_cluster)

    def group(self, name: str) -> Group:
        if not self.is_cluster or name == self.first.name:
            return self.first
        found = self._others.get(name)
        if found is None:
            found = self._others[name] = Group(self, name, is_live=self.connected)
        return found

    def _all_groups(self) -> list[Group]:
        return [self.first, *self._others.values()]

    def learn(self, facts: Facts, first: Group | None = None) -> None:
        """An answer may say which groups there are; that to a `session` says that there are none by silence."""
        names = facts.get("groups")
        if names is None and first is not self.first:
            return
        groups = tuple(str(name) for name in names or ())
        if groups and not self.first.name:
            named = str(facts.get("group") or "") if first is not None else ""
            self.first.name = named or groups[0]
        self.is_known = True
        self._take_groups(groups)

    def on_scouted(self, group: str, error: Exception | None) -> None:
        if error is None and group and not self.is_known and group != self.scouted:
            self.scouted = group
            if self.connected:
                self.on_group_live(self.first)

    def _take_groups(self, groups: tuple[str, ...]) -> None:
        if groups != self.groups and (groups or not self.groups):
            self.groups = groups
            if self.is_cluster:
                for session in list(self.sessions):
                    session.on_groups()

    # Opening and asking.

    def session(self, ack: str) -> DurableSession:
        made = DurableSession(self, ack)
        if self.ended is not None:
            made.fail(self.ended)
        else:
            self.sessions.append(made)
        return made

    def forget(self, session: DurableSession) -> None:
        if session in self.sessions:
            self.sessions.remove(session)

    def ask(self, command: Command) -> None:
        if self.ended is not None:
            command.reply({}, self.ended)
        elif self._can_ask(command):
            number = self.way.next_command()
            self._commands[number] = command
            self.send(encode_frame(durable.KIND_COMMAND, 0, number, 0, 0, b"", b"", command.encode()))
            self._wake()
        else:
            self._on_no_line(command)

    def _can_ask(self, command: Command) -> bool:
        if command.part is not None:
            return command.part.group.is_live
        if command.apart:
            return self.connected
        return self.is_live or (self.connected and not self.is_known and command.do == "locate")

    def _on_no_line(self, command: Command) -> None:
        match command.on_loss:
            case "again" if command.part is not None and command.of_session:
                command.part.ask(command)
            case "again":
                self._waiting.append(command)
            case "moot":
                command.reply({}, None)
            case "fail":
                command.reply({}, ConnectionLost("The connection was lost before the answer came."))
            case "drop":
                pass

    # What is said.

    def send(self, frame: bytes) -> None:
        self.way.send(frame)

    def touch(self, one: Flushed) -> None:
        """It has something to say when this turn ends."""
        if not self._dirty:
            self._wake()
        self._dirty[one] = None

    def flush_early(self, one: Flushed) -> None:
        """It has much to say: the other side can begin with it."""
        one.flush()
        self._write()

    def flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for one in dirty:
            one.flush()
        if self._changed:
            self._changed = False
            for listener in list(self.listeners):
                listener()

    def changed(self) -> None:
        """Somebody may go on now."""
        if not self._changed:
            self._changed = True
            self._wake()

    # What comes.

    def on_connected(self) -> None:
        self.connected = True
        if self.ended is None:
            for group in self._all_groups():
                self.on_group_live(group)

    def on_disconnected(self) -> None:
        """The line is gone, and with it everything that was under way on it."""
        self.connected = False
        self._late.clear()
        self._answers.clear()
        self.opening = 0
        self.handles.clear()
        self._dirty.clear()
        commands, self._commands = self._commands, {}
        for group in self._all_groups():
            group.on_lost(limited=False)
        for command in commands.values():
            self._on_no_line(command)
        self.changed()

    def on_group_live(self, group: Group) -> None:
        """There is a line to it, as far as we know."""
        if self.ended is not None:
            return
        group.on_live()
        if self.is_live:
            waiting, self._waiting = self._waiting, []
            for command in waiting:
                self.ask(command)

    def on_group_lost(self, group: Group) -> None:
        """It cannot be reached, while others may be: what is there is lost, and what was asked of it unanswered."""
        if not group.is_live:
            return
        numbers = group.numbers
        lost = {number: command for number, command in self._commands.items() if self._was_for(command, group)}
        for number, command in lost.items():
            del self._commands[number]
            self._answered(command)
        self.handles = {handle: party for handle, party in self.handles.items() if party.part.group is not group}
        self._late = {handle: late for handle, late in self._late.items() if handle >> 24 not in numbers}
        group.on_lost(limited=True)
        for command in lost.values():
            if command.part is None and self.is_cluster:
                self.ask(command)  # nobody knows which group it was for
            else:
                self._on_no_line(command)
        for session in list(self.sessions) if not self.is_known else ():
            session.scout()
        self.changed()

    def _was_for(self, command: Command, group: Group) -> bool:
        if command.part is not None:
            return command.part.group is group
        if command.apart:
            return False
        return not self.is_cluster or command.on_loss == "again"

    def on_given_up(self, group: Group, error: Exception) -> None:
        """It stayed away too long: whoever waits for it is told."""
        for part in list(group.parts):
            part.fail(error)
        if not self.is_cluster:
            self._fail(error)
        self.changed()

    def missed(self) -> None:
        """Somebody waits for a message manager that is not there."""
        self.first.missed()

    def end(self, error: Exception) -> None:
        """There will be no further line."""
        if self.ended is None:
            self.ended = error
            self.connected = False
            for group in self._all_groups():
                group.is_live = False
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for session in list(self.sessions):
            session.fail(error)
        commands = [*self._commands.values(), *self._waiting]
        self._commands, self._waiting = {}, []
        for command in commands:
            command.reply({}, error)
        self.changed()

    def on_frames(self, run: list[Message]) -> None:
        """Frames of one kind, 0x70 … 0x7F."""
        kind = run[0].kind
        for message in run:
            if kind == durable.KIND_STORED:
                party = self.handles.get(message.number)
                if isinstance(party, Producer):
                    party.on_stored(message.body)
            elif kind == durable.KIND_DELIVER:
                self._on_deliver(message.number, message.body)
            elif kind == durable.KIND_SETTLED:
                party = self.handles.get(message.number)
                if isinstance(party, DurableConsumer):
                    party.on_settled(message.number, message.sender, message.body)
            elif kind == durable.KIND_DATA:
                party = self.handles.get(message.number)
                if isinstance(party, DurableConsumer):
                    party.on_data(message.correlation, message.sender, message.flags, message.body)
            elif kind == durable.KIND_ANSWER:
                self._on_answer(message.number, message.flags, message.body)
            elif kind == durable.KIND_NOTICE:
                self._on_notice(facts_of(message.body))

    def on_error(self, number: int, error: FairleadError) -> bool:
        """An ERROR with a number; False: it is not one of ours."""
        command = self._commands.pop(number, None)
        if command is None:
            return False
        self._answered(command)
        if isinstance(error, NoMessageManager) and command.do != "session":
            self._on_no_line_behind(command, error)
        else:
            self._reply(command, {}, error)
        return True

    def _on_no_line_behind(self, command: Command, error: Exception) -> None:
        if command.do == "locate" and not self.is_known:
            self._reply(command, {}, error)  # only to find out whether anybody knows
            return
        if command.do == "commit":
            command.reply({}, ConnectionLost("The message manager cannot be reached."))
        if command.part is not None:
            command.part.group.unreachable()
        elif not self.is_cluster:
            self.first.unreachable()
        else:
            self._ask_later(command, error)
            return
        if command.do != "commit":
            self._on_no_line(command)

    def _ask_later(self, command: Command, error: Exception) -> None:
        """Of a command for whoever is meant we do not know whose return to wait for: it is asked again and again."""
        if command.do == "commit" or command.on_loss != "again":
            return
        if not command.refusals:
            self.later(self.limit_s, lambda: self._tired_of(command, error))
        command.refusals += 1
        pause_s = min(PAUSE_FIRST_S * 2**command.refusals, PAUSE_MAX_S)
        self.later(pause_s, lambda: None if command.is_over else self.ask(command))

    def _tired_of(self, command: Command, error: Exception) -> None:
        if not command.is_over:
            self._reply(command, {}, error)

    def _reply(self, command: Command, facts: Facts, error: Exception | None) -> None:
        if not command.is_over:
            command.is_over = True
            command.reply(facts, error)

    def _answered(self, command: Command) -> None:
        if command.do == "consume" and self.opening:
            self.opening -= 1

    def _on_answer(self, number: int, flags: int, body: bytes) -> None:
        if flags & durable.FLAG_MORE:
            if number in self._commands:
                self._answers.setdefault(number, []).append(body)
            return
        if self._answers and (before := self._answers.pop(number, None)):
            body = b"".join((*before, body))
        command = self._commands.pop(number, None)
        if command is not None:
            group = self.first if command.part is None else command.part.group
            if group.is_missing and not command.apart:
                group.reached()
            self._answered(command)
            self._reply(command, facts_of(body), None)

    def _on_deliver(self, handle: int, body: bytes) -> None:
        party = self.handles.get(handle)
        if isinstance(party, DurableConsumer):
            party.on_deliver(handle, body)
        elif self.opening and len(self._late) < LATE_FRAMES_MAX:
            self._late.setdefault(handle, []).append(body)  # came before the answer that names the handle

    def late(self, *handles: int) -> None:
        """These are known now; of a pattern, the handles of all its topics."""
        for handle in handles:
            for body in self._late.pop(handle, ()):
                self._on_deliver(handle, body)
        if not self.opening:
            self._late.clear()

    def _on_notice(self, facts: Facts) -> None:
        event = facts.get("event")
        if event in ("interrupted", "back", "groups"):
            self._on_groups_notice(str(event), facts)
            return
        handle = facts.get("producer") or facts.get("consumer") or facts.get("handle") or 0
        party = self.handles.get(handle)
        if isinstance(party, Producer):
            tell_producer(party, str(event), facts)
        elif isinstance(party, DurableConsumer):
            tell_consumer(party, str(event), facts)

    def _on_groups_notice(self, event: str, facts: Facts) -> None:
        if event == "groups":
            self._take_groups(tuple(str(name) for name in facts.get("groups") or ()))
            return
        name = facts.get("group")
        concerned = self._all_groups() if name is None else [self.group(str(name))]
        for group in concerned:
            if event == "interrupted":
                self.on_group_lost(group)
            elif self.connected:
                self.on_group_live(group)
                if not self._commands:
                    group.reached()  # nothing was asked that could tell
        if event == "interrupted" and name is None:
            self._on_coordinator_lost()

    def _on_coordinator_lost(self) -> None:
        """Whoever stands before all groups is gone: what it alone would have answered nobody does."""
        for number, command in list(self._commands.items()):
            if command.part is None and command.on_loss == "fail":
                del self._commands[number]
                self._on_no_line(command)
