"""A router in trouble: a decision that fails, and a manager that waits for room in the middle of a turn."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fairlead.broker.turn import Rule
from fairlead.store import layout
from fairlead.wire import kinds
from tests.broker.world import TWINS, World


@pytest.fixture(params=TWINS, ids=lambda twin: twin.name)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param, rule=Rule(resume_below=1))
    yield made
    made.close()


@pytest.mark.requirement("SRV-71")
def test_a_decision_that_fails_ends_one_message_and_not_the_router(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = world.attach(0), world.attach(1)
    world.register(receiver, "work")
    world.run()

    def fail(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr(world.decisions, "_fan_out", fail)
        patch.setattr(world.decisions, "_subscribe", fail)
        lost = world.send(sender, kinds.KIND_FANOUT, "work", correlation=5)
        world.subscribe(sender, "t", number=6)
        world.run()
    assert world.errors(sender) == [("internal", 5, 0), ("internal", 0, 6)]
    assert len(world.decisions.failures) == 2
    assert "a bug of ours" in world.decisions.failures[0]
    world.send(sender, kinds.KIND_REQUEST, "work", correlation=7)
    world.run()
    assert len(world.delivered(receiver, kinds.KIND_REQUEST)) == 1
    assert world.check_accounting()[lost] == 1


@pytest.mark.parametrize("header", [b"\x05:type\x02\x00\xff\xfe", b"\x04:org\x01\x00\x80", b"\xff"])
def test_headers_that_are_no_text_are_refused(world: World, header: bytes) -> None:
    sender = world.attach(0)
    world.send(sender, kinds.KIND_FANOUT, correlation=5, headers=header)
    world.run()
    assert world.errors(sender) == [("bad-request", 5, 0)]
    assert not world.decisions.failures


@pytest.mark.requirement("SRV-97")
def test_a_manager_that_waits_for_room_hears_of_it_before_the_others_are_read_to_the_end(world: World) -> None:
    """Otherwise its queue is empty for the rest of the turn, and the others get its share."""
    one, two = world.attach(0), world.attach(1)
    world.run()
    for _ in range(10):
        world.send(one, kinds.KIND_PUBLISH, "t", ring_flags=layout.FLAG_COUNTED | layout.FLAG_ROUND)
    for _ in range(4):
        world.send(two, kinds.KIND_PUBLISH, "t", ring_flags=layout.FLAG_COUNTED | layout.FLAG_ROUND)
    world.ups[1].want()
    for fd in world.wake_fds:
        os.eventfd_write(fd, 1)
        os.eventfd_read(fd)
    done = world.turn.run(1000, 0)
    assert world.ups[1].waiting() == 1, "as many as may wait when reading goes on"
    assert done in (6, 7), "and as many of the other manager"
    assert os.eventfd_read(world.wake_fds[1]) == 1
    world.run()
    assert world.ups[0].waiting() == world.ups[1].waiting() == 0
    assert len(world.check_accounting()) == 14
