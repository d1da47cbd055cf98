"""Tenants' names and quotas in both engines: they must agree, and cost nothing where there are none."""

from __future__ import annotations

import struct

import pytest

from fairlead.broker.answers import frame
from fairlead.wire.durable import KIND_ANSWER, KIND_DELIVER, KIND_NOTICE, KIND_STORE, STORE_HEAD
from tests.broker.rig import ERROR, Frame
from tests.broker.test_link import Make, done, make, messages, publish

__all__ = ["make"]  # a fixture

PREFIX = b"_T.acme."


def test_names_of_a_tenant_are_looked_up_and_passed_on_with_its_prefix(make: Make) -> None:
    rig = make()
    ours, other = rig.live(), rig.live()
    rig.traffic.divert([b"_T.acme.q", b"q2", b"_T.acme.a.long.name.indeed"], [])
    rig.traffic.identity(ours.index, ours.uid, b"", False, PREFIX)
    for topic in (b"q", b"a.long.name.indeed"):
        ours.send(publish(topic, b"1"))
        (asked,) = rig.turn(2)
        assert (asked[1], Frame(asked[2]).topic) == ("publish", PREFIX + topic)
    ours.send(publish(b"q2", b"2") + publish(b"_T.acme.q", b"3"))
    other.send(publish(b"q", b"4"))
    assert rig.turn(3) == []
    entries = messages(rig)
    assert sorted(one.frame.topic for one in entries) == [b"_T.acme.q", b"q", b"q2"]  # the router's, as they were said
    done(rig, entries)
    ours.send(publish(b"x\x1fq\x1fy", b"5"))
    (asked,) = rig.turn(2)
    assert Frame(asked[2]).topic == b"_T.acme.q"
    (entry,) = messages(rig)
    assert entry.frame.topic == b"x\x1fy"
    done(rig, [entry])


def test_a_tenants_commands_of_administration_go_to_python(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"_ADMIN"], [])
    rig.traffic.identity(client.index, client.uid, b"", True, PREFIX)
    client.send(publish(b"_ADMIN", b"{}"))
    (asked,) = rig.turn(2)
    assert Frame(asked[2]).topic == b"_T.acme._ADMIN"


def test_what_was_cleared_is_not_asked_about_again_until_the_rules_change(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"t"], [])
    rig.traffic.identity(client.index, client.uid, b"", True)
    client.send(publish(b"t", b"1"))
    (asked,) = rig.turn(2)
    assert asked[1] == "publish"
    rig.traffic.clear(client.index, client.uid, b"t")
    rig.traffic.clear(client.index, client.uid + 1, b"u")
    client.send(publish(b"t", b"2"))
    assert [f.body for _, _, f in rig.heard()] == [b"2"]
    rig.traffic.identity(client.index, client.uid, b"", True)
    client.send(publish(b"t", b"3"))
    (asked,) = rig.turn(2)
    assert Frame(asked[2]).body == b"3"
    for number in range(3000):
        rig.traffic.clear(client.index, client.uid, b"%d" % number)


@pytest.mark.parametrize("kind", [KIND_ANSWER, KIND_NOTICE, ERROR])
def test_names_in_answers_are_as_the_client_says_them(make: Make, kind: int) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.identity(client.index, client.uid, b"", False, PREFIX)
    rig.answer(client, frame(kind, body=b'{"name":"_T.acme.q","other":"_T.acme._T.acme.x"}', number=7))
    rig.answer(client, frame(KIND_DELIVER, body=b"_T.acme.stays"))
    rig.turn(3)
    answer, delivery = client.frames()
    assert (answer.kind, answer.number, answer.body) == (kind, 7, b'{"name":"q","other":"x"}')
    assert delivery.body == b"_T.acme.stays"


def test_a_message_longer_than_the_quota_is_refused_and_the_next_one_taken(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"q"], [])
    assert rig.traffic.limits(client.index, client.uid, 100, [])
    assert not rig.traffic.limits(client.index, client.uid + 1, 100, [])
    client.send(publish(b"t", bytes(101)) + publish(b"q", bytes(101)) + publish(b"t", bytes(40_000)))
    rig.turn(3)
    client.send(publish(b"t", bytes(100)))
    rig.turn(3)
    assert [one.code for one in client.frames()] == ["quota-exceeded"] * 3
    (entry,) = messages(rig)
    assert len(rig.arenas[0].read(entry.handle)) == 100
    done(rig, [entry])
    assert rig.statistics()["over_quota"] == 3


def test_who_is_too_fast_waits_and_goes_on_where_it_stopped(make: Make) -> None:
    rig = make()
    client, free = rig.live(), rig.live()
    meters = bytearray(16)
    rig.traffic.metered(meters)
    rig.traffic.limits(client.index, client.uid, 0, [(0, 10.0), (1, 1000.0), (5, 1.0)])
    for number in range(30):
        client.send(publish(b"t", b"%d" % number))
        free.send(publish(b"f", b"%d" % number))
    rig.turn(5)
    entries = messages(rig)
    ours = [rig.arenas[0].read(one.handle) for one in entries if one.frame.topic == b"t"]
    assert 10 <= len(ours) <= 12
    assert sum(one.frame.topic == b"f" for one in entries) == 30
    done(rig, entries)
    rig.later(1000)
    rig.turn(5)
    more = messages(rig)
    ours += [rig.arenas[0].read(one.handle) for one in more]
    assert 19 <= len(ours) <= 23
    done(rig, more)
    rig.later(2000)
    rig.turn(5)
    rest = messages(rig)
    ours += [rig.arenas[0].read(one.handle) for one in rest]
    assert [bytes(one) for one in ours] == [b"%d" % number for number in range(30)]
    done(rig, rest)
    assert rig.statistics()["slowed"] >= 1
    assert struct.unpack("<2d", meters)[1] > 0


def test_messages_of_a_store_count_one_by_one(make: Make) -> None:
    rig = make()
    client = rig.live()
    meters = bytearray(8)
    rig.traffic.metered(meters)
    rig.traffic.limits(client.index, client.uid, 0, [(0, 100.0)])
    for _ in range(3):
        client.send(frame(KIND_STORE, body=STORE_HEAD.pack(150, 0, 0, 0)))
    assert len(rig.heard()) == 1
    rig.later(1600)
    assert len(rig.heard()) == 1
