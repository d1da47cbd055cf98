"""The client's side of the durable road without sockets: every promise, with the line cut at every frame."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.client.durable.commands import Command
from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.content import PLAIN, Content, content, decode_body, encode_body
from fairlead.client.durable.keys import Keys
from fairlead.client.durable.session import DurableSession, State
from fairlead.client.durable.settlement import ranges
from fairlead.client.durable.transaction import DurableTransaction
from fairlead.client.durable.uploads import Upload
from fairlead.cluster.times import due_ms
from fairlead.errors import (
    BadParameter,
    Blocked,
    ConnectionLost,
    DestinationDeleted,
    FairleadError,
    NoDestination,
    NoMessageManager,
    RemoteProtocolError,
    SessionLost,
    Stale,
    TransactionAborted,
    TransferFailed,
)
from fairlead.wire.durable import CHUNK, ENTRY_LARGE, ENTRY_TIMED, KIND_DELIVER, REJECT, RETURN
from fairlead.wire.entry_codec import Delivered, details
from tests.client.durable_server import Ticket, World


def producer_of(world: World, name: str = "orders", **options: Any) -> Any:
    session = world.road.session("individual")
    return session.producer(name, "queue", create=True, **options)


def consumer_of(session: DurableSession, name: str = "orders", *, prefetch: int = 10, ack: str = "individual",
                **fields: Any) -> DurableConsumer:  # fmt: skip
    fields = {"kind": "queue", "create": True, **fields}
    made = DurableConsumer(session.home, name, fields, prefetch=prefetch, prefetch_bytes=1 << 20,
                           answered=ack != "dups-ok", one_by_one=ack == "individual", wake=lambda: None)  # fmt: skip
    session.add_consumer(made)
    return made


def send(producer: Any, *bodies: bytes, like: Content = PLAIN) -> list[Ticket]:
    tickets = [Ticket() for _ in bodies]
    for body, ticket in zip(bodies, tickets, strict=True):
        producer.add(body, like, ticket)
    return tickets


# --- Sending ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("CLU-117")
def test_what_is_sent_in_one_turn_travels_in_one_frame_and_is_confirmed_in_order() -> None:
    world = World()
    tickets = send(producer_of(world), b"a", b"b", b"c")
    world.pump()
    assert [ticket.result.order for ticket in tickets] == [1, 2, 3]
    assert world.server.stores == 1
    assert world.server.destinations["orders"].bodies == [b"a", b"b", b"c"]


@pytest.mark.requirement("CLU-92")
def test_receipts_name_the_id_the_server_gave() -> None:
    world = World()
    (ticket,) = send(producer_of(world), b"a")
    session = world.road.sessions[0]
    consumer = consumer_of(session)
    world.pump()
    (message,) = consumer.take(1)
    assert ticket.result.id == message.id_text
    assert len(ticket.result.id) == 40
    assert sum(asked["do"] == "ids" for asked in world.server.commands) == 0


def test_ids_are_asked_for_when_the_block_is_used_up() -> None:
    world = World()
    producer = producer_of(world)
    world.pump()
    world.road.sessions[0].home._id_beyond = world.road.sessions[0].home._id_next + 1
    tickets = send(producer, b"a", b"b")
    world.pump()
    assert all(ticket.result for ticket in tickets)
    assert sum(asked["do"] == "ids" for asked in world.server.commands) == 1


@pytest.mark.requirement("CLU-118")
@pytest.mark.requirement("CLU-123")
@pytest.mark.requirement("CLU-121")
@pytest.mark.requirement("CLU-122")
@pytest.mark.parametrize("cut_at", range(1, 28))
def test_a_line_cut_at_any_frame_loses_and_doubles_nothing(cut_at: int) -> None:
    world = World(cut_at=cut_at)
    producer = producer_of(world)
    tickets: list[Ticket] = []
    for turn in range(4):
        tickets += send(producer, *(b"%d.%d" % (turn, n) for n in range(3)))
        world.pump()
    assert [ticket.times for ticket in tickets] == [1] * 12
    assert all(ticket.error is None for ticket in tickets)
    assert world.server.destinations["orders"].bodies == [b"%d.%d" % (t, n) for t in range(4) for n in range(3)]
    assert world.road.sessions[0].in_flight == world.road.sessions[0].home.in_flight_bytes == 0
    if world.cuts:
        assert [asked["resume"]["incarnation"] for asked in world.server.commands if "resume" in asked] in ([2], [])


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 25), st.booleans()), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_number_of_losses_at_any_moment(turns: list[tuple[int, int, bool]]) -> None:
    """Law: everything is stored once, in order, and everybody is told once."""
    world = World()
    producer = producer_of(world)
    tickets: list[Ticket] = []
    expected: list[bytes] = []
    for count, distance, restart in turns:
        bodies = [b"%d" % (len(expected) + n) for n in range(count)]
        expected += bodies
        tickets += send(producer, *bodies)
        world.cut_at = world.frames + distance
        if restart and world.line is not None:
            world.road.on_group_lost(world.road.first)  # the message manager behind a living connection
            world.line.lost()
            world.road.on_group_live(world.road.first)
        world.pump()
    world.cut_at = -1
    world.pump()
    assert (world.server.destinations["orders"].bodies if expected else []) == expected
    assert [ticket.times for ticket in tickets] == [1] * len(tickets)
    assert world.road.sessions[0].in_flight == world.road.sessions[0].home.in_flight_bytes == 0


def test_a_repeat_the_server_knows_is_not_sent_again() -> None:
    world = World()
    producer = producer_of(world)
    world.pump()
    world.server.confirming = False
    tickets = send(producer, b"a", b"b")
    world.pump()
    assert world.server.stores == 1
    world.server.confirming = True
    world.cut()
    world.pump()
    assert world.server.stores == 1
    assert [(ticket.result.order, ticket.result.duplicate) for ticket in tickets] == [(None, False)] * 2


@pytest.mark.requirement("CLU-117")
def test_what_is_refused_says_why_and_the_rest_is_stored() -> None:
    world = World()
    tickets = send(producer_of(world), b"a", b"refuse me", b"c")
    world.pump()
    assert tickets[0].result
    assert tickets[2].result
    assert isinstance(tickets[1].error, BadParameter)
    assert str(tickets[1].error) == "it says so"


def test_a_destination_that_is_not_there_fails_what_waits_for_it_and_can_be_tried_again() -> None:
    world = World()
    session = world.road.session("individual")
    (ticket,) = send(session.producer("nowhere", "queue"), b"a")
    world.pump()
    assert isinstance(ticket.error, NoDestination)
    world.server.queue("nowhere")
    (ticket,) = send(session.producer("nowhere", "queue"), b"a")
    world.pump()
    assert ticket.result.order == 1


def test_a_destination_deleted_and_made_again_does_not_get_old_numbers() -> None:
    world = World()
    producer = producer_of(world)
    send(producer, b"a", b"b")
    world.pump()
    world.server.confirming = False
    (lost,) = send(producer, b"c")
    world.pump()
    del world.server.destinations["orders"]
    world.server.confirming = True
    world.cut()
    world.pump()
    assert lost.error is not None
    assert lost.error.code == "destination-deleted"
    (ticket,) = send(producer, b"d")
    world.pump()
    assert ticket.result.order == 1


@pytest.mark.requirement("CLU-108")
@pytest.mark.requirement("CLU-112")
@pytest.mark.requirement("CLU-104")
def test_blocking_is_known_and_asked_about_again() -> None:
    world = World()
    producer = producer_of(world)
    world.pump()
    destination = world.server.destinations["orders"]
    destination.blocked = True
    assert world.line is not None
    world.line.notice(event="blocked", destination="orders", producer=producer.handle)
    world.pump()
    assert producer.blocked
    world.pass_time(6)
    assert producer.blocked
    destination.blocked = False  # and the notice is lost
    world.pass_time(6)
    assert not producer.blocked
    destination.blocked = True
    world.cut()
    world.pump()
    assert producer.blocked, "built anew from facts after a resume"


def test_out_of_order_is_mended_by_sending_everything_again() -> None:
    world = World()
    producer = producer_of(world)
    world.pump()
    first = send(producer, b"a")
    world.road.flush()
    world.way.out.clear()  # swallowed somewhere
    second = send(producer, b"b")
    world.pump()
    assert world.server.destinations["orders"].bodies == [b"a", b"b"]
    assert first[0].result.order == 1
    assert second[0].result.order == 2


def test_a_session_the_server_forgot_fails_what_is_unknown_and_goes_on() -> None:
    world = World()
    producer = producer_of(world)
    world.pump()
    world.server.confirming = False
    (lost,) = send(producer, b"a")
    consumer = consumer_of(world.road.sessions[0])
    world.pump()
    world.server.sessions.clear()
    world.server.confirming = True
    world.cut()
    world.pump()
    assert isinstance(lost.error, SessionLost)
    session = world.road.sessions[0]
    assert session.is_open
    assert consumer.handle
    (ticket,) = send(session.producer("orders", "queue"), b"b")
    world.pump()
    assert ticket.result is not None


@pytest.mark.requirement("CLU-117")
def test_the_end_tells_everybody() -> None:
    world = World()
    producer = producer_of(world)
    world.pump()
    world.server.confirming = False
    tickets = send(producer, b"a", b"b")
    world.pump()
    tickets += send(producer, b"c")
    world.road.end(ConnectionLost("over"))
    assert [ticket.times for ticket in tickets] == [1] * 3
    assert all(isinstance(ticket.error, ConnectionLost) for ticket in tickets)
    assert world.road.session("individual").state is State.ENDED


def test_a_message_manager_that_stays_away_is_given_up_for_lost() -> None:
    world = World(limit_s=10)
    world.server.refuse["session"] = "no-message-manager"
    (ticket,) = send(producer_of(world), b"a")
    world.pump()
    world.pass_time(9)
    assert not ticket.done()
    world.pass_time(2)
    assert isinstance(ticket.error, NoMessageManager)


def test_a_message_manager_that_comes_back_is_not_noticed() -> None:
    world = World(limit_s=10)
    world.server.refuse["session"] = "no-message-manager"
    (ticket,) = send(producer_of(world), b"a")
    world.pump()
    world.pass_time(5)
    world.server.refuse.clear()
    world.pass_time(2)
    assert ticket.result.order == 1
    world.pass_time(20)
    assert world.road.sessions


def test_commands_refused_for_want_of_a_message_manager_are_asked_again() -> None:
    world = World()
    world.server.refuse["produce"] = "no-message-manager"
    (ticket,) = send(producer_of(world), b"a")
    world.pump()
    world.server.refuse.clear()
    world.pass_time(1)
    assert ticket.result.order == 1


def test_interrupted_and_back() -> None:
    world = World()
    producer = producer_of(world)
    world.pump()
    assert world.line is not None
    world.line.notice(event="interrupted")
    world.pump()
    assert not world.road.is_live
    (ticket,) = send(producer, b"a")
    world.pump()
    assert not ticket.done()
    world.line.lost()
    world.line.notice(event="back")
    world.pump()
    assert ticket.result.order == 1


@pytest.mark.parametrize("asks", [True, False])
def test_a_connection_without_a_session_knows_that_the_message_manager_is_back(asks: bool) -> None:
    world = World(limit_s=10)
    world.pump()
    assert world.line is not None
    world.line.notice(event="interrupted")
    world.pump()
    answers: list[Exception | None] = []
    if asks:
        world.road.ask(Command("schedules", {"destination": "q"}, lambda facts, error: answers.append(error)))
    world.line.notice(event="back")
    world.pump()
    world.pass_time(9.9)
    (ticket,) = send(producer_of(world), b"a")  # its session is opening when the time would be up
    world.pass_time(0.2)
    world.pump()
    assert ticket.error is None
    assert ticket.result.order == 1
    assert len(answers) == asks


def test_a_command_refused_while_a_retry_is_due_already_is_asked_again() -> None:
    """The message manager came back before the retry, and went again: its session has to begin anew all the same."""
    world = World()
    world.server.refuse["session"] = "no-message-manager"
    (ticket,) = send(producer_of(world), b"a")
    world.pump()
    world.server.refuse.clear()
    world.server.refuse["produce"] = "no-message-manager"
    assert world.line is not None
    world.line.notice(event="back")
    world.pump()
    world.server.refuse.clear()
    world.pass_time(2)
    assert ticket.result.order == 1


# --- Receiving ----------------------------------------------------------------------------------------------------


def fill(world: World, *bodies: bytes, like: Content = PLAIN) -> DurableSession:
    send(producer_of(world), *bodies, like=like)
    world.pump()
    return world.road.sessions[0]


@pytest.mark.requirement("CLU-111")
def test_a_window_of_one_is_one_message_at_a_time() -> None:
    world = World()
    session = fill(world, b"a", b"b", b"c")
    slow, quick = consumer_of(session, prefetch=1), consumer_of(session, prefetch=1)
    world.pump()
    (held,) = slow.take(5)
    world.pump()
    locks = world.server.destinations["orders"].cursors[""].locks
    assert sum(holder.handle == slow.handle for holder in locks.values()) == 1
    for _ in range(2):
        (message,) = quick.take(5)
        quick.acknowledge(message, 0)
        quick.asked()
        world.pump()
    assert not world.server.destinations["orders"].cursors[""].available
    slow.acknowledge(held, 0)
    world.pump()
    assert world.server.destinations["orders"].bodies == []


def test_credit_comes_back_in_bulk_and_never_grows() -> None:
    world = World()
    session = fill(world, *(b"%d" % n for n in range(100)))
    consumer = consumer_of(session, prefetch=10)
    world.pump()
    seen = []
    (handle,) = world.server.consumers()
    while found := consumer.take(3):
        for message in found:
            seen.append(message.body)
            consumer.acknowledge(message, 0)
        world.pump()
        assert handle.messages + len(consumer.buffer) <= 10
    assert seen == [b"%d" % n for n in range(100)]
    consumer.asked()
    world.pump()
    assert (handle.messages, handle.bytes) == (10, 1 << 20), "all credit is back"


def test_acknowledgements_of_a_turn_travel_as_ranges() -> None:
    world = World()
    session = fill(world, *(b"%d" % n for n in range(10)))
    consumer = consumer_of(session, prefetch=10)
    world.pump()
    before = world.frames
    for message in consumer.take(10):
        consumer.acknowledge(message, 0)
    consumer.asked()
    world.pump()
    assert world.frames - before == 3  # SETTLE, WANT, SETTLED
    assert world.server.destinations["orders"].bodies == []


@given(st.lists(st.integers(0, 200), unique=True))
def test_ranges_say_what_the_list_says(orders: list[int]) -> None:
    found = [order for item in ranges(orders) for order in range(item.first, item.beyond)]
    assert found == orders


@pytest.mark.requirement("CLU-25")
@pytest.mark.requirement("CLU-20")
@pytest.mark.requirement("CLU-125")
@pytest.mark.parametrize("cut_at", range(1, 40))
def test_consuming_over_a_cut_line_misses_nothing_and_marks_what_comes_again(cut_at: int) -> None:
    world = World()
    session = fill(world, *(b"%d" % n for n in range(12)))
    consumer = consumer_of(session, prefetch=4)
    world.cut_at = world.frames + cut_at
    seen: list[tuple[bytes, bool]] = []
    for _ in range(60):
        world.pump()
        for message in consumer.take(2):
            seen.append((message.body, message.redelivered))
            consumer.acknowledge(message, consumer.epoch)
    world.pump()
    assert {body for body, _ in seen} == {b"%d" % n for n in range(12)}
    assert [body for body, again in seen if not again] == sorted({body for body, again in seen if not again}, key=int)
    assert len(seen) == 12, "what was acknowledged is not shown twice, whatever the server heard of it"
    assert world.server.destinations["orders"].bodies == []


def test_a_queue_deleted_and_made_again_while_the_line_was_lost_does_not_get_old_acknowledgements() -> None:
    """Nor does one of the same name at another server, to which the connection has gone: the numbers are the same."""
    world = World()
    consumer = consumer_of(fill(world, b"old"), prefetch=4)
    world.pump()
    (message,) = consumer.take(1)
    world.server.sessions.clear()
    del world.server.destinations["orders"]
    world.cut()
    consumer.acknowledge(message, 0)
    fill(world, b"new")
    world.pump()
    assert isinstance(consumer.error, DestinationDeleted)
    anew = consumer_of(world.road.session("individual"))
    world.pump()
    assert [one.body for one in anew.take(5)] == [b"new"]


@pytest.mark.requirement("CLU-126")
def test_an_acknowledgement_that_comes_too_late_is_told() -> None:
    world = World()
    session = fill(world, b"a")
    consumer = consumer_of(session, prefetch=4)
    other = world.road.session("individual")
    world.pump()
    (message,) = consumer.take(1)
    consumer_of(other)
    world.pump()
    world.cut()
    world.road.first.parts.reverse()  # the other one is quicker to come back
    world.pump()
    told = Ticket()
    consumer.acknowledge(message, 0)
    consumer.ask_settled(message, 0, told)
    world.pump()
    assert isinstance(told.error, Stale)
    assert consumer.main.settlements.stale == 1


def test_a_settlement_that_was_not_answered_is_answered_after_the_resume() -> None:
    world = World()
    session = fill(world, b"a")
    consumer = consumer_of(session)
    world.pump()
    (message,) = consumer.take(1)
    told = Ticket()
    consumer.acknowledge(message, 0)
    consumer.ask_settled(message, 0, told)
    world.road.flush()
    world.cut()
    world.pump()
    assert told.times == 1


@pytest.mark.requirement("CLU-126")
@pytest.mark.parametrize("awaited", [True, False])
def test_what_could_not_be_acknowledged_comes_again_if_the_application_was_told(awaited: bool) -> None:
    world = World()
    session = fill(world, b"a")
    consumer = consumer_of(session)
    world.pump()
    (message,) = consumer.take(1)
    world.cut()
    told = Ticket()
    consumer.acknowledge(message, 0)
    if awaited:
        consumer.ask_settled(message, 0, told)
    world.pump()
    again = consumer.take(1)
    world.pump()
    if awaited:
        assert isinstance(told.error, Stale)
        assert [one.redelivered for one in again] == [True]
    else:  # nobody waited: it is acknowledged again, unseen
        assert again == []
        assert world.server.destinations["orders"].bodies == []


@pytest.mark.requirement("CLU-28")
def test_messages_of_one_key_are_handed_out_one_at_a_time() -> None:
    world = World()
    producer = producer_of(world)
    for n in range(3):
        send(producer, b"a%d" % n, like=content(key="a"))
        send(producer, b"b%d" % n, like=content(key="b"))
    world.pump()
    consumer = consumer_of(world.road.sessions[0])
    world.pump()
    first = consumer.take(10)
    assert [message.body for message in first] == [b"a0", b"b0"]
    assert consumer.take(10) == []
    consumer.acknowledge(first[0], 0)
    (second,) = consumer.take(10)
    assert second.body == b"a1"
    consumer.settle(second, RETURN, 0, 0)  # and a2, which waits behind it, goes back first
    world.pump()
    again = []
    for _ in range(6):
        for message in consumer.take(10):
            again.append(message.body)
            consumer.acknowledge(message, 0)
        consumer.asked()
        world.pump()
    assert [body for body in again if body[:1] == b"a"] == [b"a1", b"a2"]
    consumer.acknowledge(first[1], 0)
    for _ in range(6):
        for message in consumer.take(10):
            again.append(message.body)
            consumer.acknowledge(message, 0)
        consumer.asked()
        world.pump()
    assert [body for body in again if body[:1] == b"b"] == [b"b1", b"b2"]


@pytest.mark.requirement("CLU-28")
def test_what_was_under_way_when_one_of_its_key_was_given_back_goes_back_too() -> None:
    world = World()
    producer = producer_of(world)
    send(producer, b"0", like=content(key="k"))
    world.pump()
    consumer = consumer_of(world.road.sessions[0])
    world.pump()
    (first,) = consumer.take(5)
    send(producer, b"1", b"2", like=content(key="k"))
    world.road.flush()
    assert world.line is not None
    for frame in world.way.out:
        for message in world.parser.feed(frame):
            world.line.take(message)
    world.way.out.clear()  # the server has sent 1 and 2 ...
    consumer.settle(first, RETURN, 0, consumer.epoch)  # ... before it hears of this
    back, world.back = world.back, []
    for frame in back:
        world.road.on_frames(world.other.feed(frame))
    seen = []
    for _ in range(20):
        for delivered in consumer.take(5):
            seen.append(delivered.body)
            consumer.acknowledge(delivered, consumer.epoch)
        consumer.asked()
        world.pump()
    assert seen == [b"0", b"1", b"2"]
    assert world.server.destinations["orders"].cursors[""].counts == {1: 2, 2: 1, 3: 1}


@pytest.mark.requirement("CLU-28")
def test_the_answer_to_the_first_return_says_nothing_of_the_second() -> None:
    world = World()
    send(producer_of(world), b"0", b"1", like=content(key="k"))
    world.pump()
    consumer = consumer_of(world.road.sessions[0])
    world.pump()
    keys = Keys()
    (one,) = consumer.take(1)
    other = next(message for message in consumer.withdraw() if message.order > one.order)
    first = keys.give_back("k", one.order)
    assert keys.is_early(other)
    assert not keys.is_early(one), "it has come again"
    assert not keys.is_early(other)
    second = keys.give_back("k", one.order)
    first.set_result(None)
    assert keys.is_early(other)
    second.set_result(None)
    assert not keys.is_early(other)
    assert not keys.given_back


@pytest.mark.requirement("CLU-28")
def test_what_was_taken_and_not_seen_when_the_line_was_lost_keeps_no_key() -> None:
    world = World()
    send(producer_of(world), b"0", b"1", like=content(key="k"))
    world.pump()
    consumer = consumer_of(world.road.sessions[0])
    world.pump()
    assert [message.body for message in consumer.take(2)] == [b"0"]
    world.cut()  # `held` says that the application has not seen it
    world.pump()
    (again,) = consumer.take(2)
    assert (again.body, again.redelivered) == (b"0", True)
    consumer.held = lambda: [again.order]
    world.cut()
    world.pump()
    assert consumer.take(2) == [], "it has this one"


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_keys_stay_in_order_whatever_happens(seed: int) -> None:
    """Law: per key what is acknowledged is strictly ascending, and everything is acknowledged in the end."""
    chance = Random(seed)
    world = World()
    producer = producer_of(world)
    for n in range(24):
        send(producer, b"%d" % n, like=content(key=f"k{n % 3}") if n % 4 else PLAIN)
    world.pump()
    session = world.road.sessions[0]
    consumers = [consumer_of(session, prefetch=chance.randint(1, 8)) for _ in range(2)]
    acknowledged: list[Delivered] = []
    held: list[tuple[DurableConsumer, Delivered, int]] = []
    for _ in range(400):
        world.pump()
        if not world.server.destinations["orders"].bodies and not held:
            break
        consumer = chance.choice(consumers)
        held += [(consumer, message, consumer.epoch) for message in consumer.take(chance.randint(1, 3))]
        if held:
            owner, message, epoch = held.pop(chance.randrange(len(held)))
            if chance.randrange(6) == 0:
                owner.settle(message, RETURN, 0, epoch)
            else:
                owner.acknowledge(message, epoch)
                acknowledged.append(message)
        consumer.asked()
    assert {message.body for message in acknowledged} == {b"%d" % n for n in range(24)}
    for key in ("k0", "k1", "k2"):
        orders = [message.order for message in acknowledged if message.key == key]
        assert orders == sorted(set(orders))


@pytest.mark.requirement("CLU-25")
def test_what_was_not_seen_goes_back_uncounted() -> None:
    world = World()
    session = fill(world, *(b"%d" % n for n in range(5)))
    consumer = consumer_of(session)
    world.pump()
    (seen,) = consumer.take(1)
    consumer.release_unseen()
    consumer.settle(seen, RETURN, 0, 0)
    ended = Ticket()
    consumer.end(ended.reply)
    consumer.over()
    world.pump()
    assert ended.times == 1
    counts = world.server.destinations["orders"].cursors[""].counts
    assert counts == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1}


def test_a_rejected_message_is_dead() -> None:
    world = World()
    session = fill(world, b"a")
    consumer = consumer_of(session)
    world.pump()
    (message,) = consumer.take(1)
    consumer.settle(message, REJECT, 0, 0)
    world.pump()
    assert world.server.destinations["orders"].dead == [1]


def test_a_consumer_closed_while_it_is_opened_is_over_at_the_server_before_that_is_said() -> None:
    """Else whoever subscribes anew finds the durable subscription in use, by the one that was closed."""
    world = World()
    session = fill(world, b"a")
    consumer = consumer_of(session)
    ended = Ticket()
    consumer.end(ended.reply)
    assert ended.times == 0, "the server was asked for it, and has not answered"
    world.pump()
    assert ended.times == 1
    assert not world.server.consumers()
    consumer.over()


def test_a_consumer_closed_while_it_is_opened_is_over_when_the_line_is_lost() -> None:
    world = World()
    session = fill(world, b"a")
    consumer = consumer_of(session)
    ended = Ticket()
    consumer.end(ended.reply)
    world.road.on_disconnected()
    assert ended.times == 1


def test_a_refused_consumer_says_why() -> None:
    world = World()
    session = world.road.session("individual")
    consumer = DurableConsumer(session.home, "x", {"kind": "queue"}, prefetch=1, prefetch_bytes=9, answered=True,
                               one_by_one=False, wake=lambda: None)  # fmt: skip
    session.add_consumer(consumer)
    world.pump()
    assert isinstance(consumer.error, NoDestination)


@pytest.mark.requirement("CLU-29")
@pytest.mark.parametrize("cut_at", [0, 3, 7, 9, 12])
def test_browsing_shows_everything_once_and_takes_nothing(cut_at: int) -> None:
    world = World()
    session = fill(world, *(b"%d" % n for n in range(10)))
    consumer = consumer_of(session, prefetch=3, browse=True)
    world.cut_at = world.frames + cut_at
    seen = []
    for _ in range(30):
        world.pump()
        seen += [message.body for message in consumer.take(2)]
        consumer.asked()
    assert seen == [b"%d" % n for n in range(10)]
    assert consumer.caught_up
    assert len(world.server.destinations["orders"].bodies) == 10


def test_deliveries_that_overtake_the_answer_are_kept_for_it() -> None:
    world = World()
    session = fill(world, b"a")
    consumer = consumer_of(session)
    world.road.flush()
    for frame in world.way.out:
        for message in world.parser.feed(frame):
            assert world.line is not None
            world.line.take(message)
    world.way.out.clear()
    world.back.reverse()
    world.pump()
    assert [message.body for message in consumer.take(2)] == [b"a"]


def test_deliveries_of_a_pattern_that_overtake_its_answer_are_kept_for_it() -> None:
    world = World()
    world.server.silent.add("consume")
    consumer = consumer_of(world.road.session("individual"), "news.>", kind="topic", durable="all")
    world.pump()
    assert world.line is not None
    for order, topic in ((1, 8), (2, 8), (1, 9)):
        entry = PLAIN.entry(b"%d of %d" % (order, topic))
        chunk = CHUNK.pack(order, 1, 1, 1, 1, bytes(20), len(entry), 0)
        world.line.frame(KIND_DELIVER, topic, body=chunk + entry)
    joined = [{"handle": 8, "destination": "news.a"}, {"handle": 9, "destination": "news.b"}]
    world.line.answer(world.way.number, {"consumer": 7, "joined": joined})
    world.pump()
    found = {message.body: consumer.name_of(message) for message in consumer.take(5)}
    assert found == {b"1 of 8": "news.a", b"2 of 8": "news.a", b"1 of 9": "news.b"}


def test_a_topic_that_is_not_durable_goes_on_where_it_was() -> None:
    world = World()
    session = world.road.session("individual")
    producer = session.producer("prices", "topic", create=True)
    consumer = consumer_of(session, "prices", kind="topic", start="new")
    world.pump()
    send(producer, b"1", b"2")
    world.pump()
    assert [message.body for message in consumer.take(9)] == [b"1", b"2"]
    world.cut()
    world.pump()
    send(producer, b"3")
    world.pump()
    assert [message.body for message in consumer.take(9)] == [b"3"]


def test_a_topic_that_is_not_durable_shows_what_was_not_seen_when_the_line_was_lost() -> None:
    world = World()
    session = world.road.session("individual")
    producer = session.producer("prices", "topic", create=True)
    consumer = consumer_of(session, "prices", kind="topic", start="new")
    world.pump()
    send(producer, b"1", b"2", b"3")
    world.pump()
    assert [message.body for message in consumer.take(1)] == [b"1"]
    world.cut()
    world.pump()
    assert [message.body for message in consumer.take(9)] == [b"2", b"3"]


@pytest.mark.parametrize("body", [b"x", b"\xff" * 71, b"\xff" * 72, b"\x00" * 72, b"\x01" * 144])
def test_hostile_deliveries_are_named_as_such(body: bytes) -> None:
    world = World()
    consumer = consumer_of(world.road.session("individual"))
    world.pump()
    try:
        consumer.on_deliver(consumer.handle, body)
    except (RemoteProtocolError, ValueError):
        pass
    assert len(consumer.buffer) <= 2


# --- Transactions -------------------------------------------------------------------------------------------------


def transacted(world: World) -> DurableSession:
    return world.road.session("transacted")


@pytest.mark.requirement("CLU-156")
@pytest.mark.requirement("CLU-155")
def test_sends_are_hidden_until_the_commit() -> None:
    world = World()
    session = transacted(world)
    transaction = DurableTransaction(session)
    producer = session.producer("invoices", "queue", create=True)
    transaction.send(producer, b"1", PLAIN)
    transaction.send(producer, b"2", PLAIN)
    world.pump()
    assert world.server.destinations["invoices"].bodies == []
    done = Ticket()
    transaction.commit(done.reply)
    world.pump()
    assert done.error is None
    assert done.times == 1
    assert world.server.destinations["invoices"].bodies == [b"1", b"2"]
    assert session.transaction is None


@pytest.mark.requirement("CLU-158")
def test_what_the_application_took_is_committed_and_nothing_else() -> None:
    world = World()
    fill(world, *(b"%d" % n for n in range(10)))
    session = transacted(world)
    consumer = consumer_of(session, ack="transacted")
    world.pump()
    transaction = DurableTransaction(session)
    transaction.took(consumer, consumer.take(3))
    done = Ticket()
    transaction.commit(done.reply)
    world.pump()
    consumer.release_unseen()
    world.pump()
    assert done.error is None
    assert world.server.destinations["orders"].bodies == [b"%d" % n for n in range(3, 10)]


@pytest.mark.requirement("CLU-159")
def test_a_rollback_brings_everything_back_in_order_and_counts_what_was_seen() -> None:
    world = World()
    fill(world, *(b"%d" % n for n in range(10)))
    session = transacted(world)
    consumer = consumer_of(session, ack="transacted")
    world.pump()
    transaction = DurableTransaction(session)
    transaction.took(consumer, consumer.take(3))
    transaction.send(session.producer("invoices", "queue", create=True), b"x", PLAIN)
    world.pump()
    done = Ticket()
    transaction.rollback(done.reply)
    consumer.asked()
    world.pump()
    assert done.error is None
    assert done.times == 1
    assert world.server.destinations["invoices"].bodies == []
    found = consumer.take(10)
    assert [message.body for message in found] == [b"%d" % n for n in range(10)]
    assert [message.delivery_count for message in found] == [2, 2, 2] + [1] * 7


@pytest.mark.requirement("CLU-127")
@pytest.mark.requirement("CLU-123")
@pytest.mark.requirement("CLU-118")
@pytest.mark.parametrize("cut_at", range(30))
def test_a_transaction_that_only_sends_survives_a_cut_anywhere(cut_at: int) -> None:
    world = World()
    session = transacted(world)
    producers = [session.producer(name, "queue", create=True) for name in ("one", "two")]
    world.cut_at = cut_at
    done: list[Ticket] = []
    for n in range(3):
        transaction = DurableTransaction(session)
        for producer in producers:
            transaction.send(producer, b"%d" % n, PLAIN)
        if n != 1:
            world.pump()
        done.append(Ticket())
        transaction.commit(done[-1].reply)
        world.pump()
    assert [(ticket.times, ticket.error) for ticket in done] == [(1, None)] * 3
    for name in ("one", "two"):
        assert world.server.destinations[name].bodies == [b"0", b"1", b"2"]
    commits = [asked["transaction"] for asked in world.server.commands if asked["do"] == "commit"]
    assert len(commits) == len(set(commits)), "never said again under the same number"


@pytest.mark.requirement("CLU-127")
@pytest.mark.requirement("CLU-155")
@pytest.mark.parametrize("cut_at", range(40))
def test_a_transfer_happens_once_or_not_at_all_and_is_reported_truly(cut_at: int) -> None:
    world = World()
    fill(world, *(b"%d" % n for n in range(4)))
    session = transacted(world)
    producer = session.producer("paid", "queue", create=True)
    consumer = consumer_of(session, ack="transacted", prefetch=2)
    world.cut_at = world.frames + cut_at
    moved = 0
    for _ in range(12):
        world.pump()
        found = consumer.take(1)
        if not found:
            consumer.asked()
            continue
        transaction = DurableTransaction(session)
        transaction.took(consumer, found)
        done = Ticket()
        try:
            transaction.send(producer, found[0].body, PLAIN)
            transaction.commit(done.reply)
        except TransactionAborted as error:
            assert error.retryable
            transaction.rollback(done.reply)
            continue
        world.pump()
        assert done.times == 1
        moved += done.error is None
        assert done.error is None or (isinstance(done.error, TransactionAborted) and done.error.retryable)
    paid = world.server.destinations["paid"].bodies
    assert sorted(paid) == sorted(set(paid)) == [b"0", b"1", b"2", b"3"]
    assert moved == 4
    assert world.server.destinations["orders"].bodies == []


def test_a_loss_aborts_a_transaction_that_received() -> None:
    world = World()
    fill(world, b"a")
    session = transacted(world)
    consumer = consumer_of(session, ack="transacted")
    world.pump()
    transaction = DurableTransaction(session)
    transaction.took(consumer, consumer.take(1))
    world.cut()
    world.pump()
    with pytest.raises(TransactionAborted) as caught:
        transaction.send(session.producer("x", "queue", create=True), b"1", PLAIN)
    assert caught.value.retryable
    done = Ticket()
    transaction.commit(done.reply)
    assert isinstance(done.error, TransactionAborted)
    assert world.server.destinations["orders"].bodies == [b"a"]


def test_a_refused_send_aborts_the_transaction() -> None:
    world = World()
    session = transacted(world)
    transaction = DurableTransaction(session)
    transaction.send(session.producer("nowhere", "queue"), b"1", PLAIN)
    world.pump()
    done = Ticket()
    transaction.commit(done.reply)
    world.pump()
    assert isinstance(done.error, TransactionAborted)
    assert isinstance(done.error.__cause__, NoDestination)
    assert not done.error.retryable


# --- Very large messages ------------------------------------------------------------------------------------------


def upload_of(
    world: World, producer: Any, data: bytes, told: Ticket, *, length: int | None = None, seekable: bool = False
) -> Upload:
    batch = producer.reserve(told)

    def done(large: bytes, error: Exception | None) -> None:
        if error is None:
            producer.fill(batch, PLAIN.entry(large, ENTRY_LARGE))
        else:
            producer.give_up(batch, error)

    upload = Upload(producer, 1, length, seekable=seekable, wake=lambda: None, done=done)
    upload.data = data  # type: ignore[attr-defined]
    return upload


def feed(world: World, upload: Upload, data: bytes, until: int = 1 << 40) -> None:
    for _ in range(1000):
        world.pump()
        if upload.is_over or upload.position >= until:
            return
        if size := upload.room:
            piece = data[upload.position : upload.position + size]
            upload.offer(piece, last=not piece)


@pytest.mark.requirement("CLU-93")
@pytest.mark.requirement("CLU-98")
@pytest.mark.requirement("CLU-99")
@pytest.mark.parametrize("cut_at", [0, 4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20])
def test_a_very_large_message_survives_a_cut_and_is_not_overtaken(cut_at: int) -> None:
    world = World()
    producer = producer_of(world)
    data = bytes(range(256)) * 4096
    told = Ticket()
    before = send(producer, b"before")
    upload = upload_of(world, producer, data, told)
    after = send(producer, b"after")
    world.cut_at = cut_at
    feed(world, upload, data)
    world.pump()
    assert before[0].result.order in (1, None)
    assert told.result is not None
    assert told.times == 1
    assert after[0].result.order in (3, None)
    assert list(world.server.large.values()) == [data]
    consumer = consumer_of(world.road.sessions[0])
    world.pump()
    messages = consumer.take(3)
    assert messages[1].large is not None
    download = consumer.download(messages[1], consumer.epoch, lambda: None)
    got = b""
    while not download.is_read:
        world.pump()
        while (piece := download.take()) is not None:
            got += piece
    assert got == data


@pytest.mark.requirement("CLU-98", "CLU-123")
@pytest.mark.parametrize("left", [0, 70_000, 1 << 20])
@pytest.mark.parametrize("seekable", [True, False])
def test_a_server_that_lost_what_it_had_gets_it_again_from_a_source_that_can_be_read_again(
    left: int, seekable: bool
) -> None:
    world = World()
    producer = producer_of(world)
    data = Random(1).randbytes(3 << 20)
    told = Ticket()
    upload = upload_of(world, producer, data, told, seekable=seekable)
    feed(world, upload, data, until=2 << 20)
    (session,) = world.server.sessions.values()
    del session.uploads[1][left:]
    world.cut()
    feed(world, upload, data)
    world.pump()
    if seekable:
        assert told.result is not None
        assert list(world.server.large.values()) == [data]
    else:
        assert isinstance(told.error, TransferFailed)


def test_a_source_of_the_wrong_length_fails_and_lets_the_rest_pass() -> None:
    world = World()
    producer = producer_of(world)
    told = Ticket()
    upload = upload_of(world, producer, b"", told, length=10)
    after = send(producer, b"after")
    feed(world, upload, b"short")
    world.pump()
    assert isinstance(told.error, TransferFailed)
    assert after[0].result.order == 1


# --- Content ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("CLU-18")
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"x", ""), ("text", "text"), ({"a": 1, "b": b"\x00", "c": [1.5, None, True]}, "map"), ([1, "two", b"3"], "list")],
)
def test_every_kind_of_body_comes_back(body: Any, kind: str) -> None:
    data, said = encode_body(body)
    assert said == kind
    if kind in ("map", "list"):
        assert decode_body(data, kind) == body


def test_a_text_is_read_as_json_and_nonsense_is_named() -> None:
    assert decode_body(b'{"a": 1}', "text") == {"a": 1}
    with pytest.raises(ValueError, match="not JSON"):
        decode_body(b"no", "")
    with pytest.raises(ValueError, match="not a map"):
        decode_body(b"\xc1", "map")


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 10},
        {"ttl": -1},
        {"delay": float("nan")},
        {"delay": 1, "cron": "@hourly"},
        {"properties": {":x": 1}},
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(FairleadError):
        content(**options)
    with pytest.raises(BadParameter):
        encode_body(object())


def test_blocked_is_an_error_worth_another_try() -> None:
    assert Blocked().retryable


def test_a_message_for_a_given_time_is_a_timed_one() -> None:
    """The server looks for `:due` in timed entries only, so that others cost nothing."""
    message = content(at_ms=5_000).entry(b"x")
    (entry,) = details(message, 0, len(message))
    assert entry.flags & ENTRY_TIMED
    assert due_ms(entry, 1_000) == 5_000
    assert due_ms(entry, 9_000) == 9_001
