"""The bridge of a server: a client of it and of each of its parents, which carries between them what others want.

It learns from each server what its clients want, and from other bridges (adverts on `_LINK`) what there is beyond.
Out of the chart of all servers follows what it asks each of its servers for, and where each message goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from fairlead.broker.interest import LINK_TOPIC, LINK_TYPE
from fairlead.client.pending import Pending
from fairlead.errors import FairleadError, RemoteProtocolError
from fairlead.message import Message
from fairlead.sites import adverts, marks
from fairlead.sites.adverts import Advert
from fairlead.sites.chart import NAMED, SERVED, SUBSCRIBED, Chart
from fairlead.sites.end import End, Waiting
from fairlead.sites.marks import Mark
from fairlead.sites.relays import FanRelay, Relay, TalkEnd
from fairlead.sites.session import LinkSession
from fairlead.wire import kinds
from fairlead.wire.handshake import Connect
from fairlead.wire.kinds import FLAG_LAST, FLAG_NAMED

NOBODY = "Nobody serves this behind the link; clients of other servers are addressed by name, not by uid."
FORGET_S = 60.0
ASK_AGAIN_S = 5.0


class Bridge:
    """All ends of it; the first is its own server. `changed` asks the edge to call `refresh` soon."""

    def __init__(
        self, server: str, urls: list[str], *, queue_bytes: int, hold_s: float, log: Callable[[str, str], None]
    ) -> None:
        self.server = server
        self.chart = Chart()
        self.ends = [End(url, queue_bytes) for url in urls]
        self.own, self.parents = self.ends[0], self.ends[1:]
        self.working: list[End] = []  # the parents to and from which this bridge carries
        self.changed: Callable[[], None] = lambda: None
        self._hold_s = hold_s
        self._log = log
        self._number = 0
        self._now_s = 0.0
        self._forget_s = 0.0

    def session(self, end: End, user: str, password: str, software: str) -> LinkSession:
        """A new session for one of its ends."""
        hello = Connect(
            type=LINK_TYPE, instance=self.server, user=user, password=password, credit=65_536, keep_alive_s=10,
            software=software,
        )  # fmt: skip
        end.session = LinkSession(hello, AtEnd(self, end))
        return end.session

    # -- what the servers are like

    def on_live(self, end: End) -> None:
        assert end.session is not None
        assert end.session.link is not None
        end.begin(end.session.link.confirm.server)
        end.asked_s = self._now_s
        self.changed()

    def on_lost(self, end: End) -> None:
        end.claims.clear()
        end.wishes.complete = False
        end.lost_s = self._now_s
        if end is not self.own:
            end.held = bool(end.server) and self._hold_s > 0 and not any(p.is_usable for p in self.parents)
        self.changed()

    def on_interest(self, end: End, body: bytes) -> None:
        before = set(end.wishes.links) if end.wishes.complete else None
        end.wishes.take(body)
        if end.wishes.complete:
            assert end.session is not None
            came = set(end.wishes.links) - (before or set()) - {end.session.uid}
            if before is None or (came and min(set(end.wishes.links) - came, default=0) == end.session.uid):
                self._tell(end, list(self.chart.adverts.values()))  # somebody here may not know them
        self.changed()

    def on_adverts(self, end: End, body: bytes) -> None:
        try:
            news = [advert for advert in adverts.decode(body) if self.chart.take(advert)]
        except RemoteProtocolError as error:
            self._log("warning", f"from {end.url}: {error}")
            return
        if news:
            for other in self.ends:
                if other is not end:
                    self._tell(other, news)
            self.changed()

    def _tell(self, end: End, news: list[Advert]) -> None:
        if news and end.is_live and end.session is not None:
            end.session.publish(LINK_TOPIC.encode(), b"", adverts.encode(news))
            end.wake()

    def refresh(self) -> None:
        """Say what is new of the servers this bridge speaks for, and ask each end for what is wanted through it."""
        for end in self.ends:
            if end.is_usable and (advert := self._advert(end)) is not None and self.chart.take(advert):
                for each in self.ends:
                    self._tell(each, [advert])
        here = self.own.server
        self.working = [parent for parent in self.parents if self._carries(parent)]
        for what in (SUBSCRIBED, SERVED, NAMED):
            wanted: set[str] = set()
            for parent in self.parents:
                if parent not in self.working or not (parent.is_usable or (what == SUBSCRIBED and parent.held)):
                    parent.ask_for(what, set())
                    continue
                wanted |= self.chart.wanted(here, parent.server, what)
                if self.own.is_usable:
                    parent.ask_for(what, self.chart.wanted(parent.server, here, what))
            self.own.ask_for(what, wanted)

    def _carries(self, parent: End) -> bool:
        """One bridge for a link: two servers may name each other as parents, or one parent have two URLs."""
        server, ours = parent.server, self.own.server
        same = [other for other in self.parents if other.server == server and (other.is_live or other.held)]
        if not server or server == ours or same[:1] != [parent]:
            return False
        advert = self.chart.adverts.get(server)
        return advert is None or ours not in advert.parents or ours < server

    def _advert(self, end: End) -> Advert | None:
        """What is to be said of this server, if it is ours to say, and new."""
        wishes, session = end.wishes, end.session
        is_own = end is self.own
        if session is None or (
            not is_own and (end.server in wishes.links.values() or min(wishes.links) != session.uid)
        ):
            return None
        known = self.chart.adverts.get(end.server)
        advert = Advert(
            server=end.server,
            number=known.number if known else 0,
            links=sorted(set(wishes.links.values()) - {end.server}),
            parents=sorted(p.server for p in self.parents if p.is_usable) if is_own else [],
            held=sorted(p.server for p in self.parents if p.held) if is_own else [],
            subscribed=sorted(wishes.subscribed),
            served=dict(sorted(wishes.served.items())),
            named=sorted(wishes.named),
        )
        if known is not None and known == advert:
            return None
        return msgspec.structs.replace(advert, number=advert.number + 1)

    def on_tick(self, now_s: float) -> None:
        """Time passes: links that stay lost are given up, servers that cannot be reached are forgotten."""
        self._now_s = now_s
        for end in self.ends:
            if end.is_live and not end.wishes.complete and now_s - end.asked_s > ASK_AGAIN_S:
                end.asked_s = now_s  # it was refused: perhaps the right has been given meanwhile
                end.begin(end.server)
        for parent in self.parents:
            is_needless = any(other.is_usable for other in self.parents)
            if parent.held and parent.lost_s is not None and (is_needless or now_s - parent.lost_s > self._hold_s):
                parent.held = False
                if count := parent.give_up():
                    self._log("warning", f"the link to {parent.url} stays lost: {count} messages for it are given up")
                self.changed()
        if now_s >= self._forget_s and self.own.is_usable:
            self._forget_s = now_s + FORGET_S
            self.chart.forget_unreachable(self.own.server)
            for end in self.ends:
                end.seen.forget(set(self.chart.adverts))

    # -- broadcasts

    def on_publish(self, end: End, run: list[Message]) -> None:
        for message in run:
            is_linked = message.sender in end.wishes.links
            if message.topic_text == LINK_TOPIC:
                if is_linked:
                    self.on_adverts(end, message.body)
            elif message.sender:  # what the message manager broadcasts is stored: links of durable topics carry that
                self._carry(end, message, self._mark(end, message, is_linked))

    def _mark(self, end: End, message: Message, is_linked: bool) -> Mark | None:
        if is_linked:
            return marks.read(message)
        self._number += 1
        return Mark(end.server, self.server, self._number, ())

    def _carry(self, end: End, message: Message, mark: Mark | None) -> None:
        if mark is None or (end is not self.own and end not in self.working):
            return
        end.messages_in += 1
        end.bytes_in += len(message.body)
        here, ours = end.server, self.own.server
        origin = mark.origin if here in self.chart.distances(mark.origin, held=True) else here
        way = self.chart.way(origin, message.topic_text)
        if end is not self.own and (here, ours) in way and ours not in mark.path:
            self._publish(self.own, message, mark, here)
            mark, here = mark._replace(path=(*mark.path, here)), ours
        if here == ours:
            for parent in self.working:
                if parent is not end and (ours, parent.server) in way and parent.server not in mark.path:
                    self._publish(parent, message, mark, ours)

    def _publish(self, end: End, message: Message, mark: Mark, here: str) -> None:
        if not (end.is_live or end.held or end is self.own) or not end.seen.is_new(mark):
            return
        try:
            section = marks.section(message, mark, here, message.user)
        except FairleadError as error:
            self._log("warning", f"a message of {message.topic!r} cannot go on: {error}")
            end.dropped += 1
            return
        dropped = end.dropped
        end.put(Waiting(message.topic_text.encode(), section, message.body))
        if end.dropped and not dropped:
            self._log("warning", f"too much waits for {end.url}: the oldest messages are given up")

    # -- requests

    def _target(self, end: End, what: str, key: str, mark: Mark) -> End | None:
        """Which end a request that came in at `end` goes on to."""
        if end is not self.own:
            own = self.own
            return own if own.is_usable and own.server not in mark.path else None
        open_ways = {p.server: p for p in self.working if p.is_usable and p.server not in mark.path}
        for server in self.chart.nearest(end.server, open_ways, what, key):
            return open_ways[server]
        return None

    def _asked_for(self, message: Message) -> tuple[str, str]:
        return (NAMED if message.flags & FLAG_NAMED else SERVED), message.topic_text

    def on_request(self, end: End, message: Message) -> None:
        near, rid = end.session, message.correlation
        mark = self._mark(end, message, message.sender in end.wishes.links)
        if near is None:
            return
        if mark is None or not message.topic_text:
            near.respond_error(rid, "no-receiver", NOBODY)
            return
        end.messages_in += 1
        end.bytes_in += len(message.body)
        if message.kind == kinds.KIND_FANOUT:
            self._fan_out(end, near, message, mark)
            return
        target = self._target(end, *self._asked_for(message), mark)
        if target is None or target.session is None:
            near.respond_error(rid, "no-receiver", NOBODY)
            return
        self._ask(end, near, target, message, mark, Relay(near, rid, end.wake))

    def _ask(self, end: End, near: LinkSession, target: End, message: Message, mark: Mark, pending: Relay) -> None:
        far = target.session
        assert far is not None
        correlation = self._send_on(target, far, pending, message, mark, end.server)

        def stop() -> None:
            far.give_up(correlation)
            target.wake()

        near.serving[message.correlation] = stop

    def _send_on(self, target: End, far: LinkSession, pending: Pending, message: Message, mark: Mark, here: str) -> int:
        section = marks.section(message, mark, here, message.user)
        target.messages_out += 1
        target.bytes_out += len(message.body)
        correlation = far.request(
            pending,
            message.kind,
            message.flags & FLAG_NAMED,
            0,
            message.topic_text.encode(),
            section,
            message.body,
        )
        target.wake()
        return correlation

    def _fan_out(self, end: End, near: LinkSession, message: Message, mark: Mark) -> None:
        way = self.chart.way(mark.origin, message.topic_text, requests=True)
        here = end.server
        around = [self.own] if end is not self.own else self.working
        targets = [
            other
            for other in around
            if other.is_usable and (here, other.server) in way and other.server not in mark.path
        ]
        fan = FanRelay(near, message.correlation, len(targets) or 1, end.wake)
        asked: list[tuple[End, LinkSession, int]] = []

        def stop() -> None:
            for target, far, correlation in asked:
                far.give_up(correlation)
                target.wake()

        near.serving[message.correlation] = stop
        if not targets:
            fan.asked(0)
        for target in targets:
            assert target.session is not None
            correlation = self._send_on(target, target.session, fan.branch(), message, mark, here)
            asked.append((target, target.session, correlation))

    def on_converse(self, end: End, message: Message) -> None:
        near = end.session
        mark = self._mark(end, message, message.sender in end.wishes.links)
        target = None if mark is None else self._target(end, *self._asked_for(message), mark)
        if near is None:
            return
        there = TalkEnd(near, message.correlation, end.wake)
        if mark is None or target is None or target.session is None:
            there.other = there
            near.talks[message.correlation] = there
            there.fail(FairleadError(NOBODY, code="no-receiver"))
            return
        far = target.session
        beyond = TalkEnd(far, 0, target.wake)
        there.other, beyond.other = beyond, there
        beyond.correlation = far.open_talk(beyond)
        near.talks[message.correlation] = there
        section = marks.section(message, mark, end.server, message.user)
        flags = message.flags & (FLAG_NAMED | FLAG_LAST)
        topic = message.topic_text.encode()
        far.message(kinds.KIND_CONVERSE, flags, message.number, beyond.correlation, 0, topic, section, message.body)
        if flags & FLAG_LAST:
            near.talks.pop(message.correlation, None)
            far.talks.pop(beyond.correlation, None)
        target.wake()

    def on_send(self, end: End, message: Message) -> None:
        """One-way to a client by name. Whoever sent it cannot be told if nobody is there: it is counted here."""
        mark = self._mark(end, message, message.sender in end.wishes.links)
        target = None
        if mark is not None and message.flags & FLAG_NAMED:
            target = self._target(end, NAMED, message.topic_text, mark)
        if mark is None or target is None or target.session is None:
            end.dropped += 1
            return
        end.messages_in += 1
        end.bytes_in += len(message.body)
        target.messages_out += 1
        target.bytes_out += len(message.body)
        section = marks.section(message, mark, end.server, message.user)
        target.session.send_to(FLAG_NAMED, 0, message.topic_text.encode(), section, message.body)
        target.wake()

    def report(self) -> list[dict[str, object]]:
        """The links of this server, for the status report: one a parent, as seen from here."""
        there = {"wanted_there": self.own.count(SUBSCRIBED), "served_there": self.own.count(SERVED)}
        return [
            {"parent": parent.url.rpartition("@")[2].rpartition("/")[2], **parent.report(), **there}
            for parent in self.parents
        ]


class AtEnd:
    """Tells the bridge what happens at one of its ends."""

    def __init__(self, bridge: Bridge, end: End) -> None:
        self._bridge = bridge
        self._end = end

    def on_live(self) -> None:
        self._bridge.on_live(self._end)

    def on_lost(self) -> None:
        self._bridge.on_lost(self._end)

    def on_interest(self, body: bytes) -> None:
        self._bridge.on_interest(self._end, body)

    def on_publish(self, run: list[Message]) -> None:
        self._bridge.on_publish(self._end, run)

    def on_request(self, message: Message) -> None:
        self._bridge.on_request(self._end, message)

    def on_converse(self, message: Message) -> None:
        with contextlib.suppress(FairleadError):
            self._bridge.on_converse(self._end, message)

    def on_send(self, message: Message) -> None:
        with contextlib.suppress(FairleadError):
            self._bridge.on_send(self._end, message)
