"""Carries a session: performs its effects, writes what gathered, keeps its timers. Lines come from the `Keeper`.

What is said in one turn of the loop is written in few goes, on the way and at its end, unless little is said: then it
is written at once. `brake` tells senders to wait: there is no line at the moment, or its buffer is full, or too much
is held back during a move.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.client.aio.access import Access
from fairlead.client.aio.keeper import Keeper
from fairlead.client.aio.line import Line
from fairlead.client.aio.mailbox import Mailbox
from fairlead.client.aio.waiting import expire
from fairlead.client.effects import Drop, Effect, Event, Live, Lost, OpenSuccessor, Switched, Undelivered
from fairlead.client.session import Session
from fairlead.client.target import Target
from fairlead.errors import ConnectionLost, FairleadError

if TYPE_CHECKING:
    from fairlead.client.aio.tracing import Tracing

__all__ = ["Carrier"]

logger = logging.getLogger("fairlead.client")

HELD_BYTES_MAX = 1 << 20
GATHERED_MAX = 16  # more makes writes rarer, and lets the server and the other side wait
GOODBYE_S = 2.0


class Carrier:
    """The edge under a Connection."""

    def __init__(
        self,
        session: Session,
        target: Target,
        tls: ssl.SSLContext | None,
        *,
        connect_timeout_s: float,
        reconnect_limit_s: float,
        keeper: type[Keeper] = Keeper,
        access: Access | None = None,
    ) -> None:
        self.access = access
        self.keeper = keeper(self, target, tls, connect_timeout_s=connect_timeout_s, limit_s=reconnect_limit_s)
        self.loop = asyncio.get_running_loop()
        self.session = session
        self.tracing: Tracing | None = None
        """Makes spans of what is sent and received; mostly there is none."""
        self.brake = True
        self.epoch = 0
        """Counts lost connections: a request is answered on the connection it came by, or not at all."""
        self.mailboxes: set[Mailbox[Any]] = set()
        self.listeners: list[Callable[[Event], None]] = []
        self.ended: Exception | None = None
        self.closing = False
        self.quiet = False
        """Lines come and go unnoticed: it is not decided yet which of them stays."""
        self.busy: list[Callable[[], bool]] = []
        """Whether it would be a bad moment to go to another server."""
        self.lost: asyncio.Future[Exception] = self.loop.create_future()
        """Done when the session has no line any more; the keeper puts a new one in its place."""
        self._lines: list[Line] = []
        self._line: Line | None = None
        self._room: list[asyncio.Future[None]] = []
        self._said = 0  # how often, in this turn of the loop
        self._busy = False  # the last turn said more than one thing: gather the next one's from the start
        self._gathered = 0  # how often since the last write
        self._gathering = False  # bytes are being read: what is said meanwhile is written when that is done
        self.deadline_at = inf
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._mover: asyncio.Task[Any] | None = None

    # Opening and closing.

    async def open(self) -> None:
        """The first connection, or the reason why there is none."""
        try:
            await self.keeper.begin()
        except BaseException as error:
            self.finish(error if isinstance(error, Exception) else ConnectionLost("Connecting was given up."))
            raise
        self.spawn(self.keeper.keep())

    async def close(self) -> None:
        """Say goodbye behind everything said so far, and let the server close: nothing of it is lost."""
        if self.closing or self.ended is not None:
            return
        self.closing = True
        line = self._line
        if line is not None and self.session.is_live:
            if self.session.holding:
                await asyncio.wait([each.ready for each in self._lines], timeout=GOODBYE_S)
            line = self._line or line
            self.session.goodbye()
            self.flush()
            await asyncio.wait([line.gone], timeout=GOODBYE_S)
        self.finish(ConnectionLost("The connection was closed by this program."))

    def finish(self, error: Exception) -> None:
        """No line any more, and none to come."""
        if self.ended is not None:
            return
        self.ended = error
        for timer in (self._deadline_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()
        if self.closing:
            for mailbox in list(self.mailboxes):
                mailbox.end()
        self.session.end(error)
        for line in list(self._lines):
            line.fail(error)
            if self.closing:
                line.transport.close()
            else:
                line.transport.abort()
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self.set_brake()
        self.tell(Event("closed", None if self.closing else error))

    # What happens on lines.

    def add_line(self, line: Line) -> None:
        self._lines.append(line)
        self.flush()

    def on_data(self, line: Line, data: bytes) -> None:
        self._gathering = True
        try:
            effects = self.session.on_bytes(line.link, data, self.loop.time())
            if effects:
                self._perform(effects)
            if line.link.credit.is_worth_asking:
                self._give_back()
        finally:
            self._gathering = False
        self.flush()

    def on_lost(self, line: Line, error: Exception | None) -> None:
        self._lines.remove(line)
        if line is self._line:
            self._line = None
        self._perform(self.session.on_lost(line.link, error))
        self.set_brake()

    def drop(self, error: Exception) -> None:
        """Leave the line there is; another one is made."""
        link = self.session.link
        if link is not None:
            self._perform([Drop(link, error)])

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Live(link, again):
                    self._line = line = self._line_of(link)
                    if line is not None and not line.ready.done():
                        line.ready.set_result(None)
                    self._tick()
                    self.set_brake()
                    if again:
                        self.tell(Event("reconnected"))
                case Drop(link, error):
                    if line := self._line_of(link):
                        link.reason = link.reason or (error if isinstance(error, FairleadError) else None)
                        line.fail(error)
                        line.transport.abort()
                case Lost(error):
                    self.epoch += 1
                    if not self.closing:
                        self.tell(Event("lost", error))
                    if not self.lost.done():
                        self.lost.set_result(error)
                case OpenSuccessor(token, within_s, elsewhere, renew):
                    is_wanted = not renew or (self.access is not None and self.access.is_renewable)
                    if is_wanted and (self._mover is None or self._mover.done()):
                        keeper = self.keeper
                        way = keeper.leave(elsewhere, within_s) if elsewhere else keeper.move(token, within_s)
                        self._mover = self.spawn(way)
                case Switched(old, new):
                    if before := self._line_of(old):
                        before.transport.close()
                    self._line = line = self._line_of(new)
                    if line is not None and not line.ready.done():
                        line.ready.set_result(None)
                    self.set_brake()
                    self.tell(Event("moved"))
                case Undelivered(error):
                    self.tell(Event("undelivered", error))

    def _line_of(self, link: object) -> Line | None:
        return next((line for line in self._lines if line.link is link), None)

    def tell(self, event: Event) -> None:
        if self.quiet and event.name in ("lost", "reconnected"):
            return
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("A listener of on_event failed.")

    # Writing.

    def pushed(self) -> None:
        """Something was said: write it at the end of this turn, or now if the turns say little."""
        if not self._gathering:
            self._said += 1
            if self._said == 1:
                self.loop.call_soon(self._end_turn)
                if not self._busy:
                    self.flush()
        self._gathered += 1
        if self._gathered >= GATHERED_MAX:
            self.flush()  # so that the other side can begin while we go on

    def _end_turn(self) -> None:
        self._busy = self._said > 1
        self._said = 0
        self.flush()

    def flush(self) -> None:
        self._gathered = 0
        link = self.session.link
        if link is not None and link.credit.is_used_up:
            self._give_back()  # what was just asked could not be answered otherwise
        for line in self._lines:
            if line.link.out:
                line.write(line.link.out)
                line.link.out = []
        session = self.session
        if session.out and self._line is not None:
            out = session.take_out()
            if out:
                self._line.write(out)
            elif session.out_bytes > HELD_BYTES_MAX:
                self.brake = True

    async def room(self, deadline_s: float = inf) -> None:
        """Wait until there is a line with room; ConnectionLost when there will be none."""
        while self.brake:
            if self.ended is not None:
                raise self.ended
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._room.append(waiter)
            timer = None if deadline_s == inf else self.loop.call_at(deadline_s, expire, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                if waiter in self._room:
                    self._room.remove(waiter)

    def set_brake(self) -> None:
        line = self._line
        self.brake = self.ended is not None or not self.session.is_live or line is None or line.paused
        if not self.brake or self.ended is not None:
            waiters, self._room = self._room, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if not self.brake:
            self.consumed()
            self.pushed()

    # Credit, time, tasks.

    def consumed(self) -> None:
        link = self.session.link
        if link is not None and link.credit.is_worth_asking:
            self._give_back()
            if link.out:
                self.pushed()

    def _give_back(self) -> None:
        if self._line is None or self._line.paused:
            return  # answers cannot leave at the moment: no further questions
        session = self.session
        held = len(session.serving)
        waiting = bool(session.requests.open or session.talks)
        for mailbox in self.mailboxes:
            unread = len(mailbox.queue)
            if unread > mailbox.buffer and not waiting:
                return  # somebody reads too slowly: let the server hold back
            held += unread
        if session.link is not None:
            session.link.give_back(held, waiting=waiting)

    def watch(self) -> None:
        """A deadline may have become the earliest."""
        earliest = self.session.requests.next_s
        if earliest < self.deadline_at and self.ended is None:
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
            self.deadline_at = earliest
            self._deadline_timer = self.loop.call_at(earliest, self._on_deadline)

    def _on_deadline(self) -> None:
        self.deadline_at = inf
        self.session.on_deadline(self.loop.time())
        self.watch()
        self.flush()

    def _tick(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        link = self.session.link
        if link is not None and self.ended is None:
            self._tick_timer = self.loop.call_later(link.tick_s, self._on_tick)

    def _on_tick(self) -> None:
        self._perform(self.session.on_tick(self.loop.time()))
        self.flush()
        self._tick()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
