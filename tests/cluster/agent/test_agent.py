"""The agent before real cores: routing by number and name, loss and return of groups, names, gone connections."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.client_manager import managers
from fairlead.cluster.client_manager.link_head import DATA, LINK_HEAD, OWN_SLOT, REFUSED, port_of
from fairlead.errors import RemoteProtocolError
from fairlead.wire import durable
from fairlead.wire.kinds import KIND_ERROR, KIND_PUBLISH
from tests.cluster.agent.world import Site

PINS = {"left": "a", "right": "b", "news.*": "b", "wire": "a"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two groups that serve, one manager, one client."""
    made = Site(tmp_path, pins=PINS)
    made.lead("a")
    made.lead("b")
    made.settle()
    made.client(7, made.manager())
    return made


def test_a_session_has_a_part_in_each_group_and_numbers_say_which(site: Site) -> None:
    first = site.ask(7, "session", ack="individual")
    assert first["group"] == "a"
    assert first["groups"] == ["a", "b"]
    second = site.ask(7, "session", ack="individual", group="b")
    assert second["group"] == "b"
    assert first["session"] >> 24 == 0
    assert second["session"] >> 24 == 1
    assert site.ask(7, "session", group="zzz")["error"] == "bad-request"


@pytest.mark.requirement("CLU-1")
def test_messages_go_to_both_groups_and_come_back(site: Site) -> None:
    sessions = {"left": site.session(7, "a"), "right": site.session(7, "b")}
    producers = {name: site.producer(7, session, name) for name, session in sessions.items()}
    consumers = {name: site.consumer(7, session, name) for name, session in sessions.items()}
    for name, session in sessions.items():
        site.store(7, session, producers[name], 1, *(f"{name}{i}".encode() for i in range(5)))
    receipts = site.stored(7)
    assert sorted(receipts) == sorted((producers[name], 1, 5) for name in sessions)
    got = site.delivered(7)
    for name in sessions:
        assert [body for number, body in got if number == consumers[name]] == [f"{name}{i}".encode() for i in range(5)]


def test_frames_of_one_read_go_on_as_one_message_for_each_group(site: Site) -> None:
    session = site.session(7, "a")
    producer = site.producer(7, session, "left")
    site.settle()
    link = site.clients[7]
    gathered = bytearray()
    real = site.feed
    site.feed = lambda link, data: gathered.extend(data)  # type: ignore[method-assign]
    for first in range(1, 51):
        site.store(7, session, producer, first, b"x")
    site.feed = real  # type: ignore[method-assign]
    before = site.net.sent
    site.feed(link, bytes(gathered))
    assert site.net.sent == before + 1
    assert sum(count for _, _, count in site.stored(7)) == 50


@pytest.mark.requirement("CLU-87")
def test_locate_says_where_a_name_is_or_would_be(site: Site) -> None:
    assert site.ask(7, "locate", destination="right") == {"group": "b", "kind": "", "id": ""}
    site.producer(7, site.session(7, "b"), "right")
    found = site.ask(7, "locate", destination="right")
    assert (found["group"], found["kind"]) == ("b", "queue")
    assert len(found["id"]) == 40
    assert site.ask(7, "locate", destination="_DMQ")["group"] == "a"
    assert site.ask(7, "locate")["error"] == "bad-request"


@pytest.mark.requirement("CLU-87")
def test_a_name_is_not_made_in_a_second_group(site: Site) -> None:
    wrong = site.session(7, "a")
    refused = site.ask(7, "produce", session=wrong, destination="right", kind="queue", create=True)
    assert refused["error"] == "wrong-group"
    assert "'b'" in refused["text"]
    site.producer(7, site.session(7, "b"), "right")
    assert site.ask(7, "consume", session=wrong, destination="right", kind="queue")["error"] == "wrong-group"
    assert site.members["a"].core.find("right") is None


@pytest.mark.requirement("CLU-62")
def test_only_those_who_used_a_lost_group_are_told(site: Site) -> None:
    link = site.clients[7]
    site.client(8, link)
    session = site.session(7, "a")
    site.session(7, "b")
    site.session(8, "b")
    site.notices(7), site.notices(8)
    site.kill("a")
    assert site.notices(7) == [{"event": "interrupted", "group": "a"}]
    assert site.notices(8) == []
    assert site.ask(7, "ids", session=session)["error"] == "no-message-manager"
    assert "ids" in site.ask(8, "ids", session=1 << 24 | 1)
    site.lead("a")
    assert site.notices(7) == [{"event": "back", "group": "a"}]
    assert site.notices(8) == []


def test_who_asked_for_a_session_in_vain_hears_when_the_group_is_back(tmp_path: Path) -> None:
    site = Site(tmp_path, pins=PINS)
    site.lead("a")
    site.settle()
    site.client(7, site.manager())
    site.wait(2.0)
    assert site.ask(7, "session", group="b")["error"] == "no-message-manager"
    site.lead("b")
    assert site.notices(7) == [{"event": "back", "group": "b"}]
    assert site.session(7, "b") >> 24 == 1


@pytest.mark.requirement("CLU-2")
def test_without_any_message_manager_everything_durable_is_to_be_tried_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    link = site.manager()
    site.wait(2.0)
    assert link.is_known  # managers are answered all the same
    site.client(7, link)
    for do, facts in (
        ("session", {}),
        ("locate", {"destination": "x"}),
        ("scan", {"destination": "x"}),
        ("unsubscribe", {"name": "x"}),
        ("positions", {"destination": "x.*"}),
        ("abandon", {"query": "q", "batch": 1}),
        ("publish", {"query": "q", "batch": 1, "stages": []}),
    ):
        assert site.ask(7, do, **facts)["error"] == "no-message-manager", do
    site.publish(7, "_LOG", b"x", number=77)
    errors = site.take(7, KIND_ERROR)
    assert [(got.number, got.headers["code"]) for got in errors] == [(77, b"no-message-manager")]


def test_a_new_primary_gives_what_was_safe_and_a_resumed_session_goes_on(site: Site) -> None:
    opened = site.ask(7, "session", ack="individual", group="b")
    session = opened["session"]
    site.ids[session] = opened["ids"][0]
    producer = site.producer(7, session, "right")
    site.store(7, session, producer, 1, b"one", b"two")
    assert site.stored(7) == [(producer, 1, 2)]
    site.kill("b")
    site.store(7, session, producer, 3, b"lost on the way")
    site.lead("b")
    site.notices(7)
    resume = {"id": opened["id"], "secret": opened["secret"], "incarnation": opened["incarnation"] + 1}
    again = site.ask(7, "session", ack="individual", group="b", resume=resume)
    assert again["accepted"] == {"right": 2}
    site.ids[again["session"]] = again["ids"][0]
    producer = site.producer(7, again["session"], "right")
    site.store(7, again["session"], producer, 3, b"three")
    consumer = site.consumer(7, again["session"], "right")
    assert site.delivered(7) == [(consumer, b"one"), (consumer, b"two"), (consumer, b"three")]


@pytest.mark.requirement("CLU-62")
def test_a_connection_that_ends_is_gone_in_the_groups_it_used_and_asked_of_no_other(site: Site) -> None:
    site.session(7, "b")
    site.gone(7)
    site.settle()
    for group, waiting in (("a", 0), ("b", 1)):
        sessions = site.members[group].core.sessions.by_id.values()
        assert [session.line for session in sessions] == [None] * waiting
    assert not site.agent.managers[0].connections


@pytest.mark.requirement("CLU-62")
def test_a_lost_manager_takes_its_connections_with_it(site: Site) -> None:
    other = site.manager(1)
    site.client(9, other)
    site.session(7, "a")
    site.session(9, "a")
    site.agent.manager_lost(site.clients[7])
    site.settle()
    held = [one for one in site.members["a"].core.sessions.by_id.values() if one.line is not None]
    assert len(held) == 1
    assert len(site.members["a"].links) == 2  # the agent's own and the other manager's


@pytest.mark.requirement("CLU-173")
def test_a_new_topic_is_known_to_all_managers_before_the_group_hears_that_it_is(site: Site) -> None:
    site.manager(1)
    site.muted = True
    site.inbox.clear()
    session = site.session(7, "b")
    site.command(7, "produce", session=session, destination="news.x", kind="topic", create=True)
    site.settle()
    announced = [got for got in site.inbox if got.uid == 0 and got.kind == durable.KIND_COMMAND]
    assert len(announced) == 2  # each manager once
    assert announced[0].facts["add"][0][0] == "news.x"
    core = site.members["b"].core
    waiting = core.announcements._awaited
    assert waiting
    for link in site.agent.managers.values():
        body = msgspec.json.encode({"do": "announced", "number": announced[0].facts["number"]})
        site.frame(link, 0, durable.KIND_COMMAND, body=body)
        site.settle()
    assert not core.announcements._awaited


def test_a_publish_to_a_durable_topic_goes_to_its_group_and_is_broadcast_through_its_manager(site: Site) -> None:
    session = site.session(7, "b")
    site.producer(7, session, "news.x", kind="topic")
    consumer = site.consumer(7, session, "news.x", kind="topic")
    site.publish(7, "news.x", b"hello")
    assert site.delivered(7) == [(consumer, b"hello")]
    assert [(got.topic, got.body) for got in site.broadcasts()] == [(b"news.x", b"hello")]
    site.kill("b")
    site.publish(7, "news.x", b"nobody home", number=5)
    errors = site.take(7, KIND_ERROR)
    assert [(got.number, got.headers["code"]) for got in errors] == [(5, b"no-message-manager")]
    site.publish(7, "no.such", b"transient")
    assert [(got.topic, got.body) for got in site.broadcasts()] == [(b"no.such", b"transient")]


def test_names_deleted_while_a_group_was_away_are_taken_back(site: Site) -> None:
    session = site.session(7, "b")
    site.producer(7, session, "right")
    site.kill("b")
    assert site.ask(7, "locate", destination="right")["kind"] == "queue"  # still known
    site.journals["b"].records.clear()
    site.journals["b"].bytes.clear()
    site.journals["b"].safe = 0
    site.inbox.clear()
    site.lead("b")
    site.settle()
    assert site.ask(7, "locate", destination="right")["kind"] == ""
    removed = [name for got in site.inbox if got.uid == 0 for name in got.facts.get("remove", [])]
    assert removed == ["right"]


def test_more_names_than_fit_one_frame_are_all_there_before_the_group_is_up(tmp_path: Path) -> None:
    site = Site(tmp_path, ("a",))
    member = site.lead("a")
    for number in range(4500):
        member.core.create(f"q{number}", "queue", member.core.find("_DMQ").parameters)  # type: ignore[union-attr]
    site.settle()
    link = site.manager()
    assert len(site.agent.directory) == 4503
    told = [
        name for got in site.inbox for name in (got.facts.get("names") or got.facts.get("add") or []) if got.uid == 0
    ]
    assert len(told) == 4503
    assert link.is_known


def test_managers_are_answered_only_when_all_names_are_there_or_a_moment_has_passed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.lead("a")
    site.settle()
    link = site.manager()
    assert not link.is_known
    site.lead("b")
    site.settle()
    assert link.is_known


def test_an_answer_of_an_older_link_is_dropped(site: Site) -> None:
    served = site.agent.groups[0].served
    assert served is not None
    for slot, generation in ((OWN_SLOT, 99), (0, 99), (5, 1)):
        head = LINK_HEAD.pack(REFUSED, slot, generation, served.epoch)
        site.agent.links.from_group("a", served.node, memoryview(head))
        site.agent.links.from_group("a", "stranger", memoryview(head))
    assert site.agent.groups[0].up


def test_a_refused_link_is_tried_again(site: Site) -> None:
    site.members["a"].links.stop()
    site.settle()
    assert not site.agent.groups[0].up
    site.members["a"].links.serve(site.members["a"].core, site.epochs["a"])
    site.wait(0.2)
    assert site.agent.groups[0].up


def test_a_primary_that_does_not_say_hello_is_left_and_tried_again(site: Site) -> None:
    member = site.members["a"]
    site.kill("a")
    site.members["a"] = member
    site.net.there[member.node] = deaf = type(site.bus)(site.net, member.node)
    assert not deaf.handlers
    site.view()
    site.settle()
    assert site.agent.groups[0].is_open
    assert not site.agent.groups[0].up
    site.wait(6.0)
    site.wait(0.2)
    site.members.pop("a")
    site.lead("a")
    site.settle()
    assert site.agent.groups[0].up


def test_a_client_cannot_take_the_agents_numbers(site: Site) -> None:
    body = msgspec.json.encode({"do": "session"})
    site.frame(site.clients[7], 7, durable.KIND_COMMAND, number=1 << 31, body=body)
    (error,) = site.take(7, KIND_ERROR)
    assert error.headers["code"] == b"bad-request"
    site.frame(site.clients[7], 7, durable.KIND_STORE, number=99 << 24, body=b"")
    (error,) = site.take(7, KIND_ERROR)
    assert error.headers["code"] == b"unknown-number"


@pytest.mark.requirement("CLU-102")
def test_a_full_manager_stops_the_groups_and_room_lets_them_go_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managers, "HIGH_BYTES", 1000)
    link, member = site.clients[7], site.members["a"]
    session = site.session(7, "a")
    producer = site.producer(7, session, "left")
    site.consumer(7, session, "left")
    site.stuck = True
    for first in range(1, 41):
        site.store(7, session, producer, first, bytes(100))
        site.settle()
    assert [link.told_full] == [True]
    assert link.bytes < 3000
    assert member.links.is_waiting
    site.stuck = False
    site.settle()
    assert not link.told_full
    assert len(site.delivered(7)) == 40


def test_patterns_and_stages_are_asked_of_all_groups_and_joined(site: Site) -> None:
    a, b = site.session(7, "a"), site.session(7, "b")
    site.producer(7, a, "wire", kind="topic")
    site.producer(7, b, "news.x", kind="topic")
    found = site.ask(7, "positions", destination=">")
    assert {one["name"] for one in found["destinations"]} >= {"wire", "news.x"}
    for name in ("left", "right"):
        stage = site.ask(7, "stage", destination=name, kind="queue", create=True, stage="s", query="q", batch=1)
        entries = b"".join(site_entry(body) for body in (b"1", b"2"))
        head = durable.STORE_HEAD.pack(2, 0, 1_000_000, 0)
        site.frame(site.clients[7], 7, durable.KIND_STORE, number=stage["stage"], correlation=1, body=head + entries)
    site.settle()
    stages = [["s", {"left": 2, "right": 2}]]
    assert site.ask(7, "publish", query="q", batch=1, stages=stages) == {"published": "now", "messages": 4}
    assert site.ask(7, "publish", query="q", batch=1, stages=stages)["published"] == "before"
    assert site.ask(7, "abandon", query="q", batch=2) == {"dropped": 0}
    assert site.ask(7, "publish", query="q", batch=2, stages="x")["error"] == "bad-request"


def site_entry(body: bytes) -> bytes:
    from fairlead.wire.entry_codec import encode

    return encode(body)


def test_a_subscription_is_ended_in_the_group_that_has_it(site: Site) -> None:
    b = site.session(7, "b")
    site.consumer(7, b, "news.x", kind="topic", durable="mine")
    assert site.ask(7, "end", handle=site.consumer(7, b, "news.y", kind="topic", durable="other")) == {}
    assert site.ask(7, "unsubscribe", name="other") == {}
    assert "error" in site.ask(7, "unsubscribe", name="never")


def test_administration_goes_to_the_group_of_a_destination_or_to_all(site: Site) -> None:
    site.producer(7, site.session(7, "b"), "right")
    site.producer(7, site.session(7, "a"), "left")

    def admin(command: str, scope: dict[str, str] | None = None, **args: object) -> dict[str, object]:
        question = {"id": f"{command}{next(site.numbers)}", "command": command, "args": args, "reply": "r.1"}
        site.publish(7, "_ADMIN", msgspec.json.encode(question | {"scope": scope or {}}))
        (answer,) = site.broadcasts()
        assert answer.topic == b"r.1"
        assert answer.facts["expected"] == 1
        assert answer.facts["node"] == "cm1"
        return answer.facts

    assert admin("destination", destination="right")["ok"]["group"] == "b"  # type: ignore[index]
    listed = admin("destinations")["ok"]
    assert {row["name"] for row in listed["destinations"]} >= {"left", "right", "_LOG"}  # type: ignore[index]
    assert set(admin("status")["ok"]["groups"]) == {"a", "b"}  # type: ignore[index]
    assert admin("status", {"group": "b"})["ok"]["group"] == "b"  # type: ignore[index]
    assert admin("destination", destination="none")["error"]["code"] == "no-destination"  # type: ignore[index]
    site.kill("b")
    partial = admin("destinations")["ok"]
    assert partial["missing"] == ["b"]  # type: ignore[index]
    assert partial["incomplete"] is True  # type: ignore[index]
    assert admin("destination", destination="right")["error"]["code"] == "no-message-manager"  # type: ignore[index]
    assert admin("agent")["ok"]["kind"] == "cm"  # type: ignore[index]


@pytest.mark.requirement("CLU-184")
def test_an_administration_command_said_twice_is_executed_once(site: Site) -> None:
    question = {"id": "once", "command": "create", "args": {"destination": "right"}, "reply": "r.1"}
    for _ in range(2):
        site.publish(7, "_ADMIN", msgspec.json.encode(question))
        site.settle()
    first, second = (got.facts["ok"] for got in site.broadcasts())
    assert first == second
    assert first["existed"] is False


def test_a_commit_across_groups_is_seen_in_both_or_none(site: Site) -> None:
    a, b = site.session(7, "a"), site.session(7, "b")
    left, right = site.producer(7, a, "left"), site.producer(7, b, "right")
    consumers = site.consumer(7, a, "left"), site.consumer(7, b, "right")
    for session, producer in ((a, left), (b, right)):
        site.store(7, session, producer, 1, b"money", transaction=1)
    site.settle()
    assert site.delivered(7) == []
    ids = {name: site.ask(7, "locate", destination=name)["id"] for name in ("left", "right")}
    parts = [
        {"session": a, "transaction": 1, "sends": {str(left): 1}, "lowest": ids["left"]},
        {"session": b, "transaction": 1, "sends": {str(right): 1}, "lowest": ids["right"]},
    ]
    assert "error" not in site.ask(7, "commit", parts=parts)
    assert sorted(site.delivered(7)) == sorted((consumer, b"money") for consumer in consumers)
    assert site.ask(7, "commit", parts=[{"session": 5, "transaction": 1}])["error"] == "session-lost"


def test_groups_added_later_are_told_to_clients_and_linked(site: Site) -> None:
    from fairlead.cluster.client_manager.placement import Group

    site.session(7, "a")
    site.specs = [*site.specs, Group("c")]
    from tests.cluster.core_rig import MemoryJournal

    site.journals["c"], site.epochs["c"] = MemoryJournal(), 0
    site.agent.configure(site.specs)
    site.bus.listen(port_of("c"), site._handler("c"))
    assert {"event": "groups", "groups": ["a", "b", "c"]} in site.notices(7)
    site.lead("c")
    site.settle()
    assert site.session(7, "c") >> 24 == 2
    with pytest.raises(ValueError, match="places"):
        site.agent.configure(site.specs[1:])


@given(data=st.binary(max_size=300), slot=st.sampled_from([0, OWN_SLOT]), split=st.booleans())
@settings(max_examples=150, deadline=None)
def test_hostile_bytes_of_a_group_or_manager_harm_nobody_else(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, slot: int, split: bool
) -> None:
    site = Site(tmp_path_factory.mktemp("hostile"))
    site.lead("a")
    site.settle()
    link = site.agent.manager_opened()
    group = site.agent.groups[0]
    assert group.served is not None
    generation = group._opened[slot]
    head = LINK_HEAD.pack(DATA, slot, generation, group.served.epoch)
    site.agent.links.from_group("a", group.served.node, memoryview(head + data))
    body = data if split else b'{"do":"%s","number":%d}' % (data[:4].hex().encode(), len(data))
    for uid in (0, 3):
        for kind in (durable.KIND_COMMAND, KIND_PUBLISH, durable.KIND_ANSWER, 0x7F):
            site.frame(link, uid, kind, number=len(data), topic=data[:9], body=body)
    try:
        site.feed(link, data)
    except (RemoteProtocolError, AssertionError):
        pass
    site.wait(1.0)
    assert site.agent.groups[0].up
