"""A session over several groups: real agent and real cores, no sockets. Each part by itself, all of them together."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.client.durable.session import State
from fairlead.errors import NoDestination, NoMessageManager
from tests.client.cluster_world import ClusterWorld, bodies, send
from tests.client.durable_server import Ticket


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    return ClusterWorld(tmp_path)


def test_with_one_group_everything_is_as_without_a_cluster(tmp_path: Path) -> None:
    world = ClusterWorld(tmp_path, ("a",))
    session = world.session()
    (ticket,) = send(session.producer("left", "queue", create=True), b"one")
    world.pump()
    assert ticket.result.order == 1
    assert [command["do"] for command in world.commands] == ["session", "produce"]
    assert "group" not in world.commands[0]
    world.fail_over("a")
    (ticket,) = send(session.producer("left", "queue"), b"two")
    world.pump()
    assert ticket.result.order == 2
    assert not world.asked("locate")


@pytest.mark.requirement("CLU-1")
def test_each_destination_is_used_in_its_group(world: ClusterWorld) -> None:
    session = world.session()
    left, right = (session.producer(name, "queue", create=True) for name in ("left", "right"))
    tickets = [*send(left, b"1", b"2"), *send(right, b"3", b"4")]
    world.pump()
    assert [ticket.result.order for ticket in tickets] == [1, 2, 1, 2]
    assert (left.part.group.name, right.part.group.name) == ("a", "b")
    assert [ticket.result.id_number >> 48 for ticket in tickets] == [0, 0, 1, 1], "blocks of ids are per part"
    assert session.in_flight == 0
    consumers = [world.consumer(session, name) for name in ("left", "right")]
    world.pump()
    assert [bodies(consumer.take(9)) for consumer in consumers] == [[b"1", b"2"], [b"3", b"4"]]
    assert len(world.asked("locate")) == 2, "what is known is not asked again"


def test_a_second_session_opens_only_the_part_it_uses(world: ClusterWorld) -> None:
    send(world.session().producer("right", "queue", create=True), b"1")
    world.pump()
    world.commands.clear()
    (ticket,) = send(world.session().producer("right", "queue"), b"2")
    world.pump()
    assert ticket.result.order == 2
    assert [command["group"] for command in world.asked("session")] == ["b"]
    assert not world.asked("locate")


@pytest.mark.requirement("CLU-142", "CLU-123")
def test_a_failover_concerns_the_part_of_its_group_only(world: ClusterWorld) -> None:
    session = world.session()
    left, right = (session.producer(name, "queue", create=True) for name in ("left", "right"))
    held = world.consumer(session, "left")
    send(left, b"kept")
    send(right, b"kept")
    world.pump()
    assert bodies(held.take(9)) == [b"kept"]
    handles = left.handle, held.handle
    world.site.kill("b")
    world.pump()
    assert right.part.state is State.LOST
    first, second = send(left, b"goes on")[0], send(right, b"waits")[0]
    world.pump()
    assert first.result.order == 2
    assert not second.done()
    world.lead("b")
    world.pump()
    assert second.result.order == 2
    assert (left.handle, held.handle) == handles, "the other part has noticed nothing"
    assert held.epoch == 0


@pytest.mark.requirement("CLU-122")
def test_a_lost_connection_resumes_all_parts_at_once(world: ClusterWorld) -> None:
    session = world.session()
    producers = [session.producer(name, "queue", create=True) for name in ("left", "right")]
    world.pump()
    world.commands.clear()
    world.cut()
    tickets = [send(producer, b"x")[0] for producer in producers]
    world.say()
    assert sum(1 for _ in world.outward) == 2, "both resumes are under way before either is answered"
    world.pump()
    assert [ticket.result.order for ticket in tickets] == [1, 1]
    resumed = world.asked("session")
    assert sorted(command["group"] for command in resumed) == ["a", "b"]
    assert all("resume" in command for command in resumed)


@pytest.mark.parametrize("cut_at", range(1, 60))
def test_nothing_is_lost_or_doubled_wherever_the_line_is_cut(tmp_path: Path, cut_at: int) -> None:
    world = ClusterWorld(tmp_path, cut_at=cut_at)
    session = world.session()
    tickets: list[Ticket] = []
    for number in range(3):
        for name in ("left", "right"):
            tickets += send(session.producer(name, "queue", create=True), b"%d" % number, b"%d again" % number)
        world.pump()
    assert all(ticket.times == 1 and ticket.error is None for ticket in tickets)
    assert (world.depth("left"), world.depth("right")) == (6, 6)


def test_a_group_that_stays_away_is_given_up_and_the_other_goes_on(tmp_path: Path) -> None:
    world = ClusterWorld(tmp_path, limit_s=10)
    session = world.session()
    left, right = (session.producer(name, "queue", create=True) for name in ("left", "right"))
    send(left, b"1")
    send(right, b"1")
    world.pump()
    world.site.kill("b")
    (lost,) = send(right, b"2")
    world.pump()
    world.pass_time(11)
    assert isinstance(lost.error, NoMessageManager)
    assert "'b'" in str(lost.error)
    (ticket,) = send(left, b"2")
    world.pump()
    assert ticket.result.order == 2
    assert not session.is_over
    world.lead("b")
    (again,) = send(session.producer("right", "queue"), b"3")
    world.pump()
    world.pass_time(2)
    assert again.result.order in (2, 3)


def test_the_first_group_may_be_away_when_only_another_is_used(world: ClusterWorld) -> None:
    send(world.session().producer("right", "queue", create=True), b"1")
    world.pump()
    world.site.kill("a")
    (ticket,) = send(world.session().producer("right", "queue"), b"2")
    world.pump()
    assert ticket.result.order == 2


def test_nor_need_it_be_there_to_learn_of_the_others(world: ClusterWorld) -> None:
    send(world.session().producer("right", "queue", create=True), b"1")
    world.pump()
    world.site.kill("a")
    world.road.__init__(world.way, client_name="test", limit_s=60, now_ms=world.road.now_ms, later=world.road.later,  # type: ignore[misc]
                        wake=lambda: None, write=lambda: None)  # fmt: skip
    world.road.on_connected()
    (ticket,) = send(world.session().producer("right", "queue"), b"2")
    (other,) = send(world.session().producer("left", "queue", create=True), b"1")
    world.pump()
    assert ticket.result.order == 2
    assert world.road.groups == ("a", "b")
    world.lead("a")
    world.pump()
    world.pass_time(2)
    assert other.result.order == 1


def test_a_name_nobody_has_is_refused_once_it_was_looked_for_again(world: ClusterWorld) -> None:
    session = world.session()
    producer = session.producer("right", "queue")
    (ticket,) = send(producer, b"1")
    world.pump()
    assert isinstance(ticket.error, NoDestination)
    assert len(world.asked("produce")) == 2
    assert len(world.asked("locate")) == 2
    (ticket,) = send(session.producer("right", "queue", create=True), b"1")
    world.pump()
    assert ticket.result.order == 1


def test_a_place_that_has_changed_is_asked_for_again(world: ClusterWorld) -> None:
    session = world.session()
    send(session.producer("right", "queue", create=True), b"1")
    world.pump()
    world.road.places.learn("right", "a")
    (ticket,) = send(world.session().producer("right", "queue", create=True), b"2")
    world.pump()
    assert ticket.result.order == 2
    assert world.find("right").facts()["depth"] == 2


def test_flow_is_stopped_in_all_parts_and_in_those_that_come_later(world: ClusterWorld) -> None:
    session = world.session()
    left = world.consumer(session, "left")
    world.pump()
    stopped = Ticket()
    session.flow(True, stopped.reply)
    world.pump()
    assert stopped.done()
    right = world.consumer(session, "right")
    sender = world.session()
    for name in ("left", "right"):
        send(sender.producer(name, "queue", create=True), b"1")
    world.pump()
    assert not left.buffer
    assert not right.buffer
    session.flow(False, Ticket().reply)
    world.pump()
    assert len(left.buffer) == len(right.buffer) == 1


def test_ending_a_session_ends_it_in_every_group(world: ClusterWorld) -> None:
    session = world.session()
    for name in ("left", "right"):
        world.consumer(session, name)
    world.pump()
    ended = Ticket()
    session.end(ended.reply)
    world.pump()
    assert ended.done()
    assert session.state is State.ENDED
    assert len(world.asked("end-session")) == 2
    assert not world.road.sessions
    assert all(not member.core.sessions.by_id for member in world.site.members.values())


@pytest.mark.requirement("CLU-171", "CLU-173", "CLU-174")
def test_a_pattern_takes_in_the_topics_of_every_group(world: ClusterWorld) -> None:
    session = world.session()
    news = world.pattern(session, "news.*")
    world.pump()
    assert news.is_open
    sender = world.session()
    producers = {name: sender.producer(name, "topic", create=True) for name in ("news.left", "news.right")}
    for number in range(5):
        for name, producer in producers.items():
            send(producer, b"%s %d" % (name.encode(), number))
        world.pump()
    got = _drain(world, news)
    for name in producers:
        mine = [body for from_name, body in got if from_name == name]
        assert mine == [b"%s %d" % (name.encode(), number) for number in range(5)], "each topic in its order, once"
    assert world.site.members["a"].core.find("news.left") is not None
    assert world.site.members["b"].core.find("news.right") is not None


@pytest.mark.requirement("CLU-174")
def test_a_pattern_outlives_a_failover_and_takes_in_groups_that_come_later(tmp_path: Path) -> None:
    world = ClusterWorld(tmp_path)
    session, sender = world.session(), world.session()
    news = world.pattern(session, "news.*", durable="reader")
    world.pump()
    right = sender.producer("news.right", "topic", create=True)
    send(right, b"1")
    world.pump()
    world.fail_over("b")
    send(right, b"2")
    world.pump()
    assert [body for _, body in _drain(world, news)] == [b"1", b"2"]
    _add_group(world, "c", pins=("news.third",))
    world.pump()
    assert world.road.groups == ("a", "b", "c")
    send(sender.producer("news.third", "topic", create=True), b"3")
    world.pump()
    assert [body for _, body in _drain(world, news)] == [b"3"]
    gone = Ticket()
    session.ask_everywhere("unsubscribe", {"name": "reader"}, gone.reply)
    news.over()
    world.pump()
    assert gone.done()


def test_a_durable_subscription_ends_where_it_is(world: ClusterWorld) -> None:
    from fairlead.client.durable.commands import Command

    session = world.session()
    reader = world.consumer(session, "news.right", kind="topic", durable="reader", start="new")
    world.pump()
    assert reader.part.group.name == "b"
    reader.end(Ticket().reply)
    world.pump()
    reader.over()
    gone = Ticket()
    session.ask_at("news.right", Command("unsubscribe", {"name": "reader"}, gone.reply))
    world.pump()
    assert gone.done()
    assert gone.error is None
    assert not world.find("news.right").subscriptions()


def _drain(world: ClusterWorld, news: object) -> list[tuple[str, bytes]]:
    got: list[tuple[str, bytes]] = []
    for _ in range(50):
        taken = news.take(3)  # type: ignore[attr-defined]
        for message in taken:
            got.append((news.name_of(message), message.body))  # type: ignore[attr-defined]
            news.acknowledge(message, news.epoch)  # type: ignore[attr-defined]
        world.pump()
    return got


def _add_group(world: ClusterWorld, name: str, pins: tuple[str, ...]) -> None:
    from fairlead.cluster.client_manager.link_head import port_of
    from fairlead.cluster.client_manager.placement import Group
    from tests.cluster.core_rig import MemoryJournal

    site = world.site
    site.specs.append(Group(name, pins))
    site.journals[name] = MemoryJournal()
    site.epochs[name] = 0
    site.bus.listen(port_of(name), site._handler(name))
    site.agent.configure(site.specs)
    site.lead(name)
    site.settle()
