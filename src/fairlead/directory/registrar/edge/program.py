"""The registrar: an ordinary client of its own broker that accepts conversations on `_REGISTRAR`.

A conversation stands for a connection of an application: when it ends, the connection has ended. There is one
exception: if the registrar's own connection breaks, all conversations end and the clients begin new ones under the same
identities. So those are waited for a moment before the directory hears that somebody has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead.client.aio import Connection
from fairlead.client.aio.attendants import Attendants
from fairlead.client.aio.talks import Conversation
from fairlead.client.effects import Event
from fairlead.directory.delivery.routes import app_queue
from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.registrar import talk
from fairlead.directory.registrar.attendance import Attendance, Attending, Refusal
from fairlead.directory.registrar.edge.carrying import Carrying
from fairlead.directory.registrar.edge.queues import Queues
from fairlead.directory.registrar.edge.registering import Registering
from fairlead.directory.registrar.edge.ways import Ways
from fairlead.directory.registrar.reports import Reports
from fairlead.directory.rows import Broker, BrokerState
from fairlead.errors import BadParameter, FairleadError
from fairlead.security.rules import REGISTRAR, Rules

FIRST_WORD_S: Final = 10.0  # for a client to say what it wants after it began
LABEL_S: Final = 0.05  # so long an `ok` waits for the label
RETURN_S: Final = 5.0  # for clients to begin again after the registrar was away
CARRY_AGAIN_S: Final = 0.5
DEREGISTER_S: Final = 10.0
FOR_EVER_S: Final = 1e9
APPLICATIONS_TOLD_MAX: Final = 200


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a registrar has to know."""

    own: str  # URL of its own broker
    user: str  # its login there
    password: str
    row: Broker
    clusters: Sequence[str] = ()
    directory: str
    directory_user: str = ""
    directory_password: str = ""
    broker_user: str = ""  # its login at other brokers, to which it carries messages
    broker_password: str = ""
    lease_s: float = 15.0
    at_home: bool = False  # the directory is kept by the broker itself
    is_first: bool = True  # the server has not been registered since it was started
    rules: Rules = field(default_factory=Rules.open)


class Registrar:
    """`run` until it is cancelled, then `close`; `facts` is what status shows."""

    def __init__(
        self, settings: Settings, *, say: Callable[[str, str], None], on_registered: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._say = say
        self.rules = settings.rules
        row = settings.row
        self.attendance = Attendance(row.name, row.limit)
        self.reports = Reports()
        self.directory = DirectoryClient(
            settings.directory,
            user=settings.directory_user or None,
            password=settings.directory_password or None,
        )
        self.own = Connection(
            settings.own,
            name="registrar",
            user=settings.user,
            password=settings.password,
            reconnect_limit_s=FOR_EVER_S,
            connect_timeout_s=FOR_EVER_S,
        )
        self.own.on_event(self._on_event)
        self.registering = Registering(
            self.directory,
            self.attendance,
            self.reports,
            row=row,
            clusters=settings.clusters,
            lease_s=settings.lease_s,
            grace_s=0.0 if settings.is_first else RETURN_S,
            is_first=settings.is_first,
            listener=self,
            on_registered=on_registered,
            say=say,
        )
        self.carrying = Carrying(
            self.own,
            self.directory,
            row.name,
            row.store,
            user=settings.broker_user,
            password=settings.broker_password,
            say=say,
        )
        self.queues = Queues(self.own, self.directory, self.attendance, self.carrying, row, say)
        self.ways = Ways(self.directory, self.carrying, self.attendance, row)
        self._talks: dict[int, Conversation] = {}
        self._labels: dict[str, asyncio.Event] = {}  # of those whose `ok` waits for it
        self._holders = 0
        self._epoch = 0  # of our own connection
        self._attendants = Attendants(say)
        self.refused = 0

    async def run(self) -> None:
        """NameTaken: another server that lives has this name, and this one must not serve under it."""
        accepting = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._accept(accepting))
            await accepting.wait()  # nobody is sent here before there is somebody to talk with
            group.create_task(self.registering.run())

    async def close(self, *, farewell: bool) -> None:
        """`farewell`: the whole server stops; if it keeps the directory too there is nobody left to hear it."""
        if farewell and self.registering.registered and not self._settings.at_home:
            await self.registering.farewell()
        await self._attendants.close()
        await self.queues.close()
        await self.carrying.close()
        await self.directory.close()
        await self.own.close()

    def reload(self, rules: Rules) -> None:
        """Other rights from now on: who may not be what it is any more is told to go."""
        self.rules = rules
        for attending in list(self.attendance.here.values()):
            if not rules.allows(attending.link.user, "consume", app_queue(attending.app)):
                self._tell(attending, talk.closed("The right to be this application was withdrawn."), last=True)

    def set_state(self, state: BrokerState) -> None:
        """As the operator wants it; who is here is asked to go elsewhere unless it is `up`."""
        self.attendance.wanted = state
        self.registering.wake()
        if state != "up":
            self.on_move(list(self.attendance.here))

    # --- Conversations --------------------------------------------------------------------------------------------
    async def _accept(self, accepting: asyncio.Event) -> None:
        await self.own
        async with self.own.accept(REGISTRAR) as acceptor:
            accepting.set()
            self._attendants.spawn(self._carry())
            self._attendants.spawn(self.queues.tidy())
            while True:
                conversation = await acceptor.next()
                self._holders += 1
                self._attendants.spawn(self._attend(conversation, self._holders))

    async def _carry(self) -> None:
        """Go on carrying, as soon as there is somebody who keeps queues."""
        while True:
            try:
                await self.carrying.start()
                return
            except FairleadError as error:
                self._say("debug", f"cannot see yet what has to be carried: {error.text}")
                await asyncio.sleep(CARRY_AGAIN_S)

    def _on_event(self, event: Event) -> None:
        if event.name == "lost":
            self._epoch += 1

    async def _attend(self, conversation: Conversation, holder: int) -> None:
        """One connection, from its first word to its end."""
        async with conversation:
            attending = await self._admit(conversation, holder)
            if attending is None:
                return
            identity, epoch = attending.link.identity, self._epoch
            self._talks[holder] = conversation
            try:
                await self._introduce(conversation, attending)
                while True:
                    message = await conversation.receive()
                    await self._hear(conversation, attending, message.body)
            except FairleadError:
                pass  # it has ended
            finally:
                self._talks.pop(holder, None)
                if epoch != self._epoch and not self.own.closed:
                    self._attendants.spawn(self._await_return(identity, holder))
                else:
                    self._gone(identity, holder)

    async def _admit(self, conversation: Conversation, holder: int) -> Attending | None:
        try:
            said = talk.read_register((await conversation.receive(FIRST_WORD_S)).body)
        except BadParameter as error:
            await self._refuse(conversation, error.code, error.text)
            return None
        user = conversation.user or ""
        if not self.rules.allows(user, "consume", app_queue(said.app)):
            await self._refuse(conversation, talk.AUTHENTICATION, talk.WRONG)
            self._say(
                "warning", f"user {user or 'anonymous'} may not be application {said.app}: consume app.{said.app}"
            )
            return None
        found = self.attendance.admit(said, user, holder)
        if isinstance(found, Refusal):
            await self._refuse(conversation, found.code, found.text)
            return None
        self.reports.opened(said.app, said.identity, said.reservation)
        self._labels.setdefault(said.identity, asyncio.Event())
        self.registering.wake()
        return found

    async def _refuse(self, conversation: Conversation, code: str, text: str) -> None:
        self.refused += 1
        await conversation.send(talk.refusal(code, text), last=True)

    async def _introduce(self, conversation: Conversation, attending: Attending) -> None:
        identity = attending.link.identity
        await self.queues.ensure(attending.app)
        label = self._labels.get(identity)
        if label is not None and not attending.link.label:
            try:
                async with asyncio.timeout(LABEL_S):
                    await label.wait()
            except TimeoutError:
                pass
        self._labels.pop(identity, None)
        await conversation.send(talk.ok(broker=self.attendance.broker, label=attending.link.label))

    async def _hear(self, conversation: Conversation, attending: Attending, body: bytes) -> None:
        try:
            wish = talk.read_wish(body)
        except BadParameter as error:
            await self._refuse(conversation, error.code, error.text)
            raise
        if wish.route is not None:
            self._attendants.spawn(self._route(conversation, wish))
        elif wish.deregister is not None:
            self._attendants.spawn(self._deregister(conversation, attending, wish.deregister == "close"))
        elif wish.kind is not None:
            self.attendance.change_kind(attending.app, wish.kind)
            self.reports.changed_kind(attending.app, wish.kind)
            self.registering.wake()
            await conversation.send(talk.ok())

    async def _route(self, conversation: Conversation, wish: talk.Wish) -> None:
        await conversation.send(talk.route(wish, **await self.ways.find(wish.route or "")))

    async def _deregister(self, conversation: Conversation, attending: Attending, close: bool) -> None:
        """`close`: also if it has other connections. The one that asks is closed in any case."""
        app, identity = attending.app, attending.link.identity
        try:
            found = (await self.directory.lookup_app(app, timeout=DEREGISTER_S)).app
            others = 0 if found is None else sum(link.identity != identity for link in found.links)
            if others and not close:
                text = f"{app} has {others} other connections; close them first, or say that they are to be closed."
                raise BadParameter(text)
            await self.directory.deregister_app(app, broker=self.attendance.broker, links="close", timeout=DEREGISTER_S)
        except FairleadError as error:
            await conversation.send(talk.refusal(error.code, error.text))
            return
        self.attendance.change_kind(app, "dynamic")
        await conversation.send(talk.ok())
        self.on_close(self.attendance.of(app))

    def _gone(self, identity: str, holder: int) -> None:
        left = self.attendance.leave(identity, holder)
        if left is None:
            return
        self._labels.pop(identity, None)
        self.reports.closed(left.app, identity)
        self.registering.wake()
        if not self.attendance.count(left.app):
            self.queues.left(left.app)

    async def _await_return(self, identity: str, holder: int) -> None:
        while not self.own.connected:
            await asyncio.sleep(RETURN_S / 10)
        await asyncio.sleep(RETURN_S)
        self._gone(identity, holder)

    # --- What the directory says ----------------------------------------------------------------------------------
    def on_label(self, identity: str, label: str) -> None:
        attending = self.attendance.label(identity, label)
        if attending is None:
            return
        waits = self._labels.get(identity)
        if waits is not None:
            waits.set()
        else:
            self._tell(attending, talk.labelled(label))

    def on_move(self, identities: Sequence[str]) -> None:
        for identity in identities:
            if (attending := self.attendance.here.get(identity)) is not None:
                self._tell(attending, talk.move())

    def on_close(self, identities: Sequence[str]) -> None:
        for identity in identities:
            if (attending := self.attendance.here.get(identity)) is not None:
                self._tell(attending, talk.closed(f"{attending.app} was deregistered."), last=True)

    def _tell(self, attending: Attending, body: bytes, *, last: bool = False) -> None:
        conversation = self._talks.get(attending.holder)
        if conversation is not None:
            self._attendants.spawn(conversation.send(body, last=last))

    # --- Status ---------------------------------------------------------------------------------------------------
    def facts(self) -> dict[str, Any]:
        applications = sorted(self.attendance.applications().items())
        return {
            "name": self.attendance.broker,
            "registered": self.registering.registered,
            "broker_state": self.attendance.state,
            "connections": len(self.attendance),
            "limit": self.attendance.limit,
            "applications": {
                app: {"kind": self.attendance.kinds[app], "connections": count}
                for app, count in applications[:APPLICATIONS_TOLD_MAX]
            },
            "applications_total": len(applications),
            "pending": len(self.reports),
            "delivered": self.reports.delivered,
            "restated": self.registering.restated,
            "refused": self.refused,
            "lease_s": self.registering.lease_s,
            "directory": self.directory.server,
            "error": self.registering.error,
            "carrying": self.carrying.facts(),
        }
