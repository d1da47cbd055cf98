"""Names of destinations, creation and deletion, and how managers hear of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.names import ANNOUNCE_WAIT_MS, NAMES_PER_FRAME, WELL_KNOWN, check_name, fixed_id
from fairlead.cluster.outgoing import Link
from fairlead.cluster.parameters import Parameters
from fairlead.cluster.tasks import Task
from fairlead.errors import BadName, NotAllowed, WrongKind
from fairlead.wire import durable

from .core_rig import Rig, frames_of

A = 11


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.requirement("CLU-177")
@pytest.mark.parametrize("name", ["a", "x_", "orders.eu/1:2-3", "A" * 255, "9"])
def test_names_that_may_be(name: str) -> None:
    check_name(name)


@pytest.mark.requirement("CLU-177")
@pytest.mark.parametrize("name", ["", "a b", "A" * 256, "a*", "ä", "a\n", ">", "a\x00"])
def test_names_that_may_not_be(name: str) -> None:
    with pytest.raises(BadName):
        check_name(name, reserved=True)


@pytest.mark.requirement("CLU-177")
def test_names_with_an_underscore_first_are_the_servers() -> None:
    with pytest.raises(NotAllowed):
        check_name("_x")
    check_name("_x", reserved=True)


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        check_name(text, reserved=True)
    except BadName:
        return
    assert text.isascii()
    assert 1 <= len(text) <= 255


@pytest.mark.requirement("CLU-176", "CLU-178")
def test_a_fresh_store_has_exactly_the_well_known(rig: Rig) -> None:
    names = rig.core.names
    assert set(names.by_name) == set(WELL_KNOWN)
    for name, (number, kind) in WELL_KNOWN.items():
        destination = names.by_name[name].destination
        assert (destination.number, destination.kind, destination.id) == (number, kind, fixed_id(number))
    rig.restart()
    assert set(rig.core.names.by_name) == set(WELL_KNOWN)


@pytest.mark.requirement("CLU-86", "CLU-87")
def test_made_twice_is_made_once(rig: Rig) -> None:
    first = rig.core.create("q", "queue", Parameters())
    assert rig.core.create("q", "queue", Parameters(max_messages=5)) is first
    with pytest.raises(WrongKind, match="queue"):
        rig.core.create("q", "topic", Parameters())
    rig.settle()
    rig.restart()
    again = rig.core.find("q")
    assert again is not None
    assert (again.id, again.number) == (first.id, first.number)


@pytest.mark.requirement("CLU-88")
def test_deleted_and_made_again_it_is_another(rig: Rig) -> None:
    rig.session(A)
    producer = rig.producer(A, "q")
    consumer = rig.consumer(A, "q")
    old = rig.core.names.by_name["q"].destination
    rig.settle()
    rig.take(A)
    rig.core.delete(old, "A test deleted it.")
    rig.settle()
    ended = [got.facts for got in rig.take(A, durable.KIND_NOTICE)]
    assert {facts["handle"] for facts in ended} == {producer, consumer}
    assert all(facts["code"] == "destination-deleted" for facts in ended)
    new = rig.core.create("q", "queue", Parameters())
    assert (new.number, new.id) != (old.number, old.id)
    rig.store(A, producer, 1, b"to the old one")
    rig.settle()
    assert new.depth == 0
    removed = [got.facts["remove"] for got in rig.take(0, durable.KIND_COMMAND)]
    assert ["q"] in removed
    rig.restart()
    assert rig.core.names.by_name["q"].destination.id == new.id


def test_what_was_sent_before_a_deletion_and_not_yet_run_is_answered(rig: Rig) -> None:
    rig.session(A)
    producer = rig.producer(A, "q")
    place = rig.core.names.by_name["q"]
    rig.core.tasks.stop(place.task)
    rig.store(A, producer, 1, b"x")
    posted: list[int] = []
    rig.core.post(place.destination, lambda: posted.append(1))
    rig.core.delete(place.destination, "gone")
    rig.settle()
    assert posted == [1]
    assert any(got.headers["code"] == b"destination-deleted" for got in rig.take(A, 0x44))


# --- Announcements ------------------------------------------------------------------------------------------------


def second_manager(rig: Rig) -> Link:
    link = rig.core.link_opened()
    rig.frame(0, durable.KIND_COMMAND, link=link, body=b'{"do":"hello","manager":1}')
    rig.settle()
    return link


def announced(rig: Rig, link: Link) -> None:
    body = b'{"do":"announced","number":%d}' % rig.core.announcements.number
    rig.frame(0, durable.KIND_COMMAND, link=link, body=body)
    rig.settle()


def producing(rig: Rig) -> Task:
    """A session is about to send to a new queue, of which no manager says that it knows."""
    rig.muted = True
    rig.session(A)
    rig.command(A, "produce", session=1, destination="q", kind="queue", create=True)
    rig.settle()
    assert not rig.take(A)
    task = rig.core.names.by_name["q"].task
    assert not runs(task)
    return task


def runs(task: Task) -> bool:
    return not task.stopped


@pytest.mark.requirement("CLU-173", "CLU-174")
def test_a_new_destination_waits_until_every_manager_knows(rig: Rig) -> None:
    other = second_manager(rig)
    task = producing(rig)
    announced(rig, rig.link)
    assert not runs(task)
    assert not rig.take(A)
    announced(rig, other)
    assert runs(task)
    assert rig.take(A, durable.KIND_ANSWER)


def test_a_lost_manager_is_not_waited_for(rig: Rig) -> None:
    other = second_manager(rig)
    task = producing(rig)
    announced(rig, rig.link)
    rig.core.link_lost(other)
    rig.settle()
    assert runs(task)
    assert rig.take(A, durable.KIND_ANSWER)


def test_a_manager_that_never_answers_is_waited_for_so_long(rig: Rig) -> None:
    task = producing(rig)
    rig.now_ms += ANNOUNCE_WAIT_MS + 1
    rig.settle()
    assert runs(task)
    assert rig.take(A, durable.KIND_ANSWER)
    assert any(record["code"] == "announcement-late" for record in rig.world.logged)


def test_many_names_are_told_in_several_frames(rig: Rig) -> None:
    for number in range(2 * NAMES_PER_FRAME + 10):
        rig.core.create(f"q{number}", "queue", Parameters())
    for _ in range(200):
        rig.turn(sync=True)
    told = [name for got in rig.take(0, durable.KIND_COMMAND) for name, _, _ in got.facts["add"] if name[0] == "q"]
    assert len(told) == len(set(told)) == 2 * NAMES_PER_FRAME + 10
    link = rig.core.link_opened()
    rig.frame(0, durable.KIND_COMMAND, link=link, body=b'{"do":"hello","manager":1}')
    rig.core.run()
    answer, *more = frames_of(link)
    names = [one[0] for one in answer.facts["names"]] + [one[0] for got in more for one in got.facts["add"]]
    assert len(set(names)) == len(rig.core.names)
    assert all(len(got.body) < 1 << 20 for got in (answer, *more))
