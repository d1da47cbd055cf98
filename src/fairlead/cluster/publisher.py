"""Publishing and abandoning batches, one after the other, a bounded piece in each turn.

A batch is there once its PUBLISH record is safe, all of it or nothing, in all its destinations. What a topic's
transient subscribers are to hear is read again after that, at a pace that lets others be served in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster import publication, records, requests
from fairlead.cluster.publication import Appearance, Placed, Revealed, Share, Steps
from fairlead.cluster.publish_parts import PublishParts
from fairlead.errors import FairleadError, NotAllowed, StageMissing, TooMany

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Line
    from fairlead.cluster.staged import Row, Rows, Stage
    from fairlead.cluster.stages import Stages

RECORDS_MAX: Final = 1_000_000
FILE_SHARE: Final = 4
"""A PUBLISH record is at most such a part of a file of the journal."""


class Publisher:
    """The commands `publish` and `abandon`."""

    def __init__(self, core: Core, stages: Stages) -> None:
        self._core = core
        self._stages = stages
        self.parts = PublishParts()
        self._queue: deque[Steps[None]] = deque()
        self._under_way: list[Placed] = []
        self._broadcasts: deque[Revealed] = deque()
        self._broadcasting: Steps[None] | None = None
        self.messages = 0  # published since the start
        self.batches = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._queue)

    def rows(self) -> Iterator[Row]:
        """Records that are still to be read, though their stages are gone."""
        for item in self._under_way:
            yield item.row
        for revealed in self._broadcasts:
            yield revealed.row

    # ------------------------------------------------------------------ the commands

    def on_publish(self, line: Line, number: int, request: dict[str, Any]) -> None:
        part, user = requests.read(request, requests.Publish), line.user
        asked = self.parts.take(line, part)
        if asked is None:
            self._core.answer(line, number, {"parts": part.part + 1})
            return
        names = dict.fromkeys(name for _, counts in asked.stages for name in counts)
        homes = [home for name in names if (home := self._core.find(name)) is not None]
        steps = self._answered(line, number, self._publishing(line, number, asked, user))
        self._core.sessions.join(homes, lambda: self._work(steps))  # behind what waits in their queues

    def on_abandon(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked, user = requests.read(request, requests.Abandon), line.user

        def abandon() -> None:
            self._stages.check_user(asked.query, user)
            stages = [one for one in self._stages.of(asked.query) if one.batch == asked.batch]
            if any(one.user != user for one in stages):
                raise NotAllowed("A stage of this batch belongs to another user.")
            self._stages.drop(stages)
            self._answer(line, number, {"dropped": len(stages)})

        numbers = {number for one in self._stages.of(asked.query) if one.batch == asked.batch for number in one.rows}
        homes = [self._core.destinations[one] for one in numbers if one in self._core.destinations]
        steps = self._answered(line, number, _at_once(abandon))
        self._core.sessions.join(homes, lambda: self._work(steps))  # as a publishing that came before it

    def _publishing(self, line: Line, number: int, asked: requests.Publish, user: str) -> Steps[None]:
        core, stages = self._core, self._stages
        stages.check_user(asked.query, user)
        sink = stages.sinks.get(asked.query)
        if sink is not None and asked.batch <= sink.batch:
            stages.drop([one for one in stages.of(asked.query) if one.batch <= asked.batch])
            messages = sink.messages if asked.batch == sink.batch else 0
            self._answer(line, number, {"published": "before", "messages": messages})
            return
        stages.make_room(asked.query)
        chosen = self._chosen(asked, user)
        tasks = [core.names.by_number[one].task for one in {home.number for home, _ in chosen}]
        for task in tasks:
            core.tasks.stop(task)
        try:
            shares = yield from publication.shares_of(chosen)
            shares = yield from publication.without_repeats(core, shares)
            index, messages, appearance = yield from self._written(asked, user, shares)
        finally:
            for task in tasks:
                core.tasks.go(task)

        def visible() -> None:
            appearance.reveal()
            core.answer(line, number, {"published": "now", "messages": messages})
            self._broadcast(appearance.broadcasts)

        core.after(index, visible)

    def _chosen(self, asked: requests.Publish, user: str) -> list[tuple[Destination, Rows]]:
        """What the stages named have, in that order; StageMissing if it is not exactly what is said."""
        chosen: list[tuple[Destination, Rows]] = []
        named: set[str] = set()
        for name, counts in asked.stages:
            if name in named:
                raise StageMissing(f"The stage {name!r:.80} is named twice.")
            named.add(name)
            stage = self._stages.open.get((asked.query, asked.batch, name))
            if stage is not None and stage.user != user:
                raise NotAllowed(f"The stage {name!r:.80} belongs to another user.")
            homes = self._expected(stage, name, counts)
            if stage is not None:
                chosen += [(home, stage.rows[number]) for number, home in homes.items()]
        most = min(RECORDS_MAX, self._core.settings.segment_bytes // FILE_SHARE // records.PUBLISH_ITEM.size)
        if (count := sum(len(rows) for _, rows in chosen)) > most:
            raise TooMany(f"The batch was staged in {count} frames, and {most} can be published: use longer ones.")
        return chosen

    def _expected(self, stage: Stage | None, name: str, counts: Mapping[str, int]) -> dict[int, Destination]:
        """The destinations of a stage, if it has there what it should."""
        homes: dict[int, Destination] = {}
        for destination, count in counts.items():
            home = self._core.find(destination)
            there = stage.accepted(home.number) if stage is not None and home is not None else 0
            if there != count:
                raise StageMissing(f"The stage {name!r:.80} has {there} messages for {destination!r}, not {count}.")
            if count and home is not None:
                homes[home.number] = home
        for number in stage.rows if stage is not None else ():
            home = self._core.destinations.get(number)
            if number not in homes and home is not None:
                raise StageMissing(f"The stage {name!r:.80} has messages for {home.name!r} that are not counted.")
        return homes

    def _written(self, asked: requests.Publish, user: str, shares: list[Share]) -> Steps[tuple[int, int, Appearance]]:
        """The record, and what follows from it but for being seen: its index, how many messages, what is to be seen."""
        core, ms = self._core, self._core.now_ms
        for share in shares:
            if core.destinations.get(share.home.number) is not share.home:
                raise StageMissing(f"{share.home.name!r} was deleted.")
        items = publication.placed(shares)
        messages = sum(item.row.count for item in items)
        facts = {"query": asked.query, "batch": asked.batch, "user": user, "messages": messages}
        index, _ = core.append(records.PUBLISH, publication.record(items, ms, msgspec.json.encode(facts)))
        self._under_way = items
        try:
            self._stages.published(facts, ms, index)
            appearance = yield from publication.take_in(items, index, ms, core.read)
        finally:
            self._under_way = []
        self.messages += messages
        self.batches += 1
        return index, messages, appearance

    # ------------------------------------------------------------------ one after the other

    def _work(self, steps: Steps[None]) -> None:
        self._queue.append(steps)
        if len(self._queue) == 1:
            self._step()

    def _step(self) -> None:
        while self._queue:
            wait_ms = next(self._queue[0], None)
            if wait_ms is not None:
                self._core.call_at(self._core.now_ms + wait_ms, self._step)
                return
            self._queue.popleft()

    def _answered(self, line: Line, number: int, steps: Steps[None]) -> Steps[None]:
        """The same; what goes wrong is told to who asked, and is nobody else's affair."""
        try:
            yield from steps
        except FairleadError as refusal:
            self._core.error(line, number, refusal.code, refusal.text)
        except Exception as fault:
            self._core.fault(line, number, fault)

    def _answer(self, line: Line, number: int, facts: Mapping[str, Any]) -> None:
        self._core.after(self._core.last_index, lambda: self._core.answer(line, number, facts))

    # ------------------------------------------------------------------ transient subscribers

    def _broadcast(self, found: Iterable[Revealed]) -> None:
        self._broadcasts.extend(found)
        if self._broadcasting is None:
            self._broadcast_step()

    def _broadcast_step(self) -> None:
        while self._broadcasts:
            if self._broadcasting is None:
                self._broadcasting = publication.broadcast(self._core, self._broadcasts[0])
            wait_ms = next(self._broadcasting, None)
            if wait_ms is not None:
                self._core.call_at(self._core.now_ms + wait_ms, self._broadcast_step)
                return
            self._broadcasting = None
            self._broadcasts.popleft()


def _at_once(action: Callable[[], None]) -> Steps[None]:
    action()
    yield from ()
