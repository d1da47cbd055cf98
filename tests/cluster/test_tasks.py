"""Command queues and slices: order, fairness, marks, holding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.tasks import SLICE_COMMANDS, HoldMe, Marks, Scheduler, Task


class Rig:
    def __init__(self, marks: Marks | None = None) -> None:
        self.marks: list[tuple[str, bool]] = []
        self.faults: list[tuple[str, Any, str]] = []
        self.ran: list[Any] = []
        self.tasks = Scheduler(
            marks or Marks(),
            lambda task, over: self.marks.append((task.name, over)),
            lambda task, origin, error: self.faults.append((task.name, origin, str(error))),
        )

    def task(self, name: str) -> Task:
        return self.tasks.add(Task(name, "destination"))

    def put(self, task: Task, *facts: Any, cost: int = 0, holdable: bool = False) -> None:
        self.tasks.put(task, cost, None, self.ran.append, facts, holdable=holdable)


@pytest.mark.requirement("CLU-80", "CLU-83")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=300))
def test_each_task_runs_its_commands_in_the_order_they_came(commands: list[tuple[int, int]]) -> None:
    rig = Rig()
    tasks = [rig.task(str(number)) for number in range(4)]
    for number, (which, what) in enumerate(commands):
        rig.put(tasks[which], which, number, what)
    while rig.tasks.run():
        pass
    assert len(rig.ran) == len(commands)
    for which in range(4):
        own = [number for task, number, _ in rig.ran if task == which]
        assert own == sorted(own)


@pytest.mark.requirement("CLU-82", "CLU-84")
def test_a_busy_task_gives_way_after_a_slice() -> None:
    rig = Rig()
    busy, quiet = rig.task("busy"), rig.task("quiet")
    for number in range(10 * SLICE_COMMANDS):
        rig.put(busy, "busy", number)
    rig.put(quiet, "quiet")
    rig.tasks.run()
    assert rig.ran.index(("quiet",)) == SLICE_COMMANDS
    assert len(rig.ran) == 10 * SLICE_COMMANDS + 1


def test_a_turn_is_bounded_and_the_next_goes_on() -> None:
    rig = Rig()
    task = rig.task("a")
    for number in range(500):
        rig.put(task, number, cost=100)
    assert rig.tasks.run(commands=100) is True
    assert len(rig.ran) < 300
    while rig.tasks.run(commands=100):
        pass
    assert [one[0] for one in rig.ran] == list(range(500))


def test_a_slice_is_bounded_in_bytes_too() -> None:
    rig = Rig()
    heavy, light = rig.task("heavy"), rig.task("light")
    for number in range(5):
        rig.put(heavy, "heavy", number, cost=1 << 20)
    rig.put(light, "light")
    rig.tasks.run()
    assert rig.ran[1] == ("light",)


@pytest.mark.requirement("CLU-66")
def test_marks_are_told_once_and_nothing_is_lost() -> None:
    rig = Rig(Marks(high_commands=10, low_commands=5, high_bytes=1000, low_bytes=500))
    task = rig.task("a")
    rig.tasks.stop(task)
    for number in range(25):
        rig.put(task, number)
    assert rig.marks == [("a", True)]
    assert rig.tasks.run() is False
    assert not rig.ran
    rig.tasks.go(task)
    rig.tasks.run()
    assert rig.marks == [("a", True), ("a", False)]
    assert len(rig.ran) == 25
    assert task.depth == 0
    assert task.bytes == 0


@pytest.mark.requirement("CLU-66")
def test_bytes_reach_the_mark_as_well() -> None:
    rig = Rig(Marks(high_commands=1000, low_commands=500, high_bytes=1000, low_bytes=500))
    task = rig.task("a")
    rig.put(task, 1, cost=600)
    assert not rig.marks
    rig.put(task, 2, cost=600)
    assert rig.marks == [("a", True)]
    rig.tasks.run()
    assert rig.marks[-1] == ("a", False)


def test_held_commands_wait_while_others_go_on() -> None:
    rig = Rig()
    task = rig.task("a")
    rig.tasks.hold(task, "store-full")
    rig.put(task, "send", 1, holdable=True)
    rig.put(task, "settle", 1)
    rig.put(task, "send", 2, holdable=True)
    rig.put(task, "settle", 2)
    rig.tasks.run()
    assert rig.ran == [("settle", 1), ("settle", 2)]
    assert task.waiting == 2
    rig.put(task, "settle", 3)
    rig.tasks.release(task, "store-full")
    rig.tasks.run()
    assert rig.ran[2:] == [("send", 1), ("send", 2), ("settle", 3)]


@given(st.lists(st.sampled_from(["send", "other", "hold", "release", "run"]), max_size=60))
def test_sends_keep_their_order_however_they_are_held(steps: list[str]) -> None:
    rig = Rig()
    task = rig.task("a")
    full = False
    count = 0

    def send(number: int) -> None:
        if full:
            raise HoldMe
        rig.ran.append(number)

    for step in [*steps, "release", "run"]:
        if step == "send":
            rig.tasks.put(task, 1, None, send, count, holdable=True)
            count += 1
        elif step == "other":
            rig.tasks.put(task, 1, None, lambda: None)
        elif step == "hold":
            full = True  # noticed by the first send that runs
        elif step == "release":
            full = False
            rig.tasks.release(task, "store-full")
        else:
            rig.tasks.run()
    assert rig.ran == list(range(count))
    assert task.bytes == 0


def test_what_is_held_is_copied_out_of_the_readers_buffer() -> None:
    rig = Rig()
    task = rig.task("a")
    rig.tasks.hold(task, "store-full")
    buffer = bytearray(b"one")
    seen: list[bytes] = []
    rig.tasks.put(task, 3, None, lambda view: seen.append(bytes(view)), memoryview(buffer), holdable=True)
    rig.tasks.run()
    buffer[:] = b"two"
    rig.tasks.release(task, "store-full")
    rig.tasks.run()
    assert seen == [b"one"]


@pytest.mark.requirement("CLU-59")
def test_a_command_that_fails_is_told_and_the_next_one_runs() -> None:
    rig = Rig()
    task = rig.task("a")
    rig.tasks.put(task, 0, "somebody", lambda: exec("1 // 0"))
    rig.put(task, "next")
    rig.tasks.run()
    assert rig.ran == [("next",)]
    assert rig.faults == [("a", "somebody", "integer division or modulo by zero")]
    assert task.faults == 1


def test_work_is_called_after_a_slice_and_may_ask_for_another() -> None:
    rig = Rig()
    left = 3

    def work() -> bool:
        nonlocal left
        left -= 1
        return left > 0

    task = rig.tasks.add(Task("a", "destination", work=work))
    rig.tasks.ready(task)
    assert rig.tasks.run() is False
    assert left == 0
    assert task.slices == 3


def test_a_command_that_asks_for_work_gets_it_in_its_own_slice() -> None:
    rig = Rig()
    calls = 0

    def work() -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            rig.tasks.ready(task)  # while it works: it is asked again
        return False

    task = rig.tasks.add(Task("a", "destination", work=work))
    rig.tasks.put(task, 1, None, lambda: rig.tasks.ready(task))
    assert rig.tasks.run() is False
    assert calls == 2
    rig.tasks.put(task, 1, None, lambda: rig.tasks.ready(task))
    assert rig.tasks.run() is False
    assert calls == 3


def test_a_removed_task_gives_back_what_it_has_not_run() -> None:
    rig = Rig()
    task = rig.task("a")
    rig.tasks.hold(task, "store-full")
    rig.put(task, 1, holdable=True)
    rig.tasks.run()
    rig.put(task, 2)
    left = rig.tasks.remove(task)
    assert [command[4] for command in left] == [((1,),), ((2,),)]
    assert rig.tasks.run() is False
    assert not rig.ran
    assert len(rig.tasks) == 0


@pytest.mark.requirement("CLU-73")
def test_a_thousand_tasks_cost_no_more_than_they_do() -> None:
    rig = Rig()
    tasks = [rig.task(str(number)) for number in range(1000)]
    for task in tasks:
        rig.put(task, task.name)
    rig.tasks.run()
    assert len(rig.ran) == 1000
    assert rig.tasks.idle
