"""What is written before a role is handed over: exactly what may have been delivered (CLU-34)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.bus.port import Peer, View
from fairlead.cluster.draining import Draining
from fairlead.cluster.edge.hosted import lame_of
from tests.cluster.core_rig import Rig

CONSUMER, PRODUCER = 5, 6


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Three messages delivered and settled; two more can be delivered."""
    rig = Rig(tmp_path)
    for uid in (CONSUMER, PRODUCER):
        rig.session(uid)
    producer = rig.producer(PRODUCER, "q")
    rig.store(PRODUCER, producer, 1, *(b"%d" % number for number in range(3)))
    consumer = rig.consumer(CONSUMER, "q", messages=3)
    rig.settle()
    assert [body for _, _, body in rig.delivered(CONSUMER)] == [b"0", b"1", b"2"]
    rig.store(PRODUCER, producer, 4, b"3", b"4")
    rig.settle()
    rig.consumer_handle = consumer  # type: ignore[attr-defined]
    return rig


def counts_after_a_change(rig: Rig) -> dict[bytes, int]:
    """Whoever leads next delivers everything that is left, with these counts."""
    rig.settle()
    rig.restart()
    rig.session(CONSUMER)
    rig.consumer(CONSUMER, "q")
    rig.settle()
    return {body: deliveries for _, deliveries, body in rig.delivered(CONSUMER)}


def test_without_it_whatever_may_have_been_delivered_is_marked(rig: Rig) -> None:
    rig.consumer(PRODUCER, "q")
    rig.settle()
    assert set(counts_after_a_change(rig).values()) == {2}


def test_it_is_over_when_nobody_holds_anything(rig: Rig) -> None:
    draining = Draining(rig.core)
    assert not draining.is_done
    rig.settle_range(CONSUMER, rig.consumer_handle, 1, 4)  # type: ignore[attr-defined]
    rig.settle()
    assert draining.is_done


@pytest.mark.requirement("CLU-34")
def test_what_was_not_delivered_is_not_marked(rig: Rig) -> None:
    draining = Draining(rig.core)
    rig.settle_range(CONSUMER, rig.consumer_handle, 1, 3)  # type: ignore[attr-defined]
    rig.settle()
    assert not draining.is_done, "it still holds one"
    draining.settle()
    assert counts_after_a_change(rig) == {b"2": 2, b"3": 1, b"4": 1}


def test_nothing_is_delivered_while_it_drains_and_everything_when_it_stays(rig: Rig) -> None:
    draining = Draining(rig.core)
    consumer = rig.consumer(PRODUCER, "q")
    rig.settle()
    assert rig.delivered(PRODUCER) == []
    draining.settle()
    draining.abandon()
    rig.settle()
    assert [body for _, _, body in rig.delivered(PRODUCER)] == [b"3", b"4"]
    rig.settle_range(PRODUCER, consumer, 4, 6)
    assert counts_after_a_change(rig) == {b"0": 2, b"1": 2, b"2": 2}, "held by the first, and marked"


@pytest.mark.requirement("CLU-49", half="who has lost a bus; what follows from it is shown with real processes")
def test_who_has_lost_a_bus_that_we_have() -> None:
    def view(**buses: tuple[str, ...]) -> View:
        return View(1, {name: Peer(name, 1, 0, has) for name, has in buses.items()})

    both = ("bus1", "bus2")
    assert lame_of(view(me=both, other=both, cm2=("bus2",)), "me") == ["cm2"]
    assert lame_of(view(me=both, other=("bus1",), cm2=("bus2",)), "me") == ["cm2", "other"]
    assert lame_of(view(me=both, other=("bus1",), cm1=("bus1",)), "me") == [], "we have lost it as well"
    assert lame_of(view(me=both, other=(), cm1=both), "me") == [], "it is doubted as a whole"
