"""Tasks and their command queues: who runs next, for how long, and when flow control begins.

One task per destination, and one each for the jobs that exist once. A task's commands run one after the other and in
the order they came; a slice is bounded, so a busy task never keeps the others waiting (CLU-80, CLU-82, CLU-83). A
queue has high and low marks in commands and in bytes; passing them is told, nothing is ever thrown away (CLU-66).

A task can be *held* for named reasons (the store is full). Then its commands that were put as holdable wait in a lane
of their own, in order, while all others go on: consumers are served while producers wait. A *stopped* task runs
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

SLICE_COMMANDS: Final = 64
SLICE_BYTES: Final = 1 << 20
TURN_COMMANDS: Final = 2048
TURN_BYTES: Final = 8 << 20

Command = tuple[int, bool, Any, Callable[..., None], tuple[Any, ...]]
"""cost in bytes, whether it can be held, whom it came from (any), what to call, with what."""


class HoldMe(Exception):
    """Raised by a command that cannot run now and has changed nothing: it waits until its task is released."""


@dataclass(slots=True, frozen=True)
class Marks:
    """Where flow control begins and ends."""

    high_commands: int = 1000
    low_commands: int = 500
    high_bytes: int = 8 << 20
    low_bytes: int = 4 << 20


class Task:
    """One unit of concurrency. `work`, if given, is called after each slice; True from it asks for another slice."""

    __slots__ = (
        "_held", "_queue", "_scheduled", "bytes", "commands_run", "depth_max", "faults", "holds", "key", "kind",
        "name", "over_mark", "overs", "slices", "stopped", "work",
    )  # fmt: skip

    def __init__(self, name: str, kind: str, key: object = None, work: Callable[[], bool] | None = None) -> None:
        self.name = name
        self.kind = kind
        self.key = key
        self.work = work
        self.bytes = 0  # of what waits
        self.over_mark = False
        self.holds: set[str] = set()
        self.stopped = False
        self.commands_run = 0
        self.slices = 0
        self.faults = 0
        self.overs = 0  # times the high mark was passed
        self.depth_max = 0
        self._queue: deque[Command] = deque()
        self._held: deque[Command] = deque()
        self._scheduled = False

    @property
    def depth(self) -> int:
        """Commands that wait, held ones too."""
        return len(self._queue) + len(self._held)

    @property
    def waiting(self) -> int:
        """Commands held back by a reason in `holds`."""
        return len(self._held)

    def facts(self) -> dict[str, Any]:
        """What `tasks` shows of it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "depth": self.depth,
            "bytes": self.bytes,
            "depth_max": self.depth_max,
            "commands": self.commands_run,
            "slices": self.slices,
            "faults": self.faults,
            "held": sorted(self.holds),
            "over_mark": self.over_mark,
            "overs": self.overs,
        }


class Scheduler:
    """All tasks of a process; `run` gives each that has something to do a slice, in turn."""

    def __init__(
        self,
        marks: Marks,
        on_mark: Callable[[Task, bool], None],
        on_fault: Callable[[Task, Any, Exception], None],
    ) -> None:
        self.current: Task | None = None
        self._works: Task | None = None  # runs commands now, and will be asked for its work in any case
        self.commands_run = 0
        self.marks = marks
        self._on_mark = on_mark  # a queue passed its high mark (True), or fell below its low mark again
        self._on_fault = on_fault
        self._ready: deque[Task] = deque()
        self._tasks: dict[int, Task] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    @property
    def idle(self) -> bool:
        """Is there nothing to run?"""
        return not self._ready

    def add(self, task: Task) -> Task:
        self._tasks[id(task)] = task
        return task

    def remove(self, task: Task) -> list[Command]:
        """Forget it; the commands it has not run."""
        self._tasks.pop(id(task), None)
        left = [*task._held, *task._queue]
        task._queue.clear()
        task._held.clear()
        task.bytes = 0
        task.work = None
        return left

    def put(
        self, task: Task, cost: int, origin: Any, call: Callable[..., None], *args: Any, holdable: bool = False
    ) -> None:
        """Into its queue. A holdable one waits while the task is held."""
        task._queue.append((cost, holdable, origin, call, args))
        if not task._scheduled and not task.stopped:
            task._scheduled = True
            self._ready.append(task)
        task.bytes += cost
        depth = task.depth
        if depth > task.depth_max:
            task.depth_max = depth
        if not task.over_mark and (depth >= self.marks.high_commands or task.bytes >= self.marks.high_bytes):
            task.over_mark = True
            task.overs += 1
            self._on_mark(task, True)

    def ready(self, task: Task) -> None:
        """Give it a slice although no command waits: its `work` has something to do."""
        if task is self._works:
            return
        if not task._scheduled and not task.stopped and id(task) in self._tasks:
            task._scheduled = True
            self._ready.append(task)

    def stop(self, task: Task) -> None:
        """Run nothing of it until `go`."""
        task.stopped = True

    def go(self, task: Task) -> None:
        task.stopped = False
        self.ready(task)

    def hold(self, task: Task, reason: str) -> None:
        task.holds.add(reason)

    def release(self, task: Task, reason: str) -> None:
        """One reason less; with the last, what waited runs before anything else of this task."""
        task.holds.discard(reason)
        if not task.holds and task._held:
            task._held.extend(task._queue)  # what came meanwhile stays behind
            task._queue, task._held = task._held, deque()
            self.ready(task)

    def run(self, commands: int = TURN_COMMANDS, bytes_: int = TURN_BYTES) -> bool:
        """Slices in turn until nothing is left or the budget is used up. True: more to do."""
        ready = self._ready
        while ready:
            if commands <= 0 or bytes_ <= 0:
                return True
            task = ready.popleft()
            task._scheduled = False
            if task.stopped:
                continue
            done, cost = self._slice(task)
            commands -= max(done, 1)
            bytes_ -= cost
        return False

    def _slice(self, task: Task) -> tuple[int, int]:
        queue = task._queue
        done = cost = 0
        self.current = self._works = task
        try:
            while queue and done < SLICE_COMMANDS and cost < SLICE_BYTES:
                size, holdable, origin, call, args = queue.popleft()
                if holdable and (task.holds or task._held):
                    task._held.append((size, True, origin, call, kept(args)))
                    continue
                try:
                    call(*args)
                except HoldMe:
                    task._held.append((size, True, origin, call, kept(args)))
                    continue
                except Exception as error:
                    task.faults += 1
                    self._on_fault(task, origin, error)
                done += 1
                cost += size
                task.bytes -= size
            self._works = None
            more = task.work() if task.work is not None else False
        except Exception as error:  # of work()
            task.faults += 1
            more = False
            self._on_fault(task, None, error)
        finally:
            self.current = self._works = None
        task.commands_run += done
        task.slices += 1
        self.commands_run += done
        if task.over_mark and task.depth <= self.marks.low_commands and task.bytes <= self.marks.low_bytes:
            task.over_mark = False
            self._on_mark(task, False)
        if more or queue:
            self.ready(task)
        return done, cost


def kept(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments, with views into somebody's buffer copied: they are to wait for long."""
    return tuple(memoryview(bytes(one)) if isinstance(one, memoryview) else one for one in args)
