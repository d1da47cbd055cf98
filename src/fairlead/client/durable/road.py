"""The durable road of one connection: its sessions, the frames that come for them, and losses of every kind.

A lost connection, a lost manager and a restarted message manager are one case: `on_lost`, and in time `on_live`. What
is to be said is gathered during a turn; `flush`, called at the end of it, makes frames of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fairlead.client.durable.commands import Command, Facts, facts_of
from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.producer import Producer
from fairlead.client.durable.session import DurableSession
from fairlead.errors import ConnectionLost, FairleadError, NoMessageManager, from_wire
from fairlead.message import Message
from fairlead.wire import durable
from fairlead.wire.codec import encode_frame

__all__ = ["Road", "Way"]

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0
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
        self.now_ms = now_ms
        self.later = later
        self.connected = False  # to a manager, whatever is behind it
        self.is_live = False
        self.ended: Exception | None = None
        self.sessions: list[DurableSession] = []
        self.handles: dict[int, Producer | DurableConsumer] = {}
        self.opening = 0  # `consume` commands that are not answered
        self.listeners: list[Callable[[], None]] = []  # told when room, blocking or the state of a session changed
        self.stale = 0  # settlements that came too late, and whose outcome nobody asked for
        self.fragment = 262_144
        self._wake = wake
        self._write = write
        self._limit_s = limit_s
        self._commands: dict[int, Command] = {}
        self._waiting: list[Command] = []  # for a line
        self._dirty: dict[Flushed, None] = {}
        self._late: dict[int, list[bytes]] = {}
        self._missing = 0  # counts interruptions while one lasts
        self._losses = 0
        self._pause_s = PAUSE_FIRST_S
        self._retrying = False
        self._changed = False

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
        elif self.is_live:
            number = self.way.next_command()
            self._commands[number] = command
            self.send(encode_frame(durable.KIND_COMMAND, 0, number, 0, 0, b"", b"", command.encode()))
            self._wake()
        else:
            self._on_no_line(command)

    def _on_no_line(self, command: Command) -> None:
        match command.on_loss:
            case "again" if command.session is not None:
                command.session.ask(command)
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

    def on_live(self) -> None:
        """There is a line to the message manager, as far as we know."""
        if self.ended is not None:
            return
        self.is_live = True
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            self.ask(command)
        for session in list(self.sessions):
            if session.id or session.producers or session.consumers or session.waiting:
                session.open()

    def on_lost(self, *, limited: bool = False) -> None:
        """The line is gone; with `limited` it is for us to give up when it stays away."""
        if not self.is_live:
            return
        self.is_live = False
        self._late.clear()
        self.opening = 0
        self.handles.clear()
        self._dirty.clear()
        commands, self._commands = self._commands, {}
        for session in list(self.sessions):
            session.on_lost()
        for command in commands.values():
            self._on_no_line(command)
        if limited:
            self._watch()
        self.changed()

    def unreachable(self, error: Exception) -> None:
        """A manager answered that there is no message manager: try again soon, for a while."""
        self.on_lost(limited=True)
        if not self._retrying:
            self._retrying = True
            self.later(self._pause_s, self._retry)
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)

    def _retry(self) -> None:
        self._retrying = False
        if self.connected:
            self.on_live()

    def reached(self) -> None:
        self._missing = 0
        self._pause_s = PAUSE_FIRST_S

    def on_connected(self) -> None:
        self.connected = True
        self.on_live()

    def on_disconnected(self) -> None:
        self.connected = False
        self.on_lost()

    def missed(self) -> None:
        """Somebody waits for a message manager that is not there."""
        if self.connected:
            self._watch()

    def _watch(self) -> None:
        """Everything that waits is told when the message manager stays away too long."""
        if self._missing:
            return
        self._losses += 1
        self._missing = missing = self._losses
        if self._limit_s:
            self.later(self._limit_s, lambda: self._give_up(missing))
        else:
            self._give_up(missing)

    def _give_up(self, missing: int) -> None:
        if self._missing == missing and self.ended is None:
            self._missing = 0
            error = NoMessageManager(f"No message manager could be reached within {self._limit_s:g} s.")
            self._fail(error)

    def end(self, error: Exception) -> None:
        """There will be no further line."""
        if self.ended is None:
            self.ended = error
            self.is_live = False
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
                self._on_answer(message.number, message.body)
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
            command.reply({}, error)
        return True

    def _on_no_line_behind(self, command: Command, error: Exception) -> None:
        if command.do == "commit":
            command.reply({}, ConnectionLost("The message manager cannot be reached."))
        self.unreachable(error)
        if command.do != "commit":
            self._on_no_line(command)

    def _answered(self, command: Command) -> None:
        if command.do == "consume" and self.opening:
            self.opening -= 1

    def _on_answer(self, number: int, body: bytes) -> None:
        command = self._commands.pop(number, None)
        if command is not None:
            if self._missing:
                self.reached()
            self._answered(command)
            command.reply(facts_of(body), None)

    def _on_deliver(self, handle: int, body: bytes) -> None:
        party = self.handles.get(handle)
        if isinstance(party, DurableConsumer):
            party.on_deliver(handle, body)
        elif self.opening and len(self._late) < LATE_FRAMES_MAX:
            self._late.setdefault(handle, []).append(body)  # came before the answer that names the handle

    def late(self, handle: int) -> None:
        for body in self._late.pop(handle, ()):
            self._on_deliver(handle, body)
        if not self.opening:
            self._late.clear()

    def _on_notice(self, facts: Facts) -> None:
        event = facts.get("event")
        if event == "interrupted":
            self.on_lost(limited=True)
            return
        if event == "back":
            if self.connected:
                self.on_live()
                if not self._commands:
                    self.reached()  # nothing was asked that could tell
            return
        handle = facts.get("producer") or facts.get("consumer") or facts.get("handle") or 0
        party = self.handles.get(handle)
        if isinstance(party, Producer):
            self._tell_producer(party, str(event), facts)
        elif isinstance(party, DurableConsumer):
            self._tell_consumer(party, str(event), facts)

    def _tell_producer(self, producer: Producer, event: str, facts: Facts) -> None:
        code, text = str(facts.get("code", "refused")), str(facts.get("text", ""))
        match event:
            case "blocked" | "unblocked":
                producer.on_blocked(event == "blocked")
            case "refused" if "transfer" in facts:
                for upload in list(producer.session.uploads):
                    if upload.number == facts["transfer"]:
                        upload.fail(from_wire(code, text))
            case "refused":
                producer.on_refused(int(facts["first"]), int(facts["count"]), code, text)
                if producer.session.transaction is not None:
                    producer.session.transaction.on_refused(from_wire(code, text))
            case "ended":
                producer.fail(from_wire(code, text))
            case "transfer":
                for upload in list(producer.session.uploads):
                    if upload.number == facts.get("transfer"):
                        upload.on_granted(int(facts["offset"]), complete=bool(facts.get("complete")))

    def _tell_consumer(self, consumer: DurableConsumer, event: str, facts: Facts) -> None:
        match event:
            case "ended":
                consumer.on_handle_ended(
                    int(facts.get("handle", 0)), from_wire(str(facts.get("code")), str(facts.get("text", "")))
                )
            case "caught-up":
                consumer.on_caught_up()
            case "joined":
                consumer.on_joined(int(facts["handle"]), str(facts["destination"]))
                self.late(int(facts["handle"]))
