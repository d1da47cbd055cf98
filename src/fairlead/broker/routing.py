"""The router's state: attachments, subscriptions, receivers, open requests. It changes by log records only.

Whatever happens is first decided (`decisions.py`), then written as records, and `apply` makes them true. A successor
that reads the same records has the same state; that is all there is to a live update (SRV-57, SRV-86).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fairlead import topics
from fairlead.broker import parties, records
from fairlead.broker.interest import LINK_TOPIC, LINK_TYPE, NAMED, SERVED, SUBSCRIBED, Interest
from fairlead.errors import FairleadError
from fairlead.security.rules import ANSWERS, Rules
from fairlead.security.spaces import owner, prefix_of
from fairlead.wire.headers import encode_headers
from fairlead.wire.kinds import KIND_FANOUT

TOPICS_SEPARATOR = "\x1f"
ROUTES_MAX = 65_536
NOWHERE = 0xFFFFFFFF  # the index of no connection: what is sent there is dropped
NAME_MARK = "\x1f"  # begins what a link registers for names of clients of other servers; no topic can
RID_BASE = 1 << 63  # correlations made by the server have the top bit


class Group:
    """The receivers registered for one topic."""

    __slots__ = ("members", "start")

    def __init__(self) -> None:
        self.members: dict[int, parties.Attachment] = {}
        self.start = 0


class Routing:
    """Everything the router knows, and nothing of how it is stored or sent."""

    def __init__(self, made_of: Any = parties, rules: Rules | None = None) -> None:
        self._made_of = made_of  # where Attachment, Ask and Route come from: plain, or compiled
        self._rules = rules  # None: there is no users file
        # Connection 0 is the message manager: what it broadcasts is from nobody, and may go anywhere.
        self.by_conn: dict[int, parties.Attachment] = {0: made_of.Attachment(0, 0, 0, NOWHERE, "message manager")}
        self.by_conn[0].live = True
        self.connected: Counter[str] = Counter()  # live clients of each user (`=NAME`) and of each tenant
        self.subscribed: Counter[str] = Counter()  # their subscriptions
        self.by_uid: dict[int, parties.Attachment] = {}
        self.by_name: dict[str, dict[int, parties.Attachment]] = {}
        self.by_type: dict[str, dict[int, parties.Attachment]] = {}
        self.groups: dict[bytes, Group] = {}
        self.asks: dict[int, parties.Ask] = {}
        self.held: dict[int, dict[str, Any]] = {}
        self.held_by_topic: dict[bytes, dict[int, None]] = {}
        self.next_request = 1
        self.interest = Interest()
        self.routes: dict[bytes, parties.Route] = {}
        self._joint_routes = False  # some of them are of several topics at once
        self._plain: dict[str, dict[int, dict[int, bool]]] = {}  # topic -> uid -> subscription number -> no_local
        self._patterns: topics.PatternIndex[tuple[int, int]] = topics.PatternIndex()
        self._apply: dict[int, Callable[[bytes], None]] = {
            records.ATTACH: self._attach,
            records.LIVE: self._live,
            records.DETACH: self._detach,
            records.SUBSCRIBE: self._subscribe,
            records.UNSUBSCRIBE: self._unsubscribe,
            records.REGISTER: self._register,
            records.UNREGISTER: self._unregister,
            records.ASK: self._ask,
            records.ANSWERED: self._answered,
            records.END: self._end,
            records.HOLD: self._hold,
            records.RELEASE: self._release,
            records.MOVE: self._move,
        }

    def apply(self, kind: int, payload: bytes) -> None:
        """Make one record true."""
        self._apply[kind](payload)

    # -- attachments

    def _attach(self, payload: bytes) -> None:
        f = records.facts(payload)
        attachment = self._made_of.Attachment(f["uid"], f["conn"], f["manager"], f["index"], f["peer"])
        self.by_conn[attachment.conn] = attachment
        self.by_uid[attachment.uid] = attachment

    def _live(self, payload: bytes) -> None:
        f = records.facts(payload)
        attachment = self.by_uid[f["uid"]]
        attachment.type, attachment.instance = f["type"], f["instance"]
        attachment.org, attachment.user = f["org"], f["user"]
        attachment.chosen, attachment.resuming = f["chosen"], f["resuming"]
        attachment.tenant, attachment.who = f.get("tenant", ""), f.get("who", f["user"])
        attachment.prefix = prefix_of(attachment.tenant).encode()
        if attachment.user:
            attachment.from_pair = encode_headers([(":from", attachment.user)])
        if self._rules is not None and not self._rules.unrestricted(attachment.who, "publish"):
            attachment.may_publish = {}
        if attachment.resuming:
            return  # nothing is routed to it before the move
        attachment.live = True
        self.connected.update(scopes_of(attachment))
        self.by_name.setdefault(name_of(attachment), {})[attachment.uid] = attachment
        self.by_type.setdefault(type_of(attachment), {})[attachment.uid] = attachment
        if attachment.type != LINK_TYPE:
            self.interest.add(NAMED, name_of(attachment), 1)

    def _detach(self, payload: bytes) -> None:
        uid = records.facts(payload)["uid"]
        attachment = self.by_uid.pop(uid)
        self.by_conn.pop(attachment.conn, None)
        for number in list(attachment.subscriptions):
            self._drop_subscription(attachment, number)
        for number in list(attachment.registrations):
            self._drop_registration(attachment, number)
        self.interest.links.pop(uid, None)
        if attachment.live and attachment.type != LINK_TYPE:
            self.interest.add(NAMED, name_of(attachment), -1)
        if attachment.live:
            self._fewer(self.connected, attachment)
        self._forget_name(name_of(attachment), uid)
        kind = type_of(attachment)
        self.by_type.get(kind, {}).pop(uid, None)
        if not self.by_type.get(kind, True):
            del self.by_type[kind]

    def _fewer(self, counted: Counter[str], attachment: parties.Attachment) -> None:
        for scope in scopes_of(attachment):
            counted[scope] -= 1
            if not counted[scope]:
                del counted[scope]

    def _forget_name(self, name: str, uid: int) -> None:
        self.by_name.get(name, {}).pop(uid, None)
        if not self.by_name.get(name, True):
            del self.by_name[name]

    def _move(self, payload: bytes) -> None:
        f = records.facts(payload)
        attachment, successor = self.by_uid[f["uid"]], self.by_conn[f["conn"]]
        self.by_conn.pop(attachment.conn, None)
        self.by_uid.pop(successor.uid, None)
        attachment.connect(successor.conn, successor.manager, successor.index)
        attachment.who = successor.who  # as the newest proof says
        attachment.may_publish = successor.may_publish
        attachment.peer = successor.peer
        self.by_conn[attachment.conn] = attachment
        self._forget_all_routes()

    # -- subscriptions and registrations

    def _subscribe(self, payload: bytes) -> None:
        f = records.facts(payload)
        attachment, number, pattern = self.by_uid[f["uid"]], f["number"], f["pattern"]
        attachment.subscriptions[number] = pattern, f["no_local"]
        self.subscribed.update(scopes_of(attachment))
        if pattern == LINK_TOPIC and attachment.type == LINK_TYPE:
            self._link(attachment)
        if attachment.uid not in self.interest.links:
            self.interest.add(SUBSCRIBED, pattern, 1)
        if topics.compile(pattern).is_plain:
            self._plain.setdefault(pattern, {}).setdefault(attachment.uid, {})[number] = f["no_local"]
        else:
            self._patterns.add(pattern, (attachment.uid, number))
        self._forget_routes(pattern)

    def _link(self, attachment: parties.Attachment) -> None:
        """It speaks for clients of other servers from here on: the user of each is its word (`Stored.rewritten`)."""
        self.interest.links[attachment.uid] = attachment
        attachment.from_pair = b""
        attachment.may_publish = {}  # never filled: everything a link sends is decided about here
        self._forget_all_routes()  # where it may be noted that it had a right as an ordinary client

    def _unsubscribe(self, payload: bytes) -> None:
        f = records.facts(payload)
        self._drop_subscription(self.by_uid[f["uid"]], f["number"])

    def _drop_subscription(self, attachment: parties.Attachment, number: int) -> None:
        pattern, _ = attachment.subscriptions.pop(number)
        self._fewer(self.subscribed, attachment)
        if attachment.uid not in self.interest.links:
            self.interest.add(SUBSCRIBED, pattern, -1)
        clients = self._plain.get(pattern)
        if topics.compile(pattern).is_plain and clients is not None:
            numbers = clients[attachment.uid]
            del numbers[number]
            if not numbers:
                del clients[attachment.uid]
            if not clients:
                del self._plain[pattern]
        else:
            self._patterns.remove(pattern, (attachment.uid, number))
        self._forget_routes(pattern)

    def _forget_routes(self, pattern: str) -> None:
        """A plain topic spoils its own route only, unless routes of several topics at once are remembered."""
        if topics.compile(pattern).is_plain and not self._joint_routes:
            self.routes.pop(pattern.encode(), None)
        else:
            self._forget_all_routes()

    def _forget_all_routes(self) -> None:
        self.routes.clear()
        self._joint_routes = False

    def _register(self, payload: bytes) -> None:
        f = records.facts(payload)
        attachment = self.by_uid[f["uid"]]
        attachment.registrations[f["number"]] = f["topic"]
        if f["topic"].startswith(NAME_MARK):
            self.by_name.setdefault(f["topic"].removeprefix(NAME_MARK), {})[attachment.uid] = attachment
            return
        if attachment.uid not in self.interest.links:
            self.interest.add(SERVED, f["topic"], 1)
        self.groups.setdefault(f["topic"].encode(), Group()).members[attachment.uid] = attachment

    def _unregister(self, payload: bytes) -> None:
        f = records.facts(payload)
        self._drop_registration(self.by_uid[f["uid"]], f["number"])

    def _drop_registration(self, attachment: parties.Attachment, number: int) -> None:
        topic = attachment.registrations.pop(number)
        if attachment.uid not in self.interest.links:
            self.interest.add(SERVED, topic, -1)
        if topic in attachment.registrations.values():
            return
        if topic.startswith(NAME_MARK):
            self._forget_name(topic.removeprefix(NAME_MARK), attachment.uid)
            return
        group = self.groups[topic.encode()]
        del group.members[attachment.uid]
        if not group.members:
            del self.groups[topic.encode()]

    # -- requests

    def _ask(self, payload: bytes) -> None:
        rid, requester_uid, correlation, receiver_uid, kind = records.ASK_FORMAT.unpack(payload)
        self.next_request = max(self.next_request, (rid & ~RID_BASE) + 1)
        ask = self.asks.get(rid)
        if ask is None:
            ask = self.asks[rid] = self._made_of.Ask(rid, requester_uid, correlation, kind)
            requester = self.by_uid.get(requester_uid)
            if requester is not None:
                requester.asked[correlation] = rid
        ask.awaiting[receiver_uid] = None
        receiver = self.by_uid.get(receiver_uid)
        if receiver is not None:
            receiver.serving[rid] = None
            receiver.outstanding += 1
            if kind != KIND_FANOUT:  # nobody was chosen: all were asked
                receiver.chosen = max(receiver.chosen, rid & ~RID_BASE)

    def _answered(self, payload: bytes) -> None:
        rid, receiver_uid = records.ANSWERED_FORMAT.unpack(payload)
        ask = self.asks[rid]
        del ask.awaiting[receiver_uid]
        self._relieve(rid, receiver_uid)
        if not ask.awaiting:
            self._close(ask)

    def _end(self, payload: bytes) -> None:
        ask = self.asks[records.END_FORMAT.unpack(payload)[0]]
        for uid in ask.awaiting:
            self._relieve(ask.rid, uid)
        self._close(ask)

    def _relieve(self, rid: int, uid: int) -> None:
        receiver = self.by_uid.get(uid)
        if receiver is not None and rid in receiver.serving:
            del receiver.serving[rid]
            receiver.outstanding -= 1

    def _close(self, ask: parties.Ask) -> None:
        del self.asks[ask.rid]
        requester = self.by_uid.get(ask.requester)
        if requester is not None:
            requester.asked.pop(ask.correlation, None)

    def _hold(self, payload: bytes) -> None:
        f = records.facts(payload)
        rid = f["rid"]
        self.next_request = max(self.next_request, (rid & ~RID_BASE) + 1)
        self.held[rid] = f
        self.held_by_topic.setdefault(f["topic"], {})[rid] = None
        self.by_uid[f["uid"]].asked[f["correlation"]] = rid

    def _release(self, payload: bytes) -> None:
        held = self.held.pop(records.facts(payload)["rid"])
        waiting = self.held_by_topic[held["topic"]]
        del waiting[held["rid"]]
        if not waiting:
            del self.held_by_topic[held["topic"]]
        requester = self.by_uid.get(held["uid"])
        if requester is not None:
            requester.asked.pop(held["correlation"], None)

    # -- questions

    def resolve(self, topic: bytes) -> parties.Route:
        """The route of a topic (or of several, joined by U+001F), remembered until a subscription changes it."""
        if len(self.routes) >= ROUTES_MAX:
            self._forget_all_routes()
        route = self.routes[topic] = self._resolve(topic)
        self._joint_routes = self._joint_routes or TOPICS_SEPARATOR.encode() in topic
        return route

    def _resolve(self, topic: bytes) -> parties.Route:
        found: dict[int, bool] = {}  # uid -> wants its own messages through none of its matching subscriptions
        try:
            names = topic.decode().split(TOPICS_SEPARATOR)
            for name in names:
                topics.validate_topic(name)
        except UnicodeDecodeError:
            return self._route([], frozenset(), ("bad-topic", "A topic is UTF-8 text."))
        except FairleadError as error:
            return self._route([], frozenset(), (error.code, str(error)))
        for name in names:
            for uid, numbers in self._plain.get(name, {}).items():
                found[uid] = found.get(uid, True) and all(numbers.values())
            for uid, number in self._patterns.match(name):
                if self._brings(self.by_uid[uid], name):
                    found[uid] = found.get(uid, True) and self.by_uid[uid].subscriptions[number][1]
        by_manager: dict[int, list[int]] = {}
        for uid in found:
            attachment = self.by_uid[uid]
            by_manager.setdefault(attachment.manager, []).append(attachment.recipient)
        targets = [(manager, pack_recipients(recipients)) for manager, recipients in sorted(by_manager.items())]
        of_tenant = owner(names[0]) if len(names) == 1 else ""
        is_own = not of_tenant and any(topics.is_reserved(name) for name in names)
        no_local = frozenset(uid for uid, never in found.items() if never)
        return self._route(targets, no_local, None, is_own, len(prefix_of(of_tenant)))

    def _brings(self, attachment: parties.Attachment, name: str) -> bool:
        """May this topic come through a pattern that was allowed? Asked when a route is made, not per message."""
        if attachment.uid in self.interest.links:
            return not owner(name)  # names of tenants stay on their server
        rules = self._rules
        if rules is not None and name.removeprefix(prefix_of(owner(name))).startswith(ANSWERS):
            return False
        if rules is None or not (rules.filters(attachment.who) or owner(name)):
            return True
        return rules.allows(attachment.who, "subscribe", name)

    def _route(
        self,
        targets: list[tuple[int, bytes]],
        no_local: frozenset[int],
        error: tuple[str, str] | None = None,
        is_own: bool = False,
        strip: int = 0,
    ) -> parties.Route:
        route: parties.Route = self._made_of.Route(targets, no_local, error, is_own, strip)
        return route

    def choose(self, group: Group, by_outstanding: bool) -> parties.Attachment:
        """The receiver for the next request: fewest outstanding first, then the one not chosen for longest."""
        members = group.members.values()
        if by_outstanding:
            return min(members, key=lambda a: (a.outstanding, a.chosen))
        return min(members, key=lambda a: a.chosen)

    # -- the whole state as records

    def dump(self) -> Iterator[tuple[int, bytes]]:
        """Records that make this state out of an empty one."""
        for a in self.by_uid.values():
            facts: dict[str, Any] = {"uid": a.uid, "conn": a.conn, "manager": a.manager, "index": a.index}
            yield records.ATTACH, records.payload(facts | {"peer": a.peer})
            if a.live or a.resuming:
                facts = {"uid": a.uid, "type": a.type, "instance": a.instance, "org": a.org, "user": a.user}
                facts |= {"who": a.who, "tenant": a.tenant}
                yield records.LIVE, records.payload(facts | {"chosen": a.chosen, "resuming": a.resuming})
            for number, (pattern, no_local) in a.subscriptions.items():
                facts = {"uid": a.uid, "number": number, "pattern": pattern, "no_local": no_local}
                yield records.SUBSCRIBE, records.payload(facts)
            for number, topic in a.registrations.items():
                yield records.REGISTER, records.payload({"uid": a.uid, "number": number, "topic": topic})
        for ask in self.asks.values():
            for uid in ask.awaiting:
                yield (
                    records.ASK,
                    records.ASK_FORMAT.pack(ask.rid, ask.requester, ask.correlation, uid, ask.kind),
                )
        for held in self.held.values():
            yield records.HOLD, records.payload(held)

    def summary(self) -> dict[str, Any]:
        """What the status report shows of the router's state."""
        return {
            "attachments": [
                {
                    "uid": a.uid, "manager": a.manager, "index": a.index, "peer": a.peer, "type": a.type,
                    "instance": a.instance, "org": a.org, "user": a.user, "tenant": a.tenant, "live": a.live,
                    "subscriptions": [pattern for pattern, _ in a.subscriptions.values()],
                    "registrations": [topic.removeprefix(NAME_MARK) for topic in a.registrations.values()],
                    "outstanding": a.outstanding, "open_requests": len(a.asked),
                }
                for a in self.by_uid.values()
            ],
            "requests_open": len(self.asks), "requests_held": len(self.held),
        }  # fmt: skip


def name_of(attachment: parties.Attachment) -> str:
    """By which it is addressed: nobody of another tenant can."""
    return f"{prefix_of(attachment.tenant)}{attachment.type}/{attachment.instance}"


def type_of(attachment: parties.Attachment) -> str:
    return prefix_of(attachment.tenant) + attachment.type


def scopes_of(attachment: parties.Attachment) -> list[str]:
    """For whom it is counted: its user, and its tenant."""
    return [f"={attachment.user}", attachment.tenant] if attachment.tenant else [f"={attachment.user}"]


def pack_recipients(recipients: list[int]) -> bytes:
    return b"".join(recipient.to_bytes(8, "little") for recipient in recipients)
