"""What the router does with each message: records to log and instructions to send, nothing done yet.

A decision changes nothing. The turn looks whether every ring has room for its instructions, and only then makes the
records true and writes the instructions; otherwise the entry stays in its queue and is decided again later. The
compiled loop takes short cuts through the common cases; this is the whole rule, and its oracle.
"""

from __future__ import annotations

import traceback

from fairlead.broker import records
from fairlead.broker.attendance import Attendance, Terms
from fairlead.broker.instructions import HEAD, Decision, Stored, delete, error, one, plain
from fairlead.broker.interest import path_of
from fairlead.broker.parties import Attachment
from fairlead.broker.routing import RID_BASE, Group, pack_recipients
from fairlead.errors import FairleadError
from fairlead.security.spaces import prefix_of
from fairlead.store import layout
from fairlead.wire import kinds
from fairlead.wire.frames import encode_frame
from fairlead.wire.headers import decode_headers

__all__ = ["Decisions", "Terms"]


class Decisions(Attendance):
    """Decides about entries of the up rings against the present state."""

    # -- messages (SRV-44 to SRV-56); `back` is the manager that stored the message

    def on_message(
        self, back: int, source: Attachment | None, handle: int, body_length: int, head: bytes, now_ns: int = 0
    ) -> Decision:
        if source is None or not source.live:
            return Decision([], [delete(back, handle)], refused=True)
        _, kind, flags, topic_length, _, _, correlation, peer = HEAD.unpack_from(head)
        topic = head[HEAD.size : HEAD.size + topic_length]
        message = Stored(back, handle, body_length, head, source, source.uid in self.routing.interest.links)
        if kind == kinds.KIND_PUBLISH:
            return self._publish(message, topic)
        if kind == kinds.KIND_RESPONSE or (kind == kinds.KIND_CONVERSE and correlation >= RID_BASE):
            return self._respond(message, correlation, bool(flags & kinds.FLAG_LAST))
        if correlation >= RID_BASE:
            return self._give_up(message, "bad-request", "A correlation of one's own is below 2^63.", correlation)
        if kind == kinds.KIND_CONVERSE and correlation in source.asked:
            return self._continue(message, source.asked[correlation], bool(flags & kinds.FLAG_LAST))
        if kind == kinds.KIND_FANOUT:
            return self._fan_out(message, topic, correlation)
        if kind in (kinds.KIND_REQUEST, kinds.KIND_CONVERSE, kinds.KIND_SEND):
            return self._address(message, kind, flags, topic, correlation, peer, now_ns)
        return self._give_up(message, "bad-request", f"Kind {kind} is no message.", correlation)

    def _may_publish(self, source: Attachment, topic: bytes) -> bool:
        """The topic is as the server keeps it. Answers are remembered where the compiled loop looks for them."""
        if source.uid == 0 or (source.may_publish is None and not topic.startswith(b"_") and b"\x1f_" not in topic):
            return True
        cache = None if source.uid in self.routing.interest.links else source.may_publish
        allowed = None if cache is None else cache.get(topic)
        if allowed is None:
            names = topic.decode(errors="replace").split("\x1f")
            allowed = all(self.rules.allows(source.who, "publish", name) for name in names)
            if cache is not None:
                if len(cache) > 4096:
                    cache.clear()
                cache[topic] = allowed
        return allowed

    def _publish(self, message: Stored, topic: bytes) -> Decision:
        topic = self._inside(message.source, topic)
        route = self.routing.routes.get(topic) or self.routing.resolve(topic)
        if route.error:
            code, text = route.error
            return self._give_up(message, code, self._bare(message.source, text))
        if not self._may_publish(message.source, topic):
            return self._give_up_not_allowed(message, "publish", f"publish to {topic.decode()}")
        if route.strip and not message.source.prefix:
            message = message.without(route.strip)
        targets = route.targets
        if message.source.uid in route.no_local:
            own = message.source.recipient.to_bytes(8, "little")
            targets = [
                (m, b"".join(r[i : i + 8] for i in range(0, len(r), 8) if r[i : i + 8] != own)) for m, r in targets
            ]
            targets = [(m, r) for m, r in targets if r]
        return Decision([], message.deliver(targets, 0))

    def _address(
        self, message: Stored, kind: int, flags: int, topic: bytes, correlation: int, peer: int, now_ns: int
    ) -> Decision:
        """A request, the first of a conversation, or a one-way message: find the one receiver."""
        source = message.source
        receiver: Attachment | None
        if peer:
            receiver = self.routing.by_uid.get(peer)
            if receiver is not None and receiver.tenant != source.tenant:
                receiver = None  # for this client there is nobody of that number
        elif flags & kinds.FLAG_NAMED:
            receiver = self._named(message, (source.prefix + topic).decode(errors="replace"))
        else:
            topic = self._inside(source, topic)
            if not self._may_publish(source, topic):
                return self._give_up_not_allowed(message, "publish", "send to this topic", correlation)
            group = self.routing.groups.get(topic)
            if group and message.linked:
                group = self._without_way_back(message, group)
            receiver = self.routing.choose(group, self.terms.by_outstanding) if group and group.members else None
        if kind != kinds.KIND_SEND:
            if correlation in source.asked:
                text = f"Correlation {correlation} is in use."
                return self._give_up(message, "bad-request", text, correlation)
            if len(source.asked) >= self.terms.requests_max:
                text = f"A client may have {self.terms.requests_max} open requests."
                return self._give_up(message, "too-many", text, correlation)
        if receiver is None or not receiver.live:
            by_topic = not peer and not flags & kinds.FLAG_NAMED
            if self.terms.hold_ns and not self.full and kind != kinds.KIND_SEND and by_topic:
                return self._hold(message, topic, correlation, now_ns)
            return self._give_up(message, "no-receiver", "Nobody is there to receive this.", correlation)
        if kind == kinds.KIND_SEND:
            return Decision([], message.deliver([(receiver.manager, one(receiver))], correlation))
        rid = RID_BASE | self.routing.next_request
        record = records.ASK_FORMAT.pack(rid, source.uid, correlation, receiver.uid, kind)
        return Decision([(records.ASK, record)], message.deliver([(receiver.manager, one(receiver))], rid))

    def _named(self, message: Stored, name: str) -> Attachment | None:
        """The client of this name: one of this server before a link to one of another."""
        found = self.routing.by_name.get(name)
        if not found:
            return None
        links = self.routing.interest.links
        back = self._way_back(message) if message.linked else ()
        own = next((a for uid, a in found.items() if uid not in links), None)
        return own or next((a for uid, a in found.items() if uid not in back), None)

    def _way_back(self, message: Stored) -> set[int]:
        """Links that lead to where a message of a link came from: it is not given to them (SRV-120)."""
        _, _, _, topic_length, headers_length, *_ = HEAD.unpack_from(message.head)
        at = HEAD.size + topic_length
        path = path_of(message.head[at : at + headers_length])
        found = {uid for uid, link in self.routing.interest.links.items() if link.instance in path}
        return found | {message.source.uid}

    def _without_way_back(self, message: Stored, group: Group) -> Group:
        back, left = self._way_back(message), Group()
        left.members = {uid: a for uid, a in group.members.items() if uid not in back}
        return left

    def _respond(self, message: Stored, rid: int, last: bool) -> Decision:
        source = message.source
        ask = self.routing.asks.get(rid)
        if ask is None or source.uid not in ask.awaiting:
            if rid in source.serving or rid < RID_BASE:
                return self._give_up(message, "unknown-correlation", "No request has this correlation.", rid)
            return Decision([], [delete(message.back, message.handle)], refused=True)  # it was cancelled meanwhile
        requester = self.routing.by_uid.get(ask.requester)
        noted = [(records.ANSWERED, records.ANSWERED_FORMAT.pack(rid, source.uid))] if last else []
        if requester is None:
            return Decision(noted, [delete(message.back, message.handle)], refused=True)
        return Decision(noted, message.deliver([(requester.manager, one(requester))], ask.correlation))

    def _continue(self, message: Stored, rid: int, last: bool) -> Decision:
        """A further request of a conversation: to the receiver that had the first (SRV-52)."""
        ask = self.routing.asks.get(rid)
        if ask is None:
            return self._give_up(message, "bad-request", "The first request still waits.", message.correlation)
        receiver = self.routing.by_uid[next(iter(ask.awaiting))]
        noted = [(records.END, records.END_FORMAT.pack(rid))] if last else []
        return Decision(noted, message.deliver([(receiver.manager, one(receiver))], rid))

    def _fan_out(self, message: Stored, topic: bytes, correlation: int) -> Decision:
        source = message.source
        _, _, _, topic_length, headers_length, *_ = HEAD.unpack_from(message.head)
        try:
            at = HEAD.size + topic_length
            pairs = dict(decode_headers(message.head[at : at + headers_length]))
            wanted_type, wanted_org = pairs.get(":type", b"").decode(), pairs.get(":org", b"").decode()
        except FairleadError as problem:
            return self._give_up(message, problem.code, str(problem), correlation)
        except UnicodeDecodeError:
            return self._give_up(message, "bad-request", "Type and organisation are UTF-8.", correlation)
        topic = self._inside(source, topic)
        if topic:
            group = self.routing.groups.get(topic)
            if group and message.linked:
                group = self._without_way_back(message, group)
            candidates = list(group.members.values()) if group else []
        elif wanted_type:
            candidates = list(self.routing.by_type.get(prefix_of(source.tenant) + wanted_type, {}).values())
        elif wanted_org:
            candidates = [a for a in self.routing.by_uid.values() if a.live and a.tenant == source.tenant]
        else:
            text = "A fan-out request names a topic, a type or an organisation."
            return self._give_up(message, "bad-request", text, correlation)
        if topic and not self._may_publish(source, topic):
            return self._give_up_not_allowed(message, "publish", "ask this topic", correlation)
        if correlation in source.asked or len(source.asked) >= self.terms.requests_max:
            return self._give_up(message, "bad-request", f"Correlation {correlation} is in use.", correlation)
        links = self.routing.interest.links if topic else {}
        chosen = [
            a
            for a in candidates
            if a.live
            and (topic or a is not source)
            and (
                a.uid in links  # whom it asks has this type, or it says that there is nobody
                or ((not wanted_type or a.type == wanted_type) and (not wanted_org or a.org == wanted_org))
            )
        ]
        if not chosen:
            return self._give_up(message, "no-receiver", "Nobody is there to receive this.", correlation)
        rid = RID_BASE | self.routing.next_request
        noted = [
            (records.ASK, records.ASK_FORMAT.pack(rid, source.uid, correlation, a.uid, kinds.KIND_FANOUT))
            for a in chosen
        ]
        by_manager: dict[int, list[int]] = {}
        for receiver in chosen:
            by_manager.setdefault(receiver.manager, []).append(receiver.recipient)
        targets = [(manager, pack_recipients(recipients)) for manager, recipients in sorted(by_manager.items())]
        asked = encode_frame(kinds.KIND_ASKED, 0, len(chosen), correlation, 0, b"", b"", b"")
        return Decision(noted, [plain(source, asked), *message.deliver(targets, rid)])

    # -- giving up

    def on_failure(self, back: int, kind: int, source: Attachment | None, handle: int, content: bytes) -> Decision:
        """Deciding failed: a fault of ours. It ends this one entry and not the router, and SRV-71 holds here too."""
        self.failures.append(traceback.format_exc(limit=-3))
        number = correlation = 0
        if kind in (layout.UP_MESSAGE, layout.UP_CONTROL) and len(content) >= HEAD.size:
            _, _, _, _, _, number, correlation, _ = HEAD.unpack_from(content)
        text = "The server met a fault of its own; its log says more."
        told = [error(source, "internal", text, correlation, number)] if source is not None else []
        return Decision([], [*told, delete(back, handle)] if handle else told, refused=bool(handle))

    def _give_up(self, message: Stored, code: str, text: str, correlation: int = 0) -> Decision:
        """SRV-71: every message leads to a last instruction, this one to a lone delete; its sender is told."""
        told = [error(message.source, code, text, correlation), delete(message.back, message.handle)]
        return Decision([], told, refused=True)

    def _give_up_not_allowed(self, message: Stored, action: str, what: str, correlation: int = 0) -> Decision:
        refusal = self._not_allowed(message.source, action, what, correlation=correlation)
        told = [*refusal.instructions, delete(message.back, message.handle)]
        return Decision([], told, refused=True)
