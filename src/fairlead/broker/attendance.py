"""What the router answers when clients come, go, subscribe, register and give up.

Decisions change nothing: see `decisions.py`, which goes on with their messages.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import msgspec

from fairlead import topics
from fairlead.broker import records
from fairlead.broker.instructions import HEAD, Decision, Instruction, Stored, delete, error, error_frame, ok, one, plain
from fairlead.broker.interest import LINK_TOPIC, LINK_TYPE, NAMED, SERVED, SUBSCRIBED
from fairlead.broker.parties import Attachment
from fairlead.broker.routing import NAME_MARK, RID_BASE, Routing
from fairlead.errors import FairleadError
from fairlead.security import inside
from fairlead.security.quotas import Quota
from fairlead.security.rules import REGISTRAR, STREAMS
from fairlead.security.spaces import inside as inside_of
from fairlead.security.spaces import prefix_of
from fairlead.store import layout
from fairlead.wire import kinds
from fairlead.wire.frames import encode_frame

REFUSED_MAX = 256
ASKS_PER_DECISION = 256  # a lost client with more open requests is cleared up in several decisions


class Terms(NamedTuple):
    """The router's settings, as far as decisions depend on them."""

    server: str = ""
    software: str = "fairlead"
    subscriptions_max: int = 10_000
    registrations_max: int = 1_000
    requests_max: int = 65_536
    hold_ns: int = 0
    by_outstanding: bool = True
    refuse_duplicates: bool = False
    frame_max: int = 1_114_112
    header_max: int = 65_536
    body_max: int = 67_108_864
    auth: tuple[str, ...] = ("anonymous",)


class Rules:
    """Nobody is restricted, but only the registrar is the registrar; `security.rules.Rules` has the same shape."""

    OWN: ClassVar = {REGISTRAR: inside.REGISTRAR, STREAMS: inside.STREAMS}

    def allows(self, who: str, action: str, name: str) -> bool:
        return action != "serve" or self.OWN.get(name, who) == who

    def quotas_of(self, who: str) -> list[tuple[str, Quota]]:
        return []


class Attendance:
    """Decides about connections and control frames against the present state."""

    def __init__(self, routing: Routing, terms: Terms, rules: Any = None) -> None:
        self.routing = routing
        self.terms = terms
        self.rules = rules or Rules()
        self.failures: deque[str] = deque(maxlen=10)  # what went wrong in deciding, for the log
        self.refused: deque[tuple[str, str, str]] = deque(maxlen=REFUSED_MAX)  # user, action, what; for the event log
        self.exceeded: Counter[tuple[str, str]] = Counter()  # quotas met, by whose and which
        self.full = False  # the routing segment has no room for what stays: nothing is added, all else goes on

    # -- connections (docs/protocol.md section 1; SRV-30 to SRV-38)

    def on_attach(self, manager: int, uid: int, index: int, content: bytes) -> Decision:
        peer = msgspec.json.decode(content)["peer"]
        record = records.payload({"uid": uid, "conn": uid, "manager": manager, "index": index, "peer": peer})
        confirm = {
            "uid": uid, "server": self.terms.server, "version": 1, "software": self.terms.software,
            "frame_max": self.terms.frame_max, "body_max": self.terms.body_max, "header_max": self.terms.header_max,
            "auth": list(self.terms.auth),
        }  # fmt: skip
        recipient = (index << 32 | uid & 0xFFFFFFFF).to_bytes(8, "little")
        frame = encode_frame(kinds.KIND_CONFIRM, 0, 0, 0, 0, b"", b"", msgspec.json.encode(confirm))
        plain = Instruction(manager, layout.DOWN_PLAIN, recipients=recipient, content=frame)
        return Decision([(records.ATTACH, record)], [plain])

    def on_response(self, attachment: Attachment, content: bytes) -> Decision:
        f = msgspec.json.decode(content)
        tenant, who = f.get("tenant", ""), f.get("who", f.get("user", ""))
        name = f"{prefix_of(tenant)}{f['type']}/{f['instance']}"
        resuming = f.get("resume_uid", 0)
        predecessor = self.routing.by_uid.get(resuming)
        same = predecessor is not None and (predecessor.user, predecessor.tenant) == (f.get("user", ""), tenant)
        if resuming and (predecessor is None or not predecessor.live or not same):
            return self._refuse(attachment, "not-allowed", "There is no attachment that this token can resume.")
        if not resuming and (full := self._over(self.routing.connected, who, "connections")):
            return self._refuse(attachment, "quota-exceeded", full)
        if not resuming and self.terms.refuse_duplicates and name in self.routing.by_name:
            return self._refuse(
                attachment, "duplicate-instance", f"Another client is attached as {f['type']}/{f['instance']}."
            )
        facts = {
            "uid": attachment.uid, "type": f["type"], "instance": f["instance"], "org": f.get("org", ""),
            "user": f.get("user", ""), "who": who, "tenant": tenant, "chosen": 0, "resuming": resuming,
        }  # fmt: skip
        welcome = {
            "uid": resuming or attachment.uid, "user": f.get("user", ""), "keep_alive_s": f.get("keep_alive_s", 30),
            "resumed": bool(resuming),
        }  # fmt: skip
        frame = encode_frame(kinds.KIND_WELCOME, 0, 0, 0, 0, b"", b"", msgspec.json.encode(welcome))
        told = [] if resuming or f["type"] == LINK_TYPE else self.routing.interest.changed([(NAMED, name, 1)])
        return Decision([(records.LIVE, records.payload(facts))], [plain(attachment, frame), *told])

    def _over(self, counted: Counter[str], who: str, kind: str) -> str:
        """Why there may be no more of this kind for this user or its tenant; empty: there may."""
        for scope, quota in self.rules.quotas_of(who):
            most = getattr(quota, kind)
            if most and counted[scope] >= most:
                whose = f"The user {scope[1:]}" if scope.startswith("=") else f"The tenant {scope}"
                self.exceeded[scope, kind] += 1
                return f"{whose} has the {most} {kind} it may have."
        return ""

    def on_rules(self) -> Iterator[Decision]:
        """Other rules are in force: what somebody has and may have no more ends, and they are told."""
        for source in list(self.routing.by_uid.values()):
            if not source.live or source.uid in self.routing.interest.links:
                continue
            for number, (pattern, _) in list(source.subscriptions.items()):
                if not self.rules.allows(source.who, "subscribe", pattern):
                    yield self._withdrawn(source, number, records.UNSUBSCRIBE, SUBSCRIBED, pattern)
            for number, topic in list(source.registrations.items()):
                if not self.rules.allows(source.who, "serve", topic):
                    yield self._withdrawn(source, number, records.UNREGISTER, SERVED, topic)

    def _withdrawn(self, source: Attachment, number: int, kind: int, what: str, key: str) -> Decision:
        self.refused.append((source.user, "subscribe" if what == SUBSCRIBED else "serve", key))
        verb = "subscribe to" if what == SUBSCRIBED else "serve"
        text = f"{source.user or 'An anonymous client'} may not {verb} {self._bare(source, key)} any more."
        told = [error(source, "not-allowed", text, number=number)]
        record = records.payload({"uid": source.uid, "number": number})
        return Decision([(kind, record)], [*told, *self.routing.interest.changed([(what, key, -1)])])

    def _inside(self, source: Attachment, topic: bytes) -> bytes:
        """A topic, or several, of this client as the server keeps them."""
        if not source.prefix or not topic:
            return topic
        return b"\x1f".join(source.prefix + one for one in topic.split(b"\x1f"))

    def _bare(self, source: Attachment, text: str) -> str:
        """A text for this client: in it its names are as it says them."""
        return text.replace(prefix_of(source.tenant), "") if source.tenant else text

    def _refuse(self, attachment: Attachment, code: str, text: str) -> Decision:
        """The client is told why, then its connection is closed; its GONE notice clears the rest up."""
        frame = error_frame(code, text)
        instruction = plain(attachment, frame)._replace(kind=layout.DOWN_DETACH)
        return Decision([], [instruction])

    def on_gone(self, attachment: Attachment) -> Decision:
        """SRV-112: whoever waits for this client is told; whom it asked may stop working (SRV-53, SRV-55, SRV-113)."""
        noted: list[tuple[int, bytes]] = []
        told: list[Instruction] = []
        for rid in attachment.serving:
            noted.append((records.ANSWERED, records.ANSWERED_FORMAT.pack(rid, attachment.uid)))
            told += self._receiver_lost(rid, attachment.uid)
            if len(noted) == ASKS_PER_DECISION:
                return Decision(noted, told, again=True)
        for rid in attachment.asked.values():
            if rid in attachment.serving and len(self.routing.asks[rid].awaiting) == 1:
                continue  # it asked itself: over with the answer noted above
            if rid in self.routing.held:
                held = self.routing.held[rid]
                noted.append((records.RELEASE, records.payload({"rid": rid})))
                told.append(delete(held["manager"], held["handle"]))
            else:
                noted.append((records.END, records.END_FORMAT.pack(rid)))
                told += self._cancelled(rid)
            if len(noted) >= ASKS_PER_DECISION:
                return Decision(noted, told, again=True)
        noted.append((records.DETACH, records.payload({"uid": attachment.uid})))
        return Decision(noted, told + self._interest_gone(attachment))

    def _interest_gone(self, attachment: Attachment) -> list[Instruction]:
        """Links hear what this client was the last to want, or that another link is gone."""
        interest = self.routing.interest
        if attachment.uid in interest.links:
            return interest.unlinked(attachment)
        if not attachment.live:
            return []
        changes = [(SUBSCRIBED, pattern, -1) for pattern, _ in attachment.subscriptions.values()]
        changes += [(SERVED, topic, -1) for topic in attachment.registrations.values()]
        if attachment.type != LINK_TYPE:
            changes.append((NAMED, f"{attachment.type}/{attachment.instance}", -1))
        return interest.changed(changes)

    def _receiver_lost(self, rid: int, uid: int) -> Iterable[Instruction]:
        ask = self.routing.asks[rid]
        requester = self.routing.by_uid.get(ask.requester)
        if requester is None or requester.uid == uid:
            return
        if ask.kind == kinds.KIND_FANOUT:
            left = len(ask.awaiting) - 1
            yield plain(requester, encode_frame(kinds.KIND_LOST, 0, left, ask.correlation, uid, b"", b"", b""))
        elif ask.kind == kinds.KIND_CONVERSE:
            yield error(requester, "conversation-lost", "The receiver of this conversation is gone.", ask.correlation)
        else:
            yield error(requester, "receiver-lost", "The receiver was lost before its last response.", ask.correlation)

    def _cancelled(self, rid: int) -> Iterable[Instruction]:
        for uid in self.routing.asks[rid].awaiting:
            receiver = self.routing.by_uid.get(uid)
            if receiver is not None:
                frame = encode_frame(kinds.KIND_CANCELLED, 0, 0, rid, 0, b"", b"", b"")
                yield plain(receiver, frame)

    # -- control frames

    def on_control(self, source: Attachment, frame: bytes) -> Decision:
        _, kind, flags, topic_length, _, number, correlation, _ = HEAD.unpack_from(frame)
        topic = frame[HEAD.size : HEAD.size + topic_length]
        if not source.live:
            return Decision([], [error(source, "bad-request", "This connection is not live.", number=number)])
        try:
            if kind == kinds.KIND_SUBSCRIBE:
                pattern = inside_of(source.tenant, topic.decode())
                return self._subscribe(source, number, pattern, bool(flags & kinds.FLAG_NO_LOCAL))
            if kind == kinds.KIND_REGISTER:
                topic = self._inside(source, topic)
                return self._register(source, number, topic.decode(), named=bool(flags & kinds.FLAG_NAMED))
        except UnicodeDecodeError:
            return Decision([], [error(source, "bad-topic", "A topic is UTF-8 text.", number=number)])
        except FairleadError as problem:
            return Decision([], [error(source, problem.code, self._bare(source, str(problem)), number=number)])
        if kind == kinds.KIND_UNSUBSCRIBE:
            dropped = self._drop(source, number, source.subscriptions, records.UNSUBSCRIBE, "subscription")
            return self._wanted_less(source, dropped, SUBSCRIBED, source.subscriptions.get(number, ("", False))[0])
        if kind == kinds.KIND_UNREGISTER:
            dropped = self._drop(source, number, source.registrations, records.UNREGISTER, "registration")
            return self._wanted_less(source, dropped, SERVED, source.registrations.get(number, ""))
        if kind == kinds.KIND_CANCEL:
            return self._cancel(source, correlation)
        if kind == kinds.KIND_MOVE:
            return self._move(source)
        return Decision([], [error(source, "bad-request", f"Kind {kind} is no command.", number=number)])

    def _subscribe(self, source: Attachment, number: int, pattern: str, no_local: bool) -> Decision:
        topics.validate_pattern(pattern)
        if number in source.subscriptions:
            return self._answer_bad(source, number, f"Subscription number {number} is in use.")
        is_link = source.uid in self.routing.interest.links  # it stands for many clients, each with its own limit
        if len(source.subscriptions) >= self.terms.subscriptions_max and not is_link:
            text = f"A client may have {self.terms.subscriptions_max} subscriptions."
            return Decision([], [error(source, "too-many", text, number=number)])
        if not self.rules.allows(source.who, "subscribe", pattern):
            return self._not_allowed(source, "subscribe", f"subscribe to {pattern}", number=number)
        if full := self._over(self.routing.subscribed, source.who, "subscriptions"):
            return Decision([], [error(source, "quota-exceeded", full, number=number)])
        if self.full:
            return self._answer_full(source, number)
        facts = {"uid": source.uid, "number": number, "pattern": pattern, "no_local": no_local}
        told = [ok(source, number)]
        if pattern == LINK_TOPIC:
            if source.type != LINK_TYPE or source.subscriptions or source.registrations:
                text = f"A link has the type {LINK_TYPE} and subscribes to {LINK_TOPIC} before anything else."
                return self._answer_bad(source, number, text)
            told += self.routing.interest.linked(source)
        elif not is_link:
            told += self.routing.interest.changed([(SUBSCRIBED, pattern, 1)])
        return Decision([(records.SUBSCRIBE, records.payload(facts))], told)

    def _wanted_less(self, source: Attachment, dropped: Decision, what: str, key: str) -> Decision:
        if key == LINK_TOPIC and source.uid in self.routing.interest.links:
            return Decision([], [error(source, "bad-request", "A link ends with its connection.")])
        if dropped.records and source.uid not in self.routing.interest.links:
            return dropped._replace(
                instructions=[*dropped.instructions, *self.routing.interest.changed([(what, key, -1)])]
            )
        return dropped

    def _register_name(self, source: Attachment, number: int, name: str) -> Decision:
        """A link stands for a client of another server."""
        if source.uid not in self.routing.interest.links:
            return self._not_allowed(source, "serve", "register for the name of another client", number=number)
        if number in source.registrations:
            return self._answer_bad(source, number, f"Registration number {number} is in use.")
        facts = {"uid": source.uid, "number": number, "topic": NAME_MARK + name}
        return Decision([(records.REGISTER, records.payload(facts))], [ok(source, number)])

    def _register(self, source: Attachment, number: int, topic: str, *, named: bool = False) -> Decision:
        if named:
            return self._register_name(source, number, topic)
        topics.validate_topic(topic)
        if number in source.registrations:
            return self._answer_bad(source, number, f"Registration number {number} is in use.")
        is_link = source.uid in self.routing.interest.links
        if len(source.registrations) >= self.terms.registrations_max and not is_link:
            text = f"A client may have {self.terms.registrations_max} registrations."
            return Decision([], [error(source, "too-many", text, number=number)])
        if not self.rules.allows(source.who, "serve", topic):
            return self._not_allowed(source, "serve", f"serve {topic}", number=number)
        if self.full:
            return self._answer_full(source, number)
        noted = [(records.REGISTER, records.payload({"uid": source.uid, "number": number, "topic": topic}))]
        told = [ok(source, number), *([] if is_link else self.routing.interest.changed([(SERVED, topic, 1)]))]
        for rid in list(self.routing.held_by_topic.get(topic.encode(), ()))[:ASKS_PER_DECISION]:
            released = self._release(self.routing.held[rid], source)
            noted += released.records
            told += released.instructions
        return Decision(noted, told)

    def _drop(self, source: Attachment, number: int, table: dict[int, Any], kind: int, word: str) -> Decision:
        if number not in table:
            text = f"There is no {word} number {number}."
            return Decision([], [error(source, "unknown-number", text, number=number)])
        return Decision([(kind, records.payload({"uid": source.uid, "number": number}))], [ok(source, number)])

    def _cancel(self, source: Attachment, correlation: int) -> Decision:
        rid = source.asked.get(correlation)
        if rid is None:
            return Decision([], [])  # it ended meanwhile
        if rid in self.routing.held:
            held = self.routing.held[rid]
            return Decision(
                [(records.RELEASE, records.payload({"rid": rid}))], [delete(held["manager"], held["handle"])]
            )
        return Decision([(records.END, records.END_FORMAT.pack(rid))], list(self._cancelled(rid)))

    def _move(self, source: Attachment) -> Decision:
        """docs/protocol.md section 7: everything before MOVE has been routed; from here on the new place counts."""
        successor = next((a for a in self.routing.by_uid.values() if a.resuming == source.uid), None)
        if successor is None:
            # MOVE was its last frame here: without a place to go it has to begin anew, not to wait.
            return self._refuse(source, "bad-request", "No new connection has presented a token to resume.")
        moved = encode_frame(kinds.KIND_MOVED, 0, 0, 0, source.uid, b"", b"", b"")
        told = [plain(source, moved)._replace(kind=layout.DOWN_DETACH), plain(successor, moved)]
        return Decision([(records.MOVE, records.payload({"uid": source.uid, "conn": successor.conn}))], told)

    def _answer_bad(self, source: Attachment, number: int, text: str) -> Decision:
        return Decision([], [error(source, "bad-request", text, number=number)])

    def _answer_full(self, source: Attachment, number: int) -> Decision:
        text = "The server has no room for more subscriptions and registrations."
        return Decision([], [error(source, "unavailable", text, number=number)])

    def _not_allowed(
        self, source: Attachment, action: str, what: str, number: int = 0, correlation: int = 0
    ) -> Decision:
        self.refused.append((source.user, action, what))
        text = self._bare(source, f"{source.user or 'An anonymous client'} may not {what}.")
        return Decision([], [error(source, "not-allowed", text, correlation, number)])

    # -- requests that wait for a receiver: no touch until one is known (case l of the ordering table)

    def _hold(self, message: Stored, topic: bytes, correlation: int, now_ns: int) -> Decision:
        facts = {
            "rid": RID_BASE | self.routing.next_request, "uid": message.source.uid, "correlation": correlation,
            "manager": message.back, "handle": message.handle, "body_length": message.body_length,
            "head": message.head, "topic": topic, "until_ns": now_ns + self.terms.hold_ns,
        }  # fmt: skip
        return Decision([(records.HOLD, records.payload(facts))], [])

    def _release(self, held: dict[str, Any], receiver: Attachment) -> Decision:
        source = self.routing.by_uid[held["uid"]]
        message = Stored(held["manager"], held["handle"], held["body_length"], held["head"], source)
        ask = records.ASK_FORMAT.pack(held["rid"], source.uid, held["correlation"], receiver.uid, held["head"][4])
        noted = [(records.RELEASE, records.payload({"rid": held["rid"]})), (records.ASK, ask)]
        return Decision(noted, message.deliver([(receiver.manager, one(receiver))], held["rid"]))

    def on_tick(self, now_ns: int) -> Decision | None:
        """Held requests whose time is over are answered: there is no receiver (SRV-51)."""
        late = [held for held in self.routing.held.values() if held["until_ns"] <= now_ns][:ASKS_PER_DECISION]
        if not late:
            return None
        noted, told = [], []
        for held in late:
            noted.append((records.RELEASE, records.payload({"rid": held["rid"]})))
            told.append(delete(held["manager"], held["handle"]))
            source = self.routing.by_uid[held["uid"]]
            told.append(error(source, "no-receiver", "Nobody came to receive this.", held["correlation"]))
        return Decision(noted, told)

    def on_undelivered(self, content: bytes) -> Decision:
        """A one-way message did not reach its receiver; open requests are reported by the receiver's GONE notice."""
        _, kind, _, _, _, _, correlation, peer = HEAD.unpack_from(content)
        sender = self.routing.by_uid.get(peer)
        if kind != kinds.KIND_SEND or not correlation or sender is None:
            return Decision([], [])
        return Decision([], [error(sender, "receiver-lost", "The receiver was lost before this.", correlation)])
