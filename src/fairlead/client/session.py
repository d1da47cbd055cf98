"""The rules of a client, once for both faces: what is subscribed, asked, served; what happens on loss and on a move.

The edge tells it bytes and losses and performs the effects it answers with; whoever waits is told through
the sinks handed in. What is to be written gathers in `out` (the application's) and in `out` of each link
(the connection's own). A lost link takes all open requests with it; subscriptions and registrations are
said anew on the next one. A move (docs/protocol.md, section 7) loses nothing: `holding` keeps the
application's frames back between MOVE and MOVED.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.client.dispatch import Sink
from fairlead.client.durable.road import Road
from fairlead.client.effects import Drop, Effect, Live, Lost, OpenSuccessor, Switched, Undelivered
from fairlead.client.link import Link, Phase, control
from fairlead.client.outgoing import SERVER_MADE, Outgoing, subscribe_frame
from fairlead.client.target import hinted
from fairlead.errors import (
    CODES,
    ConnectionLost,
    ConversationLost,
    FairleadError,
    RemoteProtocolError,
    from_wire,
)
from fairlead.message import Message
from fairlead.wire import durable, kinds
from fairlead.wire.handshake import Connect, GoAway, decode
from fairlead.wire.headers import encode_headers
from fairlead.wire.kinds import FLAG_LAST

__all__ = ["Session", "as_lost"]

BESIDE_STASH = (kinds.KIND_PING, kinds.KIND_PONG)
HANDLE_ENDED = ("unknown-number", "destination-deleted")
NOT_SERVED = "This client does not serve that."


def as_lost(error: Exception) -> ConnectionLost:
    """The loss of a connection as those who wait are told of it; the code still says why."""
    if isinstance(error, ConnectionLost):
        return error
    code = error.code if isinstance(error, FairleadError) else None
    lost = ConnectionLost(f"The connection was lost: {error}", code=code)
    lost.__cause__ = error
    return lost


class Session(Outgoing):
    """One client, whatever connections it has or had."""

    def __init__(self, hello: Connect) -> None:
        super().__init__()
        self.hello = hello
        self.uid = 0
        self.successor: Link | None = None
        self.closed = False
        self.serving: dict[int, Callable[[], object]] = {}  # how to stop what works on a request
        self.inbox: Sink | None = None
        self.road: Road | None = None
        self._was_live = False
        self._takers: dict[int, Callable[[list[Message]], None]] = {
            kinds.KIND_PUBLISH: self._on_publish,
            kinds.KIND_RESPONSE: self._on_response,
            kinds.KIND_REQUEST: self._on_request,
            kinds.KIND_FANOUT: self._on_request,
            kinds.KIND_CONVERSE: self._on_converse,
            kinds.KIND_SEND: self._on_send,
            kinds.KIND_OK: self._on_ok,
            kinds.KIND_ASKED: self._on_asked,
            kinds.KIND_LOST: self._on_receiver_lost,
            kinds.KIND_CANCELLED: self._on_cancelled,
            durable.KIND_ANSWER: self._on_durable,
            durable.KIND_STORED: self._on_durable,
            durable.KIND_DELIVER: self._on_durable,
            durable.KIND_SETTLED: self._on_durable,
            durable.KIND_DATA: self._on_durable,
            durable.KIND_NOTICE: self._on_durable,
        }
        self._effects: list[Effect] = []

    # What the network does.

    @property
    def is_live(self) -> bool:
        return self.link is not None

    def open_link(self, now_s: float, resume: str | None = None) -> Link:
        """A transport is there: what to write first is in the link's `out`."""
        hello = self.hello if resume is None else msgspec.structs.replace(self.hello, resume=resume)
        return Link(hello, now_s)

    def on_bytes(self, link: Link, data: bytes, now_s: float) -> list[Effect]:
        """Take in what arrived; the effects are to be performed first to last."""
        link.heard(now_s)
        try:
            for run in link.parser.runs(data):
                if link is self.link:
                    self._take(link, run)
                elif link is self.successor and link.phase is Phase.LIVE and run[0].kind not in BESIDE_STASH:
                    link.stash.append(run)  # its turn comes when the old link is read to its MOVED
                else:
                    self._take_early(link, run)
            if link.parser.fault is not None:
                raise link.parser.fault
        except RemoteProtocolError as error:
            link.reason = link.reason or error
            self._effects.append(Drop(link, error))
        effects, self._effects = self._effects, []
        return effects

    def on_lost(self, link: Link, error: Exception | None = None) -> list[Effect]:
        """The transport of `link` is gone."""
        why = link.reason or error or ConnectionLost("The server closed the connection.")
        if link is self.successor and not self.holding:
            self.successor = None  # nothing has moved yet: the old link goes on
            return []
        if link is not self.link and link is not self.successor:
            return []
        if link is self.link and link.phase is Phase.DONE:
            return []  # read to its end; the successor's MOVED is on its way
        effects: list[Effect] = []
        for other in (self.link, self.successor):
            if other is not None and other is not link:
                effects.append(Drop(other, why))
        self.link = self.successor = None
        self.holding = False
        self._fail_all(why)
        if self.road is not None:
            self.road.on_disconnected()
        return [*effects, Lost(why)]

    def on_tick(self, now_s: float) -> list[Effect]:
        """Keep-alive of the links that are there."""
        effects: list[Effect] = []
        for link in (self.link, self.successor):
            if link is not None:
                try:
                    link.on_tick(now_s)
                except ConnectionLost as error:
                    link.reason = link.reason or error
                    effects.append(Drop(link, error))
        return effects

    def on_deadline(self, now_s: float) -> None:
        """Requests whose time is up are told, and the server need not go on with them."""
        for correlation, pending in self.requests.expire(now_s):
            self.cancel(correlation)
            pending.on_timeout()

    def end(self, error: Exception) -> None:
        """There will be no further link: everybody who waits is told."""
        self.closed = True
        self._fail_all(error)
        if self.road is not None:
            self.road.end(error)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(error)
        sinks: list[Sink | None] = [entry.sink for entry in self.dispatch.entries.values()]
        for registered in self.registrations.by_number.values():
            sinks += [registered.requests, registered.talks]
        for sink in [*sinks, self.inbox]:
            if sink is not None:
                sink.fail(error)

    def goodbye(self) -> None:
        """An orderly end, behind everything said so far."""
        self.send(control(kinds.KIND_CLOSE))

    # Inside: what arrives.

    def _take(self, link: Link, run: list[Message]) -> None:
        kind = run[0].kind
        if kinds.KIND_MESSAGE_FIRST <= kind <= kinds.KIND_MESSAGE_LAST:
            link.credit.on_messages(len(run))
        taker = self._takers.get(kind)
        if taker is not None:
            taker(run)
        else:
            self._take_early(link, run)

    def _take_early(self, link: Link, run: list[Message]) -> None:
        """Frames that concern the link; all that may come before it is live."""
        for message in run:
            match message.kind:
                case kinds.KIND_PING:
                    link.out.append(control(kinds.KIND_PONG, correlation=message.correlation))
                case kinds.KIND_PONG:
                    if ping := self._pings.pop(message.correlation, None):
                        ping(None)
                case kinds.KIND_ERROR:
                    self._on_error(link, message)
                case kinds.KIND_CLOSE:
                    self._effects.append(Drop(link, link.reason or ConnectionLost("The server said goodbye.")))
                case kinds.KIND_GO_AWAY if link is self.link:
                    if self.successor is None:
                        said = decode(GoAway, message.body)
                        elsewhere = hinted(",".join(said.elsewhere))
                        self._effects.append(OpenSuccessor(said.token, said.within_s, elsewhere, said.renew))
                case kinds.KIND_CONFIRM | kinds.KIND_WELCOME | kinds.KIND_MOVED:
                    link.on_handshake(message)
                    self._on_handshake(link, message.kind)
                case kind if link.phase is not Phase.LIVE and kind <= kinds.KIND_MOVED:
                    raise RemoteProtocolError(f"A frame of kind {kind:#04x} came while {link.phase.value}.")
                case _:
                    pass  # from a newer server: not for us

    def _on_handshake(self, link: Link, kind: int) -> None:
        if kind == kinds.KIND_WELCOME and link.phase is Phase.LIVE:
            self._on_live(link)
        elif kind == kinds.KIND_WELCOME:
            self._on_resumed(link)
        elif kind == kinds.KIND_MOVED:
            self._on_moved()

    def _on_live(self, link: Link) -> None:
        if link.is_resuming or self.link is not None:
            # We asked to resume and were given a new attachment: of no use, the old link goes on.
            self._effects.append(Drop(link, ConnectionLost("The server did not know the resume token.")))
            return
        again, self._was_live = self._was_live, True
        self.link = link
        self.uid = link.welcome.uid or link.confirm.uid
        self.out, self.out_bytes = [], 0
        for number, entry in self.dispatch.entries.items():
            self.send(subscribe_frame(number, entry.pattern, no_local=entry.no_local))
        for number, registered in self.registrations.by_number.items():
            if registered.topic:
                self.send(control(kinds.KIND_REGISTER, number=number, topic=registered.topic.encode()))
        if self.road is not None:
            self.road.on_connected()
        self._effects.append(Live(link, again))

    def _on_resumed(self, link: Link) -> None:
        # A link that was lost meanwhile and is connected anew is somebody else for the server: not to be resumed.
        if self.link is None or self.successor is not None or link.welcome.uid != self.uid:
            self._effects.append(Drop(link, ConnectionLost("There is nothing to resume any more.")))
            return
        self.successor = link
        self.link.out += [*self.take_out(), control(kinds.KIND_MOVE)]
        self.holding = True

    def _on_moved(self) -> None:
        old, new = self.link, self.successor
        if old is None or new is None or old.phase is not Phase.DONE or new.phase is not Phase.LIVE:
            return
        self.link, self.successor = new, None
        self.holding = False
        self._effects.append(Switched(old, new))
        if self.road is not None:  # for the message manager another manager is another line
            self.road.on_disconnected()
            self.road.on_connected()
        stash, new.stash = new.stash, []
        for run in stash:
            self._take(new, run)

    def _on_publish(self, run: list[Message]) -> None:
        self.dispatch.deliver(run, self.uid)

    def _on_response(self, run: list[Message]) -> None:
        waiting = self.requests.open
        for message in run:
            pending = waiting.get(message.correlation)
            if pending is not None and pending.on_message(message):
                waiting.pop(message.correlation, None)

    def _on_request(self, run: list[Message]) -> None:
        entry = self.registrations.by_topic.get(run[0].topic)
        if entry is not None and entry.requests is not None and entry.topic:
            entry.requests.deliver(run)
            return
        for message in run:
            entry = self.registrations.find(message)
            if entry is not None and entry.requests is not None:
                entry.requests.deliver([message])
            else:
                self.respond_error(message.correlation, "no-receiver", NOT_SERVED)

    def _on_converse(self, run: list[Message]) -> None:
        for message in run:
            correlation = message.correlation
            talk = self.talks.get(correlation)
            if talk is not None:
                if message.flags & FLAG_LAST:
                    del self.talks[correlation]
                talk.deliver([message])
                continue
            if not correlation & SERVER_MADE:
                continue  # ended on our side already
            entry = self.registrations.find(message)
            if entry is not None and entry.talks is not None:
                entry.talks.deliver([message])
            elif not message.flags & FLAG_LAST:
                why = encode_headers([("error", "no-receiver")])
                self.message(kinds.KIND_CONVERSE, FLAG_LAST, 0, correlation, 0, b"", why, NOT_SERVED.encode())

    def _on_send(self, run: list[Message]) -> None:
        if self.inbox is not None:
            self.inbox.deliver(run)

    def _on_ok(self, run: list[Message]) -> None:
        for message in run:
            self._answer(message.number, None)

    def _on_asked(self, run: list[Message]) -> None:
        for message in run:
            pending = self.requests.open.get(message.correlation)
            if pending is not None and pending.on_asked(message.number):
                self.requests.open.pop(message.correlation, None)

    def _on_receiver_lost(self, run: list[Message]) -> None:
        for message in run:
            pending = self.requests.open.get(message.correlation)
            if pending is not None and pending.on_receiver_lost():
                self.requests.open.pop(message.correlation, None)

    def _on_cancelled(self, run: list[Message]) -> None:
        for message in run:
            if stop := self.serving.pop(message.correlation, None):
                stop()
            if talk := self.talks.pop(message.correlation, None):
                talk.fail(ConversationLost("The other side gave the conversation up or is gone."))

    def _on_durable(self, run: list[Message]) -> None:
        if self.road is not None:
            self.road.on_frames(run)

    def _on_error(self, link: Link, message: Message) -> None:
        code = message.headers.get("code", b"internal").decode(errors="replace")
        error = from_wire(code, message.body.decode(errors="replace"))
        if message.correlation:
            if pending := self.requests.open.pop(message.correlation, None):
                pending.fail(error)
            elif talk := self.talks.pop(message.correlation, None):
                talk.fail(error)
            elif ping := self._pings.pop(message.correlation, None):
                ping(error)
            else:
                self._effects.append(Undelivered(error))
        elif self.road is not None and message.number and self.road.on_error(message.number, error):
            pass
        elif code in HANDLE_ENDED and message.number not in self._ending:
            pass  # a frame of the durable road was on its way when its handle ended
        elif message.number:
            self._answer(message.number, error)
        elif link.phase is Phase.LIVE and code in CODES and not CODES[code].closes:
            self._effects.append(Undelivered(error))  # about something that is said without a number: a publish
        else:
            link.reason = error
            link.elsewhere = hinted(message.headers.get("elsewhere", b"").decode(errors="replace"))

    def _answer(self, number: int, error: FairleadError | None) -> None:
        answer = self._answers.pop(number, None)
        if number in self._ending:
            self._ending.discard(number)
            self.registrations.remove(number)
            error = None  # it was to go, and it is gone
        elif error is not None:
            # Refused, at first or when it was said anew: whoever reads it is told as well.
            if entry := self.dispatch.remove(number):
                entry.sink.fail(error)
            if registered := self.registrations.by_number.get(number):
                self.registrations.remove(number)
                for sink in (registered.requests, registered.talks):
                    if sink is not None:
                        sink.fail(error)
        if answer is not None:
            answer(error)

    def _fail_all(self, error: Exception) -> None:
        """What does not outlive a link: open requests, conversations, pings, and wishes to end something."""
        self.out, self.out_bytes = [], 0
        lost = as_lost(error)
        for pending in self.requests.take_all():
            pending.fail(lost)
        talks, self.talks = self.talks, {}
        for talk in talks.values():
            talk.fail(lost)
        pings, self._pings = self._pings, {}
        for ping in pings.values():
            ping(lost)
        serving, self.serving = self.serving, {}
        for stop in serving.values():
            stop()
        for number in list(self._ending):
            self._answer(number, None)
