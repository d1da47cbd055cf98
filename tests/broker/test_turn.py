"""The router's turn, plain and compiled: modes, accounting, fairness, full rings, and death at every step."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.broker.decisions import Terms
from fairlead.broker.routing import RID_BASE
from fairlead.broker.routing_log import read_state
from fairlead.broker.turn import Rule
from fairlead.store import layout
from fairlead.wire import kinds
from fairlead.wire.headers import encode_headers
from tests.broker.world import TWINS, World, both_twins

requirement = pytest.mark.requirement


@pytest.fixture(params=TWINS, ids=lambda twin: twin.name)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.close()


def handles(world: World, uid: int, kind: int = kinds.KIND_PUBLISH) -> list[int]:
    return [got.handle for got in world.delivered(uid, kind)]


# -- attachment


@requirement("SRV-30")
@requirement("SRV-31")
@requirement("SRV-34")
@requirement("SRV-35")
def test_confirmation_first_then_welcome_then_messages(world: World) -> None:
    publisher = world.attach(0)
    uid, world.next_uid = world.next_uid, world.next_uid + 1
    world.clients[uid] = 1, uid % 1000
    world.push(1, layout.UP_ATTACH, uid, b'{"peer": "here"}')
    world.run()
    assert [got.frame_kind for got in world.inbox[uid]] == [kinds.KIND_CONFIRM]
    assert f'"uid":{uid}'.encode() in world.inbox[uid][0].body
    world.subscribe(uid, "a")
    world.run()
    assert world.errors(uid) == [("bad-request", 0, 1)], "not live: it cannot subscribe"
    world.push(1, layout.UP_RESPONSE, uid, b'{"type": "t", "instance": "i"}')
    world.subscribe(uid, "a", 2)
    world.run()
    world.send(publisher, kinds.KIND_PUBLISH, "a")
    world.run()
    assert [got.frame_kind for got in world.inbox[uid][2:]] == [kinds.KIND_WELCOME, kinds.KIND_OK, kinds.KIND_PUBLISH]


@requirement("SRV-38")
def test_a_duplicate_name_is_refused_where_that_is_forbidden() -> None:
    world = World(TWINS[-1], terms=Terms(refuse_duplicates=True))
    world.attach(0, instance="only")
    second = world.attach(1, instance="only")
    world.run()
    assert world.errors(second) == [("duplicate-instance", 0, 0)]
    assert world.inbox[second][-1].kind == layout.DOWN_DETACH
    world.close()


@requirement("SRV-32")
@requirement("SRV-36")
def test_what_only_the_router_reads_takes_no_part_in_the_accounting(world: World) -> None:
    uid = world.attach(0)
    for number in range(50):
        world.subscribe(uid, "a", number)
        world.control(uid, kinds.KIND_UNSUBSCRIBE, number=number)
    world.run()
    assert world.check_accounting() == {}
    assert len(world.delivered(uid, kinds.KIND_OK)) == 100


# -- broadcast


@requirement("SRV-45")
@requirement("SRV-60")
@requirement("SRV-61")
@requirement("SRV-62")
def test_a_broadcast_reaches_every_subscriber_once_by_one_instruction_a_manager(world: World) -> None:
    a, b, c, d = (world.attach(m) for m in (0, 0, 1, 1))
    for uid in (a, b, c):
        world.subscribe(uid, "prices.*")
    world.run()
    world.seen = [[], []]
    handle = world.send(d, kinds.KIND_PUBLISH, "prices.eur", body=9)
    world.run()
    assert [len(seen) for seen in world.seen] == [1, 1]
    assert world.check_accounting() == {handle: 2}
    for uid in (a, b, c):
        (got,) = world.delivered(uid, kinds.KIND_PUBLISH)
        assert (got.handle, got.body_length, got.peer) == (handle, 9, d)
    assert not world.delivered(d, kinds.KIND_PUBLISH)


@requirement("SRV-46")
@requirement("SRV-71")
def test_a_broadcast_to_nobody_is_deleted_by_a_lone_delete(world: World) -> None:
    uid = world.attach(0)
    world.run()
    handle = world.send(uid, kinds.KIND_PUBLISH, "nobody")
    world.run()
    (got,) = [got for got in world.seen[0] if got.handle]
    assert (got.kind, got.touch, got.limit) == (layout.DOWN_DELETE, 0, 1)
    assert world.check_accounting() == {handle: 1}


@requirement("SRV-42")
def test_a_client_that_matches_more_than_once_gets_one_copy(world: World) -> None:
    uid, publisher = world.attach(0), world.attach(1)
    for number, pattern in enumerate(["t1", "t2", "t*", "t1"]):
        world.subscribe(uid, pattern, number)
    world.run()
    world.send(publisher, kinds.KIND_PUBLISH, "t1\x1ft2")
    world.run()
    assert len(world.delivered(uid, kinds.KIND_PUBLISH)) == 1
    world.control(uid, kinds.KIND_UNSUBSCRIBE, number=0)
    world.control(uid, kinds.KIND_UNSUBSCRIBE, number=2)
    world.send(publisher, kinds.KIND_PUBLISH, "t1\x1ft2")
    world.run()
    assert len(world.delivered(uid, kinds.KIND_PUBLISH)) == 2


@requirement("SRV-45")
def test_a_publisher_gets_its_own_messages_unless_it_asked_not_to(world: World) -> None:
    uid = world.attach(0)
    world.subscribe(uid, "a")
    world.subscribe(uid, "b", 2, no_local=True)
    world.run()
    first = world.send(uid, kinds.KIND_PUBLISH, "a")
    second = world.send(uid, kinds.KIND_PUBLISH, "b")
    world.run()
    assert handles(world, uid) == [first]
    assert world.check_accounting() == {first: 1, second: 1}


def test_wildcards_see_topics_first_used_later(world: World) -> None:
    uid, publisher = world.attach(0), world.attach(1)
    for number, pattern in enumerate(["new.>", "glob:x*z", "regex:n[0-9]+", "wh?"]):
        world.subscribe(uid, pattern, number)
    world.run()
    sent = [world.send(publisher, kinds.KIND_PUBLISH, t) for t in ("new.a.b", "x.y.z", "n42", "who", "old", "n4x")]
    world.run()
    assert handles(world, uid) == sent[:4]


@requirement("CLU-175")
def test_wildcards_do_not_see_names_with_an_underscore(world: World) -> None:
    uid, publisher = world.attach(0), world.attach(1)
    for number, pattern in enumerate([">", "*", "glob:*", "regex:.*", "?LOG"]):
        world.subscribe(uid, pattern, number)
    world.run()
    world.send(publisher, kinds.KIND_PUBLISH, "_LOG")
    world.run()
    assert handles(world, uid) == []
    world.subscribe(uid, "_LOG", 9)
    sent = world.send(publisher, kinds.KIND_PUBLISH, "_LOG")
    world.run()
    assert handles(world, uid) == [sent]


def test_what_the_message_manager_broadcasts_reaches_everybody_and_is_from_nobody(world: World) -> None:
    here, there = world.attach(0), world.attach(1)
    for uid in (here, there):
        world.subscribe(uid, "prices.>")
    world.run()
    world.clients[0] = 1, 0
    pair = encode_headers([(":from", "ann")])
    first = world.send(0, kinds.KIND_PUBLISH, "prices.eur", headers=pair, flags=kinds.FLAG_IDENTITY)
    bad = world.send(0, kinds.KIND_PUBLISH, "prices..eur")
    world.clients[0] = 0, 0xFFFFFFFF  # the answer to the bad one goes to no connection
    world.run()
    for uid in (here, there):
        (got,) = world.delivered(uid, kinds.KIND_PUBLISH)
        assert (got.handle, got.peer) == (first, 0)
        assert pair in got.content
        assert got.content[5] & kinds.FLAG_IDENTITY
    assert world.check_accounting() == {first: 2, bad: 1}
    assert all(one["uid"] for one in world.routing.summary()["attachments"])
    world.start_router()
    world.clients[0] = 1, 0
    again = world.send(0, kinds.KIND_PUBLISH, "prices.usd")
    world.run()
    assert handles(world, here) == [first, again]


@requirement("SRV-71")
@pytest.mark.parametrize("topic", [b"", b"a..b", b"a\x00b", b"\xff", b"a.*", b"x" * 600])
def test_a_bad_topic_is_told_to_the_sender_and_the_message_deleted(world: World, topic: bytes) -> None:
    uid = world.attach(0)
    world.run()
    handle = world.send(uid, kinds.KIND_PUBLISH, topic)
    world.run()
    assert [code for code, _, _ in world.errors(uid)] == ["bad-topic"]
    assert world.check_accounting() == {handle: 1}


@requirement("SRV-71")
@pytest.mark.parametrize("kind", [0x26, 0x2E, 0x00, 0xFF])
def test_an_unknown_mode_is_deleted(world: World, kind: int) -> None:
    uid = world.attach(0)
    world.run()
    handle = world.send(uid, kind, "a")
    world.run()
    assert [code for code, _, _ in world.errors(uid)] == ["bad-request"]
    assert world.check_accounting() == {handle: 1}


# -- requests


@requirement("SRV-48")
@requirement("SRV-50")
def test_requests_are_spread_and_answers_come_back_with_the_requesters_correlation(world: World) -> None:
    requester, *receivers = (world.attach(m) for m in (0, 0, 1, 1))
    for receiver in receivers:
        world.register(receiver, "work")
    world.run()
    for number in range(300):
        world.send(requester, kinds.KIND_REQUEST, "work", correlation=number)
        world.run()
        (receiver,) = [r for r in receivers if world.delivered(r, kinds.KIND_REQUEST)]
        (asked,) = world.delivered(receiver, kinds.KIND_REQUEST)
        world.inbox[receiver].clear()
        assert asked.correlation >= RID_BASE
        assert asked.peer == requester
        for part in range(3):
            last = kinds.FLAG_LAST if part == 2 else 0
            world.send(receiver, kinds.KIND_RESPONSE, correlation=asked.correlation, flags=last, number=part)
        world.run()
        answers = world.delivered(requester, kinds.KIND_RESPONSE)
        assert [(a.correlation, a.number, a.peer) for a in answers] == [(number, n, receiver) for n in range(3)]
        world.inbox[requester].clear()
    assert not world.routing.asks
    assert all(world.routing.by_uid[r].outstanding == 0 for r in receivers)
    assert max(r.chosen for r in world.routing.by_uid.values()) == 300
    assert len(world.check_accounting()) == 1200


@requirement("SRV-49")
@pytest.mark.parametrize("by_outstanding", [True, False])
@both_twins
def test_shares_stay_even_across_a_router_that_is_replaced(twin: Any, by_outstanding: bool) -> None:
    world = World(twin, terms=Terms(by_outstanding=by_outstanding))
    requester, *receivers = (world.attach(m) for m in (0, 0, 1, 1))
    for receiver in receivers:
        world.register(receiver, "work")
    world.run()
    for number in range(90):
        world.send(requester, kinds.KIND_REQUEST, "work", correlation=number)
        world.run()
        if number % 7 == 3:
            world.start_router()
    assert [len(world.delivered(r, kinds.KIND_REQUEST)) for r in receivers] == [30, 30, 30]
    world.close()


@requirement("SRV-51")
def test_a_request_nobody_can_take_is_answered_at_once(world: World) -> None:
    uid = world.attach(0)
    world.run()
    sent = [
        world.send(uid, kinds.KIND_REQUEST, "nobody", correlation=5),
        world.send(uid, kinds.KIND_FANOUT, "nobody", correlation=6),
        world.send(uid, kinds.KIND_CONVERSE, "nobody", correlation=7),
        world.send(uid, kinds.KIND_SEND, "", peer=9999, correlation=8),
        world.send(uid, kinds.KIND_REQUEST, "no/body", correlation=9, flags=kinds.FLAG_NAMED),
    ]
    world.run()
    assert world.errors(uid) == [("no-receiver", c, 0) for c in (5, 6, 7, 8, 9)]
    assert world.check_accounting() == dict.fromkeys(sent, 1)


@requirement("SRV-113")
def test_a_lost_receiver_is_reported_to_everybody_who_waits_for_it(world: World) -> None:
    requester, receiver = world.attach(0), world.attach(1)
    world.register(receiver, "work")
    world.run()
    for number in range(600):  # more than one decision clears up
        world.send(requester, kinds.KIND_REQUEST, "work", correlation=number)
        world.run()
    world.gone(receiver)
    world.run()
    assert sorted(c for code, c, _ in world.errors(requester) if code == "receiver-lost") == list(range(600))
    assert not world.routing.asks
    assert receiver not in world.routing.by_uid
    world.send(requester, kinds.KIND_REQUEST, "work", correlation=1)
    world.run()
    assert world.errors(requester)[-1] == ("no-receiver", 1, 0)


def test_a_lost_or_cancelling_requester_is_reported_to_the_receivers(world: World) -> None:
    one, two, receiver = world.attach(0), world.attach(0), world.attach(1)
    world.register(receiver, "work")
    world.run()
    world.send(one, kinds.KIND_REQUEST, "work", correlation=1)
    world.send(two, kinds.KIND_REQUEST, "work", correlation=1)
    world.run()
    rids = [got.correlation for got in world.delivered(receiver, kinds.KIND_REQUEST)]
    world.control(one, kinds.KIND_CANCEL, correlation=1)
    world.gone(two)
    world.run()
    assert [got.correlation for got in world.delivered(receiver, kinds.KIND_CANCELLED)] == rids
    late = world.send(receiver, kinds.KIND_RESPONSE, correlation=rids[0], flags=kinds.FLAG_LAST)
    world.run()
    assert not world.delivered(one, kinds.KIND_RESPONSE)
    assert world.check_accounting()[late] == 1


def test_nobody_can_answer_for_somebody_else(world: World) -> None:
    requester, receiver, stranger = (world.attach(m) for m in (0, 1, 1))
    world.register(receiver, "work")
    world.run()
    world.send(requester, kinds.KIND_REQUEST, "work", correlation=1)
    world.run()
    (asked,) = world.delivered(receiver, kinds.KIND_REQUEST)
    world.send(stranger, kinds.KIND_RESPONSE, correlation=asked.correlation, flags=kinds.FLAG_LAST)
    world.run()
    assert not world.delivered(requester, kinds.KIND_RESPONSE)
    assert world.routing.asks


# -- conversations, fan-out, IPC


@requirement("SRV-52")
def test_a_conversation_stays_with_its_receiver_also_across_a_new_router(world: World) -> None:
    requester, *receivers = (world.attach(m) for m in (0, 0, 1, 1))
    for receiver in receivers:
        world.register(receiver, "talk")
    world.run()
    for number in range(50):
        world.send(requester, kinds.KIND_CONVERSE, "talk", correlation=9, number=number)
        if number == 25:
            world.run()
            world.start_router()
    world.run()
    (receiver,) = [r for r in receivers if world.delivered(r, kinds.KIND_CONVERSE)]
    got = world.delivered(receiver, kinds.KIND_CONVERSE)
    assert [g.number for g in got] == list(range(50))
    rid = got[0].correlation
    world.send(receiver, kinds.KIND_CONVERSE, correlation=rid, number=3)
    world.send(receiver, kinds.KIND_CONVERSE, correlation=rid, number=4, flags=kinds.FLAG_LAST)
    world.run()
    assert [(g.correlation, g.number) for g in world.delivered(requester, kinds.KIND_CONVERSE)] == [(9, 3), (9, 4)]
    assert not world.routing.asks
    world.check_accounting()


@requirement("SRV-53")
def test_a_conversation_whose_receiver_is_lost_is_ended_not_moved(world: World) -> None:
    requester, first, second = (world.attach(m) for m in (0, 1, 1))
    world.register(first, "talk")
    world.register(second, "talk")
    world.run()
    world.send(requester, kinds.KIND_CONVERSE, "talk", correlation=9)
    world.run()
    receiver = first if world.delivered(first, kinds.KIND_CONVERSE) else second
    world.gone(receiver)
    world.run()
    assert world.errors(requester) == [("conversation-lost", 9, 0)]
    other = second if receiver == first else first
    assert not world.delivered(other, kinds.KIND_CONVERSE)


@requirement("SRV-54")
@requirement("SRV-55")
def test_fan_out_asks_all_of_a_topic_type_or_organisation_and_counts_the_lost(world: World) -> None:
    requester = world.attach(0, type="q")
    xs = [world.attach(n % 2, type="X", org="O" if n < 2 else "P") for n in range(4)]
    for x in xs[:3]:
        world.register(x, "who")
    world.run()
    asked = []
    for correlation, (topic, pairs) in enumerate(
        [
            ("", {":type": b"X"}),
            ("", {":type": b"X", ":org": b"O"}),
            ("", {":org": b"P"}),
            ("who", {}),
            ("who", {":org": b"P"}),
        ]
    ):
        world.send(
            requester, kinds.KIND_FANOUT, topic, correlation=correlation, headers=encode_headers(list(pairs.items()))
        )
        world.run()
        asked.append(world.delivered(requester, kinds.KIND_ASKED)[-1].number)
    assert asked == [4, 2, 2, 3, 1]
    rid = world.delivered(xs[0], kinds.KIND_FANOUT)[0].correlation
    for x in xs[:3]:
        world.send(x, kinds.KIND_RESPONSE, correlation=rid, flags=kinds.FLAG_LAST)
    world.run()
    world.gone(xs[3])
    world.run()
    answers = [g for g in world.delivered(requester, kinds.KIND_RESPONSE) if g.correlation == 0]
    assert sorted(g.peer for g in answers) == xs[:3]
    lost = {(g.correlation, g.peer, g.number) for g in world.delivered(requester, kinds.KIND_LOST)}
    assert (0, xs[3], 0) in lost
    world.check_accounting()


@requirement("SRV-56")
def test_two_clients_reach_each_other_by_uid_and_by_name(world: World) -> None:
    a, b, c = world.attach(0, instance="A"), world.attach(1, instance="B"), world.attach(1, instance="C")
    world.run()
    world.send(a, kinds.KIND_SEND, peer=b)
    world.send(b, kinds.KIND_SEND, "app/A", flags=kinds.FLAG_NAMED)
    world.send(a, kinds.KIND_REQUEST, "app/B", flags=kinds.FLAG_NAMED, correlation=4)
    world.run()
    assert [g.peer for g in world.delivered(b, kinds.KIND_SEND)] == [a]
    assert [g.peer for g in world.delivered(a, kinds.KIND_SEND)] == [b]
    (asked,) = world.delivered(b, kinds.KIND_REQUEST)
    world.send(b, kinds.KIND_RESPONSE, correlation=asked.correlation, flags=kinds.FLAG_LAST)
    world.run()
    assert [g.correlation for g in world.delivered(a, kinds.KIND_RESPONSE)] == [4]
    assert len(world.inbox[c]) == 2, "a third client sees nothing but its own welcome"


# -- held requests


@requirement("SRV-51")
@both_twins
def test_a_held_request_waits_for_a_receiver_over_a_new_router_or_is_given_up(twin: Any) -> None:
    """Case l of the ordering table: no touch, no condition, until a receiver is known."""
    world = World(twin, terms=Terms(hold_ns=1000))
    requester, receiver = world.attach(0), world.attach(1)
    world.run()
    kept = world.send(requester, kinds.KIND_REQUEST, "later", correlation=1)
    lost = world.send(requester, kinds.KIND_REQUEST, "never", correlation=2)
    world.run()
    assert world.check_accounting() == {}
    world.start_router()
    world.register(receiver, "later")
    world.run()
    assert handles(world, receiver, kinds.KIND_REQUEST) == [kept]
    assert world.decisions.on_tick(999) is None
    assert world.turn.carry_out(world.decisions.on_tick(1000))
    world.turn.commit()
    world.read()
    assert world.errors(requester) == [("no-receiver", 2, 0)]
    assert world.check_accounting() == {kept: 1, lost: 1}
    world.close()


# -- identity and rules


class OnlyOwnTopic:
    def allows(self, who: str, action: str, name: str) -> bool:
        return name.startswith(who)

    def unrestricted(self, who: str, action: str) -> bool:
        return False

    def filters(self, who: str) -> bool:
        return False

    def quotas_of(self, who: str) -> list[Any]:
        return []


@requirement("SRV-43")
@requirement("SRV-124")
@requirement("SRV-125")
@both_twins
def test_identity_is_the_servers_word_and_rules_are_kept(twin: Any) -> None:
    world = World(twin, rules=OnlyOwnTopic())
    ann, bob = world.attach(0, user="ann"), world.attach(1, user="bob")
    world.subscribe(bob, "bob.in")
    world.subscribe(bob, "ann.in", 2)
    world.subscribe(ann, "ann.in")
    world.register(bob, "ann.calls", 3)
    world.run()
    assert world.errors(bob) == [("not-allowed", 0, 2), ("not-allowed", 0, 3)]
    for _ in range(2):
        world.send(ann, kinds.KIND_PUBLISH, "ann.in", headers=encode_headers([(":from", "bob"), ("k", "v")]))
        world.send(bob, kinds.KIND_PUBLISH, "ann.in")
        world.run()
        world.start_router()
    assert [code for code, _, _ in world.errors(bob)][2:] == ["not-allowed", "not-allowed"]
    for got in world.delivered(ann, kinds.KIND_PUBLISH):
        assert got.content[5] & kinds.FLAG_IDENTITY
        assert got.peer == ann
        assert got.content[32 + 6 :].startswith(encode_headers([(":from", "ann"), (":from", "bob"), ("k", "v")]))
        assert int.from_bytes(got.content[:4], "little") == len(got.content) + got.body_length
    assert len(world.delivered(ann, kinds.KIND_PUBLISH)) == 2
    world.check_accounting()
    world.close()


# -- limits


def test_too_many_subscriptions_registrations_and_requests_are_refused(world: World) -> None:
    world.decisions.terms = Terms(subscriptions_max=2, registrations_max=1, requests_max=1)
    uid = world.attach(0)
    for number in range(3):
        world.subscribe(uid, f"s{number}", number)
        world.register(uid, f"r{number}", number + 10)
    world.run()
    assert [(code, number) for code, _, number in world.errors(uid)] == [
        ("too-many", 11), ("too-many", 2), ("too-many", 12)]  # fmt: skip


def test_numbers_in_use_and_numbers_unknown_are_refused(world: World) -> None:
    uid = world.attach(0)
    world.subscribe(uid, "a", 1)
    world.subscribe(uid, "b", 1)
    world.control(uid, kinds.KIND_UNSUBSCRIBE, number=9)
    world.control(uid, kinds.KIND_UNREGISTER, number=9)
    world.subscribe(uid, "a..b", 3)
    world.run()
    codes = [code for code, _, _ in world.errors(uid)]
    assert codes == ["bad-request", "unknown-number", "unknown-number", "bad-pattern"]


# -- fairness


@requirement("SRV-97")
@requirement("SRV-99")
@both_twins
@pytest.mark.parametrize(("rule", "shares"), [(Rule(), [1, 1, 1]), (Rule(round_complete=False), [2, 1, 1])])
def test_rounds_give_every_connection_its_share_and_the_simple_rule_does_not(
    twin: Any, rule: Rule, shares: list[int]
) -> None:
    """SRV-98: with the simple rule the setup gives 50/25/25."""
    world = World(twin, rule=rule, capacity=1 << 20)
    lone, two, three, sink = (world.attach(m) for m in (0, 1, 1, 0))
    world.subscribe(sink, "flood")
    world.run()
    for _ in range(400):  # a round of manager 0 has one message, a round of manager 1 has two
        world.send(lone, kinds.KIND_PUBLISH, "flood", ring_flags=layout.FLAG_COUNTED | layout.FLAG_ROUND)
        world.send(two, kinds.KIND_PUBLISH, "flood")
        world.send(three, kinds.KIND_PUBLISH, "flood", ring_flags=layout.FLAG_COUNTED | layout.FLAG_ROUND)
    world.turn.run(300, 0)
    world.read()
    peers = [got.peer for got in world.delivered(sink, kinds.KIND_PUBLISH)]
    total = sum(shares)
    assert [peers.count(uid) for uid in (lone, two, three)] == [300 * share // total for share in shares]
    world.close()


@requirement("SRV-96")
def test_a_separate_round_mark_does_the_same_as_a_flag(world: World) -> None:
    a, b = world.attach(0), world.attach(1)
    world.run()
    for _ in range(10):
        world.send(a, kinds.KIND_PUBLISH, "x")
        world.push(0, layout.UP_ROUND, 0, b"")
        world.send(b, kinds.KIND_PUBLISH, "x", ring_flags=layout.FLAG_COUNTED | layout.FLAG_ROUND)
    world.turn.run(15, 0)
    world.read()
    assert [sum(bool(got.handle) for got in seen) for seen in world.seen] == [5, 5]


# -- full rings


@requirement("SRV-18")
@requirement("SRV-23")
@both_twins
def test_a_manager_that_does_not_read_holds_up_only_what_is_meant_for_it(twin: Any) -> None:
    world = World(twin, managers=3, capacity=4096)
    a, stuck, c = (world.attach(m) for m in (0, 1, 2))
    world.subscribe(stuck, "stuck")
    world.subscribe(c, "fine")
    world.subscribe(a, "fine")
    world.run()
    before = len(world.downs)
    assert before == 3
    deaf = world.downs[1]
    world.downs[1] = type(deaf)(bytearray(world.down_buffers[1]))  # manager 1 reads nothing any more
    stuck_sent, fine_sent = 0, 0
    for _ in range(60):  # manager 0's clients send to the deaf one until its ring is full
        world.send(a, kinds.KIND_PUBLISH, "stuck")
        stuck_sent += 1
        world.run()
    assert world.ups[0].waiting() > 0, "the router holds what does not fit"
    for _ in range(30):
        world.send(c, kinds.KIND_PUBLISH, "fine")
        fine_sent += 1
        world.run()
    assert len(world.delivered(c, kinds.KIND_PUBLISH)) == fine_sent
    assert len(world.delivered(a, kinds.KIND_PUBLISH)) == fine_sent
    world.downs[1] = deaf  # it reads again: all of it comes, in order, once
    for _ in range(20):
        world.read()
        world.run()
    assert len(world.delivered(stuck, kinds.KIND_PUBLISH)) == stuck_sent
    assert handles(world, stuck) == sorted(handles(world, stuck))
    assert all(n in (1, 2) for n in world.check_accounting().values())
    world.close()


@requirement("SRV-23")
@both_twins
def test_queues_of_two_entries_never_halt(twin: Any) -> None:
    world = World(twin, managers=1, entries_max=2)
    uid = world.attach(0)
    world.subscribe(uid, "own")
    world.run()
    sent = [world.send(uid, kinds.KIND_PUBLISH, "own") for _ in range(200)]
    for _ in range(300):
        world.run()
    assert handles(world, uid) == sent
    world.close()


# -- waking


@requirement("SRV-21")
def test_a_sleeping_router_is_woken_by_the_next_entry_and_wakes_sleeping_managers(world: World) -> None:
    uid = world.attach(0)
    world.run()
    assert world.turn.sleep() is True
    assert world.ups[0].push(layout.UP_ROUND, 0, bytes(32))
    assert world.ups[0].publish() is True, "the manager is told to write the router's eventfd"
    world.turn.awake()
    world.run()
    world.downs[0].sleep()
    for fd in world.wake_fds:
        try:
            os.read(fd, 8)
        except BlockingIOError:
            pass
    world.send(uid, kinds.KIND_PUBLISH, "x")
    world.turn.run(10, 0)
    assert int.from_bytes(os.read(world.wake_fds[0], 8), "little") == 1
    with pytest.raises(BlockingIOError):
        os.read(world.wake_fds[1], 8)


# -- moving to another connection


def test_a_move_turns_the_attachment_over_at_one_place_of_the_order(world: World) -> None:
    mover, publisher = world.attach(0), world.attach(1)
    world.subscribe(mover, "news")
    world.run()
    for _ in range(3):
        world.send(publisher, kinds.KIND_PUBLISH, "news")
    new = world.attach(1, instance=f"app-{mover}", resume_uid=mover)
    world.run()
    assert b'"resumed":true' in world.inbox[new][1].body
    for _ in range(2):
        world.send(publisher, kinds.KIND_PUBLISH, "news")
    world.run()
    world.send(mover, kinds.KIND_PUBLISH, "news")
    world.control(mover, kinds.KIND_MOVE)
    world.run()
    assert [g.frame_kind for g in world.inbox[mover][3:]] == [kinds.KIND_PUBLISH] * 6 + [kinds.KIND_MOVED]
    world.gone(mover)
    world.send(publisher, kinds.KIND_PUBLISH, "news")
    world.send(new, kinds.KIND_PUBLISH, "news")
    world.start_router()
    world.run()
    assert [g.frame_kind for g in world.inbox[new][2:]] == [kinds.KIND_MOVED] + [kinds.KIND_PUBLISH] * 2
    assert world.inbox[new][-1].peer == mover, "others know it by the uid it had"
    world.send(publisher, kinds.KIND_SEND, peer=mover)
    world.run()
    assert world.delivered(new, kinds.KIND_SEND)


def test_a_move_to_nowhere_ends_the_connection(world: World) -> None:
    mover = world.attach(0)
    world.run()
    world.control(mover, kinds.KIND_MOVE)
    world.run()
    assert world.errors(mover) == [("bad-request", 0, 0)]
    assert world.inbox[mover][-1].kind == layout.DOWN_DETACH


# -- the log


@requirement("SRV-57")
@requirement("SRV-86")
def test_a_successor_knows_what_its_predecessor_knew(world: World) -> None:
    populate(world)
    before = world.routing.summary()
    world.start_router()
    assert world.routing.summary() == before
    world.turn.flip(world.turn.log_limit)
    world.start_router()
    assert world.routing.summary() == before
    state = read_state(world.segment)
    assert {a["uid"] for a in state["attachments"]} == set(world.clients)


def populate(world: World) -> None:
    uids = [world.attach(n % 2, type=f"t{n % 3}", user=f"u{n}", org="o") for n in range(6)]
    for n, uid in enumerate(uids):
        world.subscribe(uid, f"topic.{n}.>", 1)
        world.subscribe(uid, "all", 2, no_local=True)
        world.register(uid, "work", 3)
    world.run()
    for n in range(5):
        world.send(uids[n], kinds.KIND_REQUEST, "work", correlation=n)
        world.send(uids[n], kinds.KIND_FANOUT, "work", correlation=10 + n)
        world.send(uids[n], kinds.KIND_CONVERSE, "work", correlation=20 + n)
    world.run()


class Died(Exception):
    pass


def dying(turn_class: Any, stage: str) -> Any:
    """A router that dies while committing: before the record, between record and publication, or after it."""

    class Dying(turn_class):  # type: ignore[misc]
        armed = False

        def commit(self) -> None:
            if not type(self).armed:
                return super().commit()
            if stage == "before the record":
                raise Died
            self.write_record()
            if stage == "before publication":
                raise Died
            self.publish()
            raise Died

    return Dying


@requirement("SRV-58")
@requirement("SRV-87")
@requirement("SRV-88")
@pytest.mark.parametrize("stage", ["before the record", "before publication", "after publication"])
@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
@given(st.integers(0, 2**32), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_law_nothing_is_lost_or_doubled_when_the_router_dies_at_any_step(
    twin: Any, stage: str, seed: int, budget: int
) -> None:
    live_through_deaths(twin, dying(twin.Turn, stage), seed, budget)


def live_through_deaths(twin: Any, turn_class: Any, seed: int, budget: int) -> None:
    """Random traffic; the router dies every few turns; each message has its effect exactly once, in order."""
    random_ = random.Random(seed)
    world = World(twin, managers=3, turn_class=turn_class, capacity=1 << 18)
    try:
        turn_class.armed = False
        uids = [world.attach(n % 3) for n in range(6)]
        for n, uid in enumerate(uids):
            world.subscribe(uid, "all")
            world.subscribe(uid, f"own.{n}", 2)
            world.register(uid, "work", 3)
        world.run()
        base = {uid: len(world.inbox[uid]) for uid in uids}
        sent: dict[int, list[int]] = {uid: [] for uid in uids}
        all_handles = []
        correlation = 0
        for _ in range(30):
            uid = random_.choice(uids)
            match random_.randrange(4):
                case 0 | 1:
                    sent[uid].append(world.send(uid, kinds.KIND_PUBLISH, "all"))
                    all_handles.append(sent[uid][-1])
                case 2:
                    all_handles.append(world.send(uid, kinds.KIND_PUBLISH, "own.1"))
                case 3:
                    correlation += 1
                    all_handles.append(world.send(uid, kinds.KIND_REQUEST, "work", correlation=correlation))
            if random_.random() < 0.5:
                turn_class.armed = random_.random() < 0.7
                try:
                    world.turn.run(budget, 0)
                except Died:
                    turn_class.armed = False
                    if random_.random() < 0.7:
                        world.read()  # managers go on meanwhile
                    world.start_router()
                turn_class.armed = False
                world.read()
        world.run()
        world.start_router()
        world.run()
        assert sorted(world.check_accounting()) == sorted(all_handles)
        for receiver in uids:
            got = [g for g in world.inbox[receiver][base[receiver] :] if g.frame_kind == kinds.KIND_PUBLISH]
            for sender in uids:
                mine = [g.handle for g in got if g.peer == sender and b"all" in g.content]
                assert mine == sent[sender], "each once, in the sender's order"
        asked = [g for uid in uids for g in world.delivered(uid, kinds.KIND_REQUEST)]
        assert len(asked) == correlation == len({g.correlation for g in asked})
        assert len(world.routing.asks) == correlation
    finally:
        world.close()


def test_planted_bug_publishing_before_the_record_is_noticed() -> None:
    """A router that shows its instructions before its commit record contradicts itself after its death."""

    class Hasty(TWINS[0].Turn):  # type: ignore[misc,name-defined]
        armed = False

        def commit(self) -> None:
            self.publish()
            if Hasty.armed:
                raise Died
            self.write_record()

    caught = 0
    for seed in range(40):
        try:
            live_through_deaths(TWINS[0], Hasty, seed, 3)
        except (AssertionError, KeyError, ValueError, struct.error):
            caught += 1
    assert caught > 10
