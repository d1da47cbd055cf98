"""Administration: commands on `_ADMIN`, their answers, and what each command does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from fairlead.cluster.admin import Later
from fairlead.wire.durable import ACKNOWLEDGE, REJECT
from fairlead.wire.headers import encode_headers
from fairlead.wire.kinds import FLAG_IDENTITY, KIND_ERROR, KIND_PUBLISH
from fairlead.wire.properties import encode_properties
from tests.cluster.manager_rig import Client, Manager


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    return Manager(tmp_path)


class Failed(Exception):
    pass


def order(manager: Manager, name: str, /, **args: Any) -> dict[str, Any]:
    """Run a command as the local endpoint does (CLU-185)."""
    told: list[dict[str, Any]] = []
    manager.core.admin.execute(name, args, told.append)
    manager.turn()
    (answer,) = told
    if "error" in answer:
        raise Failed(answer["error"]["code"], answer["error"]["text"])
    return dict(answer["ok"])


def publish(manager: Manager, client: Client, **request: Any) -> list[dict[str, Any]]:
    manager.published.clear()
    headers = encode_headers([(":from", "ann")])
    body = msgspec.json.encode(request)
    manager.put(client.uid, KIND_PUBLISH, topic=b"_ADMIN", headers=headers, flags=FLAG_IDENTITY, body=body)
    manager.turn()
    return [frame.json for frame in manager.published if frame.topic == request["reply"]]


def fill(manager: Manager, name: str, *bodies: bytes, **how: Any) -> tuple[Client, dict[str, Any]]:
    client = manager.client("ann")
    session = client.do("session")
    producer = client.do("produce", session=session["session"], destination=name, create=True)["producer"]
    client.store(producer, 1, *bodies, ids=session["ids"][0], **how)
    manager.turn()
    return client, session


def consume(client: Client, session: dict[str, Any], name: str) -> int:
    facts = client.do("consume", session=session["session"], destination=name, messages=100, bytes=1 << 20)
    return int(facts["consumer"])


class TestTheFrame:
    @pytest.mark.requirement("CLU-180", "CLU-182", "CLU-183")
    def test_a_command_is_a_message_and_its_answer_too(self, manager: Manager) -> None:
        (answer,) = publish(manager, manager.client(), command="status", id="7", reply="replies.1")
        assert answer["id"] == "7"
        assert answer["node"] == "mm-0"
        assert answer["expected"] == 1
        assert "view" in answer
        assert answer["ok"]["destinations"] == 3

    @pytest.mark.requirement("CLU-181")
    def test_only_those_who_are_meant_answer(self, manager: Manager) -> None:
        client = manager.client()
        for scope, count in (
            ({}, 1),
            ({"node": "mm-0"}, 1),
            ({"node": ["mm-0", "mm-1"]}, 1),
            ({"node": "mm-1"}, 0),
            ({"kind": "message-manager"}, 1),
            ({"kind": "connection-manager"}, 0),
            ({"group": "a", "role": "primary"}, 1),
            ({"group": "b"}, 0),
            ({"role": "backup"}, 0),
        ):
            assert len(publish(manager, client, command="status", reply="r", scope=scope)) == count

    @pytest.mark.requirement("CLU-184")
    def test_a_command_said_twice_is_done_once(self, manager: Manager) -> None:
        fill(manager, "q", b"a")
        fill(manager, "other", b"b")
        client = manager.client()
        request = {"command": "purge", "id": "x", "args": {"destination": "q"}, "reply": "r"}
        first = publish(manager, client, **request)
        fill(manager, "q", b"c")
        assert publish(manager, client, **request) == first
        assert manager.core.find("q").depth == 1
        assert manager.core.admin.executed == 1

    @pytest.mark.requirement("CLU-75", "CLU-179")
    def test_a_module_that_registers_a_command_shows_up(self, manager: Manager) -> None:
        class Ping(Struct, kw_only=True):
            text: str
            times: int = 1

        def ping(asked: Ping) -> Later:
            """Says it again."""

            def begin(then: Callable[[Any], None]) -> None:
                manager.core.call_at(manager.now_ms, lambda: then({"said": asked.text * asked.times}))

            return Later(begin)

        manager.core.admin.register("ping", Ping, ping)
        assert order(manager, "ping", text="ab", times=2) == {"said": "abab"}
        listed = {one["name"]: one for one in order(manager, "commands")["commands"]}
        assert listed["ping"]["text"] == "Says it again."
        assert listed["ping"]["arguments"] == [
            {"name": "text", "required": True, "default": None},
            {"name": "times", "required": False, "default": 1},
        ]
        assert {"status", "destinations", "redrive", "set", "cancel-schedule"} <= set(listed)
        assert all(one["text"] for one in listed.values())

    def test_nonsense_is_answered_and_harms_nobody(self, manager: Manager) -> None:
        client = manager.client()
        for body in (b"", b"{", b"[]", b'{"command": 5}', b"\xff", b'{"command":"status","reply":"a b\\u0000"}'):
            manager.put(client.uid, KIND_PUBLISH, topic=b"_ADMIN", headers=b"\x05", body=body)
        manager.put(client.uid, KIND_PUBLISH, topic=b"_ADMIN", body=b'{"command":"status","reply":"_LOG"}')
        manager.turn()
        assert len(client.of_kind(KIND_ERROR)) == 7
        for name, args in (
            ("nonsense", {}),
            ("destination", {}),
            ("destination", {"destination": 5}),
            ("destination", {"destination": "q", "colour": "red"}),
            ("destinations", {"count": 0}),
            ("destinations", {"sort": "colour"}),
            ("browse", {"destination": "_DMQ", "selector": "a >"}),
        ):
            with pytest.raises(Failed):
                order(manager, name, **args)
        assert manager.core.faults == 0

    def test_what_changes_something_is_in_the_event_log(self, manager: Manager) -> None:
        publish(manager, manager.client(), command="create", args={"destination": "q"}, reply="r")
        (event,) = [record for record in manager.log_records if record["code"] == "admin"]
        assert (event["user"], event["command"]) == ("ann", "create")

    @pytest.mark.requirement("CLU-116")
    def test_the_answer_waits_until_it_is_safe(self, manager: Manager) -> None:
        told: list[dict[str, Any]] = []
        manager.is_holding = True
        manager.core.admin.execute("create", {"destination": "q"}, told.append)
        manager.turn()
        assert not told
        manager.is_holding = False
        manager.turn()
        assert told


class TestDestinations:
    def test_listing(self, manager: Manager) -> None:
        for number in range(5):
            fill(manager, f"work.{number}", *[b"x"] * (number + 1))
        order(manager, "create", destination="news", kind="topic")
        page = order(manager, "destinations", pattern="work.*", sort="depth", descending=True, count=2)
        assert [one["name"] for one in page["destinations"]] == ["work.4", "work.3"]
        assert (page["total"], page["next"]) == (5, 1)
        page = order(manager, "destinations", pattern="work.*", count=2, page=2)
        assert [one["name"] for one in page["destinations"]] == ["work.4"]
        assert page["next"] is None
        assert [
            one["name"] for one in order(manager, "destinations", kind="topic", pattern="news")["destinations"]
        ] == ["news"]

    def test_life_of_one(self, manager: Manager) -> None:
        made = order(manager, "create", destination="q", parameters={"max_messages": 5})
        assert not made["existed"]
        assert order(manager, "create", destination="q")["existed"]
        facts = order(manager, "destination", destination="q")
        assert facts["parameters"]["max_messages"] == 5
        assert facts["parameters"]["delivery_limit"] == 10
        fill(manager, "q", b"a")
        assert order(manager, "delete", destination="q") == {"messages": 1}
        with pytest.raises(Failed, match="no-destination"):
            order(manager, "destination", destination="q")
        with pytest.raises(Failed, match="not-allowed"):
            order(manager, "delete", destination="_DMQ")
        manager.crash()
        assert manager.core.find("q") is None

    def test_one_that_is_used_is_not_deleted_as_unused(self, manager: Manager) -> None:
        order(manager, "create", destination="q")
        client, session = fill(manager, "q", b"a")
        with pytest.raises(Failed, match="unavailable"):
            order(manager, "delete", destination="q", unused=True)
        order(manager, "purge", destination="q")
        consumer = consume(client, session, "q")
        with pytest.raises(Failed, match="unavailable"):
            order(manager, "delete", destination="q", unused=True)
        client.do("end", handle=consumer)
        assert order(manager, "delete", destination="q", unused=True) == {"messages": 0}

    @pytest.mark.requirement("CLU-184")
    def test_parameters_last_and_have_a_revision(self, manager: Manager) -> None:
        order(manager, "create", destination="q")
        one = order(manager, "set", destination="q", parameters={"delivery_limit": 3})
        two = order(manager, "set", destination="q", parameters={"ttl_s": 5})
        assert two["revision"] == one["revision"] + 1
        with pytest.raises(Failed, match="bad-parameter"):
            order(manager, "set", destination="q", parameters={"colour": "red"})
        order(manager, "set", parameters={"transaction_idle_s": 30})
        with pytest.raises(Failed, match="bad-parameter"):
            order(manager, "set", parameters={"transaction_idle_s": "soon"})
        for with_checkpoint in (False, True):
            if with_checkpoint:
                manager.checkpoint()
            manager.crash()
            facts = order(manager, "destination", destination="q")["parameters"]
            assert (facts["delivery_limit"], facts["ttl_s"]) == (3, 5)
            assert order(manager, "status")["configuration_revision"] == 3
            assert manager.core.transactions.idle_s == 30.0

    def test_pause_and_resume(self, manager: Manager) -> None:
        client, session = fill(manager, "q", b"a")
        order(manager, "pause", destination="q")
        consumer = consume(client, session, "q")
        assert client.bodies(consumer) == []
        manager.crash()
        client = manager.client()
        consumer = consume(client, client.do("session"), "q")
        assert client.bodies(consumer) == []
        order(manager, "resume", destination="q")
        assert client.bodies(consumer) == [b"a"]


class TestMessages:
    def test_browsing_in_pages(self, manager: Manager) -> None:
        properties = encode_properties({"colour": "red", "raw": b"\x00"}, {":type": "paint"})
        fill(manager, "q", *(b"m%d" % number for number in range(7)), headers=properties, key=b"k", priority=6)
        page = order(manager, "browse", destination="q", count=3)
        first = page["messages"][0]
        assert (first["body"], first["key"], first["priority"], first["state"]) == ("m0", "k", 6, "ready")
        assert first["properties"] == {"colour": "red", "raw": {"base64": "AA=="}}
        assert first["headers"] == {"type": "paint"}
        seen = [one["body"] for one in page["messages"]]
        while page["next"] is not None:
            page = order(manager, "browse", destination="q", count=3, start=page["next"])
            seen += [one["body"] for one in page["messages"]]
        assert seen == [f"m{number}" for number in range(7)]
        assert manager.core.find("q").depth == 7

    def test_bodies_in_all_forms(self, manager: Manager) -> None:
        fill(manager, "q", b"plain text", b"\xff\xfe")
        text, raw = order(manager, "browse", destination="q")["messages"]
        assert text["body"] == "plain text"
        assert raw["body_base64"] == "//4="
        cut = order(manager, "message", destination="q", order=1, body_bytes=5)["message"]
        assert (cut["body"], cut["cut"], cut["bytes"]) == ("plain", True, 10)
        none = order(manager, "message", destination="q", order=1, body="none")["message"]
        assert "body" not in none
        with pytest.raises(Failed):
            order(manager, "message", destination="q", order=99)

    def test_long_pages_are_cut_to_what_fits_an_answer(self, manager: Manager) -> None:
        for number in range(5):
            fill(manager, "q", b"x" * 250_000, priority=number)
        page = order(manager, "browse", destination="q", body_bytes=262_144)
        assert 1 <= len(page["messages"]) < 5
        assert page["next"] == page["messages"][-1]["order"] + 1
        assert len(msgspec.json.encode(page)) < 960 << 10

    def test_dropping_and_purging(self, manager: Manager) -> None:
        fill(manager, "q", b"a", b"b", headers=encode_properties({"n": 1}))
        client, session = fill(manager, "q", b"c", b"d", headers=encode_properties({"n": 2}))
        assert order(manager, "drop", destination="q", orders=[2, 77]) == {"messages": 1}
        assert order(manager, "purge", destination="q", selector="n = 2") == {"messages": 2, "next": None}
        consumer = consume(client, session, "q")
        assert client.bodies(consumer) == [b"a"]
        fill(manager, "q", b"e")
        client.settle(consumer, (1, 2, ACKNOWLEDGE))
        manager.turn()
        client.do("end", handle=consumer)
        order(manager, "purge", destination="q")
        manager.crash()
        assert manager.core.find("q").depth == 0

    def test_moving(self, manager: Manager) -> None:
        fill(manager, "q", b"a", b"b", headers=encode_properties({"n": 1}))
        fill(manager, "q", b"c", headers=encode_properties({"n": 2}))
        order(manager, "create", destination="to")
        assert order(manager, "move", destination="q", to="to", orders=[2])["messages"] == 1
        assert order(manager, "move", destination="q", to="to", selector="n = 2")["messages"] == 1
        manager.crash()
        assert [one["body"] for one in order(manager, "browse", destination="to")["messages"]] == ["b", "c"]
        assert [one["body"] for one in order(manager, "browse", destination="q")["messages"]] == ["a"]


class TestRedrive:
    @pytest.fixture
    def dead(self, manager: Manager) -> Manager:
        for name in ("q", "r"):
            client, session = fill(manager, name, *(f"{name}{number}".encode() for number in range(4)))
            consumer = consume(client, session, name)
            client.settle(consumer, (1, 5, REJECT))
            manager.turn()
            client.gone()
        assert manager.core.find("_DMQ").depth == 8
        return manager

    @pytest.mark.requirement("CLU-200", "CLU-202")
    def test_everything_back_to_where_it_came_from(self, dead: Manager) -> None:
        message = order(dead, "browse", destination="_DMQ", count=1)["messages"][0]
        assert message["headers"]["dead-destination"] == "q"
        assert message["headers"]["dead-reason"] == "rejected"
        result = order(dead, "redrive", dry_run=True)
        assert (result["moved"], result["to"]) == (8, {"q": 4, "r": 4})
        assert dead.core.find("_DMQ").depth == 8
        order(dead, "redrive")
        assert dead.core.find("_DMQ").depth == 0
        for name in ("q", "r"):
            back = order(dead, "browse", destination=name)["messages"]
            assert [one["body"] for one in back] == [f"{name}{number}" for number in range(4)]
            assert not back[0]["headers"]

    def test_some(self, dead: Manager) -> None:
        assert order(dead, "redrive", reason="expired")["moved"] == 0
        assert order(dead, "redrive", origin="r", count=2)["moved"] == 2
        first = order(dead, "browse", destination="_DMQ", count=1)["messages"][0]["order"]
        assert order(dead, "redrive", orders=[first])["to"] == {"q": 1}
        order(dead, "create", destination="repaired")
        assert order(dead, "redrive", to="repaired")["to"] == {"repaired": 5}

    def test_what_has_no_way_back_stays(self, dead: Manager) -> None:
        order(dead, "delete", destination="r")
        result = order(dead, "redrive")
        assert (result["moved"], result["failed"]) == (4, {"no destination 'r'": 4})
        assert dead.core.find("_DMQ").depth == 4
        for args in ({"destination": "nowhere"}, {"destination": "_LOG"}, {"to": "nowhere"}):
            with pytest.raises(Failed):
                order(dead, "redrive", **args)

    @pytest.mark.requirement("CLU-202")
    def test_an_interruption_leaves_each_message_in_one_place(self, dead: Manager) -> None:
        everything = {f"{name}{number}" for name in "qr" for number in range(4)}
        safe = dead.core.safe
        dead.is_holding = True
        dead.core.admin.execute("redrive", {}, lambda _: None)
        dead.turn()
        written = list(dead.journal.records)
        places = set()
        for cut in range(safe, dead.core.last_index + 1):
            dead.journal.records[:] = written
            dead.core.safe = cut
            dead.crash()
            bodies = [
                one["body"]
                for name in ("q", "r", "_DMQ")
                for one in order(dead, "browse", destination=name)["messages"]
            ]
            assert sorted(bodies) == sorted(everything)
            places.add(dead.core.find("_DMQ").depth)
        assert {8, 0} < places  # and something between


class TestWho:
    def test_sessions_consumers_and_connections(self, manager: Manager) -> None:
        client, session = fill(manager, "q", b"a", b"b")
        consume(client, session, "q")
        (row,) = order(manager, "sessions", user="ann")["sessions"]
        assert (row["id"], row["consumers"], row["producers"], row["held"]) == (session["id"], 1, 1, 2)
        (row,) = order(manager, "consumers", destination="q")["consumers"]
        assert (row["held"], row["credit_messages"]) == (2, 98)
        assert order(manager, "connections")["connections"][0]["user"] == "ann"
        client.gone()
        (row,) = order(manager, "sessions")["sessions"]
        assert row["connection"] is None
        assert order(manager, "status")["waiting_sessions"] == 1

    def test_subscriptions(self, manager: Manager) -> None:
        client = manager.client("ann")
        session = client.do("session")
        how = {"kind": "topic", "create": True, "durable": "audit", "messages": 1, "bytes": 1 << 20}
        consumer = client.do("consume", session=session["session"], destination="t", **how)["consumer"]
        with pytest.raises(Failed, match="duplicate-subscription"):
            order(manager, "unsubscribe", name="audit", client="ann")
        client.do("end", handle=consumer)
        (row,) = order(manager, "subscriptions")["subscriptions"]
        assert (row["name"], row["client"], row["topics"], row["depth"]) == ("audit", "ann", ["t"], 0)
        order(manager, "unsubscribe", name="audit", client="ann")
        assert order(manager, "subscriptions")["subscriptions"] == []

    def test_transactions_and_transfers(self, manager: Manager) -> None:
        client = manager.client("ann")
        session = client.do("session", ack="transacted")
        producer = client.do("produce", session=session["session"], destination="q", create=True)["producer"]
        client.store(producer, 1, b"a", b"b", ids=session["ids"][0], transaction=4)
        client.do("transfer", session=session["session"], producer=producer, transfer=1)
        (row,) = order(manager, "transactions")["transactions"]
        assert (row["transaction"], row["messages"], row["destinations"], row["user"]) == (4, 2, ["q"], "ann")
        assert order(manager, "transfers")["uploads"] == 1

    def test_schedules(self, manager: Manager) -> None:
        fill(manager, "q", b"tick", headers=encode_properties({}, {":cron": "@every 10s"}), flags=32)
        (row,) = order(manager, "schedules", destination="q")["schedules"]
        order(manager, "cancel-schedule", destination="q", order=row["order"])
        assert order(manager, "schedules", destination="q")["schedules"] == []
        with pytest.raises(Failed):
            order(manager, "cancel-schedule", destination="q", order=row["order"])

    @pytest.mark.requirement("CLU-70")
    def test_tasks_counters_and_flow(self, manager: Manager) -> None:
        fill(manager, "q", b"a")
        names = {one["name"] for one in order(manager, "tasks", count=100)["tasks"]}
        assert {"q", "_LOG", "session-manager"} <= names
        counters = order(manager, "counters")
        assert counters["stored"] >= 1
        assert counters["faults"] == 0
        assert order(manager, "flow")["blocked"] == []


@pytest.mark.requirement("CLU-196")
def test_events_say_when_where_and_what(manager: Manager) -> None:
    order(manager, "create", destination="q")
    record, outcome = manager.log_records[-2:]
    assert {"ms", "node", "module", "level", "code", "text", "destination"} <= set(record)
    assert (outcome["code"], outcome["command"], outcome["outcome"]) == ("admin-outcome", "create", "done")
    kept = order(manager, "browse", destination="_LOG", count=1000, start=0)["messages"]
    replayed = manager.core.find("_LOG").browse(0, 1000, kept=True).messages
    assert not kept  # nobody follows, so nobody has to consume them
    codes = [msgspec.json.decode(seen.body)["code"] for seen in replayed]
    assert codes[-2:] == ["destination-created", "admin-outcome"]
