"""The router and name spaces, in both twins: what a client says is what it gets, and nothing crosses."""

from __future__ import annotations

from typing import Any

from fairlead.broker.instructions import HEAD
from fairlead.security.quotas import Quota
from fairlead.security.rules import Rights, Rules
from fairlead.store import layout
from fairlead.wire import kinds
from fairlead.wire.frames import encode_frame
from tests.broker.world import Got, World, both_twins

RULES = Rules(
    {"ann": Rights(), "red": Rights(tenant="red"), "rosa": Rights(tenant="red", deny=(("subscribe", "s.>"),)),
     "blue": Rights(tenant="blue"), "reader": Rights(subscribe=(">", "_T.>", "glob:_*"))},
    tenants={"red": Quota(connections=3, subscriptions=4), "blue": Quota()},
)  # fmt: skip


def join(world: World, manager: int, user: str) -> int:
    return world.attach(manager, user=user, who=user, tenant=RULES.tenant_of(user))


def topics(got: list[Got]) -> list[bytes]:
    found = []
    for one in got:
        length = HEAD.unpack_from(one.content)[3]
        found.append(one.content[HEAD.size : HEAD.size + length])
        assert int.from_bytes(one.content[:4], "little") == len(one.content) + one.body_length
    return found


@both_twins
def test_a_topic_stays_in_its_name_space_and_keeps_its_name(twin: Any) -> None:
    world = World(twin, rules=RULES)
    ann, red, blue = join(world, 0, "ann"), join(world, 0, "red"), join(world, 1, "blue")
    for uid in (ann, red, blue):
        world.subscribe(uid, ">")
    world.run()
    for _ in range(3):  # the long way first, then the short one
        for uid in (ann, red, blue, red):
            world.send(uid, kinds.KIND_PUBLISH, "x.y")
        world.run()
    assert [len(world.delivered(uid, kinds.KIND_PUBLISH)) for uid in (ann, red, blue)] == [3, 6, 3]
    assert set(topics(world.delivered(red, kinds.KIND_PUBLISH))) == {b"x.y"}
    world.send(red, kinds.KIND_PUBLISH, b"a\x1fx.y")
    world.send(red, kinds.KIND_PUBLISH, b"a\x1f_T.blue.x.y")
    world.send(ann, kinds.KIND_PUBLISH, "_T.red.x.y")
    world.send(ann, kinds.KIND_PUBLISH, b"q\x1f_T.red.x.y")
    world.run()
    assert [len(world.delivered(uid, kinds.KIND_PUBLISH)) for uid in (ann, red, blue)] == [3, 7, 3]
    assert [code for code, _, _ in world.errors(ann)] == ["not-allowed", "not-allowed"]
    assert [code for code, _, _ in world.errors(red)] == ["not-allowed"]
    world.check_accounting()
    world.close()


@both_twins
def test_what_the_message_manager_broadcasts_comes_without_the_prefix(twin: Any) -> None:
    world = World(twin, rules=RULES)
    ann, red = join(world, 0, "ann"), join(world, 1, "red")
    reader = join(world, 0, "reader")
    world.subscribe(ann, ">")
    world.subscribe(reader, "_T.>")
    world.subscribe(reader, "glob:_*", 2)
    world.subscribe(red, "feed.*")
    world.run()
    for number in range(3):
        head = encode_frame(kinds.KIND_PUBLISH, 0, 0, 0, 0, b"_T.red.feed.eur", b"", b"")
        world.push(0, layout.UP_MESSAGE, 0, head, 900 + number, 7, layout.FLAG_COUNTED)
        world.run()
    assert topics(world.delivered(red, kinds.KIND_PUBLISH)) == [b"feed.eur"] * 3
    assert world.delivered(ann, kinds.KIND_PUBLISH) == world.delivered(reader, kinds.KIND_PUBLISH) == []
    world.close()


@both_twins
def test_requests_names_and_numbers_lead_nowhere_else(twin: Any) -> None:
    world = World(twin, rules=RULES)
    red, rosa, blue = join(world, 0, "red"), join(world, 0, "rosa"), join(world, 1, "blue")
    world.register(red, "calc")
    world.run()
    for correlation in (1, 2):
        world.send(rosa, kinds.KIND_REQUEST, "calc", correlation=correlation)
        world.send(blue, kinds.KIND_REQUEST, "calc", correlation=correlation)
    world.run()
    assert len(world.delivered(red, kinds.KIND_REQUEST)) == 2
    world.send(blue, kinds.KIND_SEND, correlation=3, peer=red)
    world.send(blue, kinds.KIND_SEND, f"app/app-{red}", correlation=4, flags=kinds.FLAG_NAMED)
    world.send(blue, kinds.KIND_SEND, f"_T.red.app/app-{red}", correlation=5, flags=kinds.FLAG_NAMED)
    world.send(rosa, kinds.KIND_SEND, correlation=6, peer=red)
    world.send(rosa, kinds.KIND_SEND, f"app/app-{red}", correlation=7, flags=kinds.FLAG_NAMED)
    world.run()
    assert [code for code, _, _ in world.errors(blue)] == ["no-receiver"] * 5
    assert world.errors(rosa) == []
    assert len(world.delivered(red, kinds.KIND_SEND)) == 2
    world.close()


@both_twins
def test_what_is_denied_does_not_come_through_a_pattern(twin: Any) -> None:
    world = World(twin, rules=RULES)
    red, rosa = join(world, 0, "red"), join(world, 1, "rosa")
    world.subscribe(rosa, ">")
    world.subscribe(rosa, "s.x", 2)
    world.run()
    assert world.errors(rosa) == [("not-allowed", 0, 2)]
    for topic in ("s.x", "t", "_DMQ"):
        world.send(red, kinds.KIND_PUBLISH, topic)
    world.run()
    assert topics(world.delivered(rosa, kinds.KIND_PUBLISH)) == [b"t"]
    world.close()


@both_twins
def test_quotas_of_connections_and_subscriptions_are_counted_over_all_clients(twin: Any) -> None:
    world = World(twin, rules=RULES)
    first = [join(world, number % 2, "red") for number in range(3)]
    world.run()
    late = join(world, 0, "rosa")
    world.run()
    assert [code for code, _, _ in world.errors(late)] == ["quota-exceeded"]
    for number in range(5):
        world.subscribe(first[number % 3], f"t.{number}", number + 1)
    world.run()
    refused = [code for uid in first for code, _, _ in world.errors(uid)]
    assert refused == ["quota-exceeded"]
    world.gone(first[0])
    world.run()
    world.start_router()
    world.subscribe(first[1], "again", 9)
    world.run()
    assert [code for uid in first for code, _, _ in world.errors(uid)] == refused
    assert world.routing.connected["red"] == 2
    world.close()


@both_twins
def test_other_rules_end_what_somebody_has_and_say_so(twin: Any) -> None:
    world = World(twin, rules=RULES)
    ann = join(world, 0, "ann")
    world.subscribe(ann, "a.>", 1)
    world.subscribe(ann, "b.>", 2)
    world.register(ann, "calc", 3)
    world.run()
    world.rules = Rules({"ann": Rights(subscribe=("b.>",), serve=())})
    world.start_router()
    for decision in world.decisions.on_rules():
        assert world.turn.carry_out(decision)
        world.turn.commit()
    world.run()
    assert world.errors(ann) == [("not-allowed", 0, 1), ("not-allowed", 0, 3)]
    assert list(world.routing.by_uid[ann].subscriptions) == [2]
    assert not list(world.decisions.on_rules())
    world.start_router()
    assert list(world.routing.by_uid[ann].subscriptions) == [2]
    assert world.routing.by_uid[ann].registrations == {}
    world.close()
