"""What the router tells links, and what it makes of what they send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.broker.decisions import Decisions, Terms
from fairlead.broker.instructions import Decision
from fairlead.broker.parties import Attachment
from fairlead.broker.routing import RID_BASE, Routing
from fairlead.errors import RemoteProtocolError
from fairlead.sites import adverts
from fairlead.sites.adverts import Wishes
from fairlead.wire import kinds
from fairlead.wire.frames import Parser, encode_frame
from fairlead.wire.headers import encode_headers


class Desk:
    """A router without rings: decisions are carried out at once."""

    def __init__(self) -> None:
        self.routing = Routing()
        self.decisions = Decisions(self.routing, Terms(server="here"))
        self.told: dict[int, list[Any]] = {}

    def do(self, decision: Decision) -> list[Any]:
        for kind, payload in decision.records:
            self.routing.apply(kind, payload)
        for instruction in decision.instructions:
            for at in range(0, len(instruction.recipients), 8):
                uid = int.from_bytes(instruction.recipients[at : at + 4], "little")
                if instruction.content:
                    frame = instruction.content
                    whole = (
                        frame[:0] + len(frame).to_bytes(4, "little") + frame[4:]
                    )  # a delivered head has no body here
                    self.told.setdefault(uid, []).extend(Parser().feed(whole))
        return decision.instructions

    def client(self, uid: int, type: str = "app", user: str = "") -> Attachment:  # noqa: A002
        self.do(self.decisions.on_attach(0, uid, uid, b'{"peer": "x"}'))
        said = {"type": type, "instance": f"i{uid}", "user": user}
        self.do(self.decisions.on_response(self.routing.by_uid[uid], msgspec.json.encode(said)))
        return self.routing.by_uid[uid]

    def control(self, source: Attachment, kind: int, topic: str = "", number: int = 1, flags: int = 0) -> None:
        frame = encode_frame(kind, flags, number, 0, 0, topic.encode(), b"", b"")
        self.do(self.decisions.on_control(source, frame))

    def link(self, uid: int, user: str = "") -> Attachment:
        one = self.client(uid, "fairlead.link", user)
        self.control(one, kinds.KIND_SUBSCRIBE, "_LINK")
        return one

    def message(self, source: Attachment, kind: int, topic: str, headers: bytes = b"", flags: int = 0) -> None:
        self.told.clear()
        head = encode_frame(kind, flags, 0, 7 if kind != kinds.KIND_PUBLISH else 0, 0, topic.encode(), headers, b"")
        self.do(self.decisions.on_message(0, source, 1, 0, head))

    def wishes(self, uid: int) -> Wishes:
        found = Wishes()
        for message in self.told.get(uid, ()):
            if message.kind == kinds.KIND_INTEREST:
                found.take(message.body)
        return found


def test_a_link_hears_everything_and_then_what_changes() -> None:
    desk = Desk()
    app = desk.client(1)
    desk.control(app, kinds.KIND_SUBSCRIBE, "a.>", 1)
    for number in range(600):
        desk.control(app, kinds.KIND_SUBSCRIBE, f"many.{number}", 10 + number)
    desk.control(app, kinds.KIND_REGISTER, "work", 2)
    desk.link(2)
    wishes = desk.wishes(2)
    assert wishes.complete
    assert len(wishes.subscribed) == 601
    assert (wishes.served, wishes.named, wishes.links) == ({"work": 1}, {"app/i1": 1}, {2: "i2"})
    other = desk.client(3)
    desk.control(other, kinds.KIND_SUBSCRIBE, "a.>", 1)
    desk.control(other, kinds.KIND_REGISTER, "work", 2)
    desk.link(4)
    assert desk.wishes(2).served == {"work": 2}
    assert desk.wishes(2).links == {2: "i2", 4: "i4"}
    desk.do(desk.decisions.on_gone(app))
    wishes = desk.wishes(2)
    assert (wishes.served, wishes.named, set(wishes.subscribed)) == ({"work": 1}, {"app/i3": 1}, {"a.>"})
    desk.control(other, kinds.KIND_UNSUBSCRIBE, number=1)
    desk.control(other, kinds.KIND_UNREGISTER, number=2)
    assert (desk.wishes(2).served, desk.wishes(2).subscribed) == ({}, {})
    desk.do(desk.decisions.on_gone(desk.routing.by_uid[4]))
    assert desk.wishes(2).links == {2: "i2"}


@pytest.mark.parametrize(("user", "topic"), [("_registrar", "_REGISTRAR"), ("_streams", "_STREAMS")])
def test_nobody_elsewhere_hears_of_the_servers_own_programs(user: str, topic: str) -> None:
    desk = Desk()
    own = desk.client(1, user=user)
    desk.control(own, kinds.KIND_REGISTER, topic, 1)
    assert own.registrations
    desk.link(2)
    assert desk.wishes(2).served == {}
    desk.control(own, kinds.KIND_UNREGISTER, number=1)
    desk.control(own, kinds.KIND_REGISTER, topic, 2)
    assert desk.wishes(2).served == {}
    intruder = desk.client(3)
    desk.control(intruder, kinds.KIND_REGISTER, topic, 1)
    assert not intruder.registrations


def test_what_links_ask_for_is_no_interest_and_a_successor_knows_the_same() -> None:
    desk = Desk()
    link, _ = desk.link(1), desk.link(2)
    desk.control(link, kinds.KIND_SUBSCRIBE, "far.>", 2)
    desk.control(link, kinds.KIND_REGISTER, "far.work", 3)
    desk.control(link, kinds.KIND_REGISTER, "app/far", 4, kinds.FLAG_NAMED)
    assert (desk.wishes(2).subscribed, desk.wishes(2).served, desk.wishes(2).named) == ({}, {}, {})
    successor = Routing()
    for kind, payload in desk.routing.dump():
        successor.apply(kind, payload)
    assert set(successor.interest.links) == {1, 2}
    assert successor.interest.counts == desk.routing.interest.counts
    assert set(successor.by_name["app/far"]) == {1}
    desk.control(link, kinds.KIND_UNREGISTER, number=4)
    assert "app/far" not in desk.routing.by_name


@pytest.mark.parametrize("first", ["other", "_LINK"])
def test_only_a_link_gets_interest_or_the_name_of_another(first: str) -> None:
    desk = Desk()
    app = desk.client(1, "app" if first == "_LINK" else "fairlead.link")
    desk.control(app, kinds.KIND_SUBSCRIBE, first, 1)
    desk.control(app, kinds.KIND_SUBSCRIBE, "_LINK", 2)
    desk.control(app, kinds.KIND_REGISTER, "app/somebody", 3, kinds.FLAG_NAMED)
    assert not desk.routing.interest.links
    assert "app/somebody" not in desk.routing.by_name
    assert desk.told[1][-1].kind == kinds.KIND_ERROR


def test_a_link_does_not_get_a_request_back_and_names_of_this_server_come_first() -> None:
    desk = Desk()
    link, other = desk.link(1), desk.link(2)
    for one in (link, other):
        desk.control(one, kinds.KIND_REGISTER, "work", 5)
        desk.control(one, kinds.KIND_REGISTER, "app/i3", 6, kinds.FLAG_NAMED)
    for _ in range(3):
        desk.message(link, kinds.KIND_REQUEST, "work", encode_headers([(":path", "a,i1")]))
        assert [m.kind for m in desk.told.get(2, ())] == [kinds.KIND_REQUEST]
        link.asked.clear()
    desk.message(link, kinds.KIND_REQUEST, "work", encode_headers([(":path", "i2,i1")]))
    assert [m.headers["code"] for m in desk.told[1]] == [b"no-receiver"]
    desk.client(3)
    desk.message(link, kinds.KIND_SEND, "app/i3", flags=kinds.FLAG_NAMED)
    assert list(desk.told) == [3]
    desk.message(link, kinds.KIND_FANOUT, "work", encode_headers([(":path", "a")]))
    assert [m.number for m in desk.told[1] if m.kind == kinds.KIND_ASKED] == [1]
    assert desk.told[2][0].correlation >= RID_BASE


def test_the_user_a_link_names_is_the_user_that_is_delivered_and_that_of_a_client_is_its_own() -> None:
    desk = Desk()
    link, app = desk.link(1, "bridge"), desk.client(2, user="bob")
    reader = desk.client(3)
    desk.control(reader, kinds.KIND_SUBSCRIBE, "x")
    for source, user in ((link, "alice"), (app, "bob")):
        desk.message(source, kinds.KIND_PUBLISH, "x", encode_headers([(":from", "alice"), ("k", "v")]))
        [message] = desk.told[3]
        assert (message.user, message.headers) == (user, {"k": b"v"})
    desk.message(link, kinds.KIND_PUBLISH, "x", encode_headers([("k", "v")]))
    assert desk.told[3][0].user is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"links": {"x": "y"}}', b'{"subscribed": 3}', b"\xff" * 40])
def test_hostile_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Wishes().take(body)
    if body != b"[]":
        with pytest.raises(RemoteProtocolError):
            adverts.decode(body)
