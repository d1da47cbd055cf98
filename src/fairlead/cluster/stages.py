"""Stages and sinks: messages put aside by many hands and made visible by one, once per query and batch.

A stage outlives connections and restarts: what is in it is numbered, so whoever fills it goes on where it stands. What
is remembered of a query is its last batch; a batch that is not above it was published before, whatever else is said.
This is the table of them, and what the journal says of it; filling is in `staging`, publishing in `publisher`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster import publication, records, settling, stored
from fairlead.cluster.publication import Placed
from fairlead.cluster.publisher import Publisher
from fairlead.cluster.staged import Row, Sink, Stage, row_of
from fairlead.cluster.staging import Staging
from fairlead.errors import NotAllowed, StageMissing, TooMany

if TYPE_CHECKING:
    from fairlead.cluster.bulk import Handler
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Line
    from fairlead.cluster.port import Bytes

STAGES_MAX: Final = 100_000
SINKS_MAX: Final = 100_000
SINK_IDLE_MS: Final = 30 * 86_400_000
"""A query that published nothing for so long may be forgotten where there are too many."""
LOOK_AGAIN_MS: Final = 1000

Key = tuple[str, int, str]
"""query, batch, name."""


class Stages:
    """All stages and sinks of this message manager."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.open: dict[Key, Stage] = {}
        self.sinks: dict[str, Sink] = {}  # the one that published longest ago first
        self._by_id: dict[bytes, Stage] = {}
        self._by_query: dict[str, dict[Key, Stage]] = {}
        self._expiry_ms = 0  # when `_expire` is called next; 0: not at all
        self._ids_beyond = 0  # of all message id numbers given to staged messages
        self.staging = Staging(core, self)
        self.publisher = Publisher(core, self)
        self.commands: Mapping[str, Handler] = {
            "stage": self.staging.on_stage,
            "publish": self.publisher.on_publish,
            "abandon": self.publisher.on_abandon,
        }

    # ------------------------------------------------------------------ stages

    def claim(self, query: str, batch: int, name: str, user: str) -> Stage:
        """The stage of this name, opened now if there is none."""
        self.check_user(query, user)
        core = self._core
        stage = self.open.get((query, batch, name))
        if stage is None:
            if len(self.open) >= STAGES_MAX:
                raise TooMany(f"There are {STAGES_MAX} stages already; those nobody needs can be abandoned.")
            stage = Stage(core.new_session_id(), query, batch, name, user, core.now_ms, core.now_ms)
            core.append(records.STAGE, msgspec.json.encode({"do": "open", **stage.facts()}))
            self._add(stage)
        elif stage.user != user:
            raise NotAllowed(f"The stage {name!r:.80} belongs to another user.")
        stage.active_ms = core.now_ms
        self._expire_at(stage.active_ms + self._retention_ms)
        return stage

    def is_open(self, stage: Stage) -> bool:
        return self._by_id.get(stage.id) is stage

    def of(self, query: str) -> list[Stage]:
        return list(self._by_query.get(query, {}).values())

    def drop(self, stages: list[Stage]) -> None:
        """Forget them with everything in them."""
        if stages:
            facts = {"do": "drop", "ids": [stage.id.hex() for stage in stages]}
            self._core.append(records.STAGE, msgspec.json.encode(facts))
            for stage in stages:
                self._remove(stage)

    def drop_one(self, query: str, batch: int, name: str) -> int:
        """By order of an operator; how many messages were in it."""
        stage = self.open.get((query, batch, name))
        if stage is None:
            raise StageMissing(f"There is no stage {name!r:.80} of batch {batch} of {query!r:.80}.")
        if self.publisher.is_busy:
            raise StageMissing("A batch is being published just now; ask again.")
        self.drop([stage])
        return stage.messages

    def _add(self, stage: Stage) -> None:
        self.open[stage.key] = self._by_id[stage.id] = stage
        self._by_query.setdefault(stage.query, {})[stage.key] = stage

    def _remove(self, stage: Stage) -> None:
        if self._by_id.pop(stage.id, None) is not None:
            del self.open[stage.key]
            left = self._by_query[stage.query]
            del left[stage.key]
            if not left:
                del self._by_query[stage.query]

    @property
    def _retention_ms(self) -> int:
        return int(self._core.settings.stage_retention_s * 1000)

    def _expire_at(self, ms: int) -> None:
        if not self._expiry_ms:
            self._expiry_ms = ms
            self._core.call_at(ms, self._expire)

    def _expire(self) -> None:
        """Stages of which nobody has said a word for long are dropped."""
        self._expiry_ms = 0
        now_ms, limit_ms = self._core.now_ms, self._core.now_ms - self._retention_ms
        busy = self.publisher.is_busy  # with some of them, perhaps
        late = [] if busy else [stage for stage in self.open.values() if stage.active_ms <= limit_ms]
        for stage in late:
            text = f"The stage {stage.name!r} of {stage.query!r} was left behind; it is dropped with its messages."
            ids = {"query": stage.query, "batch": stage.batch, "user": stage.user, "messages": stage.messages}
            self._core.event("warning", "stage-dropped", text, **ids)
        self.drop(late)
        if self.open:
            oldest_ms = min(stage.active_ms for stage in self.open.values())
            self._expire_at(max(oldest_ms + self._retention_ms, now_ms + LOOK_AGAIN_MS))

    # ------------------------------------------------------------------ sinks

    def check_user(self, query: str, user: str) -> None:
        sink = self.sinks.get(query)
        if sink is not None and sink.user != user:
            raise NotAllowed(f"The query {query!r:.80} is another user's; an operator can have its sink forgotten.")

    def is_published(self, query: str, batch: int) -> bool:
        sink = self.sinks.get(query)
        return sink is not None and batch <= sink.batch

    def make_room(self, query: str) -> None:
        """For one query more, if this is one."""
        if query in self.sinks or len(self.sinks) < SINKS_MAX:
            return
        oldest = next(iter(self.sinks.values()))
        if oldest.ms + SINK_IDLE_MS > self._core.now_ms:
            raise TooMany(f"The last batches of {SINKS_MAX} queries are remembered, all of the last 30 days.")
        self.forget(oldest.query)
        text = f"The query {oldest.query!r} is forgotten, for there are too many; batch {oldest.batch} was its last."
        self._core.event("warning", "sink-forgotten", text, query=oldest.query, batch=oldest.batch, user=oldest.user)

    def forget(self, query: str) -> Sink:
        """Whatever this query publishes next counts as new."""
        sink = self.sinks.pop(query, None)
        if sink is None:
            raise StageMissing(f"There is no sink {query!r:.80}.")
        self._core.append(records.STAGE, msgspec.json.encode({"do": "forget", "query": query}))
        return sink

    def published(self, facts: Mapping[str, Any], ms: int, index: int) -> None:
        """The PUBLISH record of a batch was written, or is read again: its stages, and those before it, are over."""
        query, batch = facts["query"], facts["batch"]
        self.sinks.pop(query, None)
        self.sinks[query] = Sink(query, batch, facts["user"], ms, facts["messages"], index)
        for stage in self.of(query):
            if stage.batch <= batch:
                self._remove(stage)

    # ------------------------------------------------------------------ who comes and goes

    def on_gone(self, line: Line) -> None:
        self.staging.on_gone(line)
        self.publisher.parts.on_gone(line)

    def on_deleted(self, destination: Destination, reason: str) -> None:
        """What was staged for it is nobody's; a batch that counts on it cannot be published."""
        self.staging.on_deleted(destination, reason)
        self.forget_rows(destination.number)

    def gave_ids(self, beyond: int) -> None:
        self._ids_beyond = max(self._ids_beyond, beyond)

    def forget_rows(self, destination: int) -> None:
        for stage in self.open.values():
            stage.rows.pop(destination, None)

    # ------------------------------------------------------------------ the journal

    def needs(self, first: int, last: int) -> bool:
        """Is any record with an index from the first to the last staged, or to be read again?"""
        if any(first <= row.index <= last for row in self.publisher.rows()):
            return True
        return any(rows.touches(first, last) for stage in self.open.values() for rows in stage.rows.values())

    def apply(self, index: int, body: Bytes) -> None:
        """A STAGE record, read again."""
        facts = msgspec.json.decode(body)
        match facts["do"]:
            case "open":
                self._add(Stage.restored(facts))
            case "drop":
                for identity in facts["ids"]:
                    if (stage := self._by_id.get(bytes.fromhex(identity))) is not None:
                        self._remove(stage)
            case "forget":
                self.sinks.pop(facts["query"], None)
            case "ids":
                self.gave_ids(facts["beyond"])
            case _:
                pass

    def apply_hidden(self, index: int, place: int, body: Bytes) -> None:
        """A HIDDEN record of a stage, read again."""
        head = stored.Head(*records.STORE_RECORD.unpack_from(body))
        stage = self._by_id.get(head.session)
        if stage is not None:
            stage.add(head.destination, row_of(index, place, len(body), head))

    def apply_publish(self, index: int, body: memoryview, wants: Callable[[int], bool]) -> None:
        """A PUBLISH record, read again; for the destinations that `want` it their messages, too."""
        ms, count, _ = records.PUBLISH_RECORD.unpack_from(body)
        start = records.PUBLISH_RECORD.size
        end = start + count * records.PUBLISH_ITEM.size
        facts = msgspec.json.decode(body[end:])
        staged = self._staged(facts["query"], facts["batch"])
        items: list[Placed] = []
        lost: list[tuple[Destination, int, int]] = []
        for number, many, order, source in records.PUBLISH_ITEM.iter_unpack(body[start:end]):
            if wants(number):
                home = self._core.destinations[number]
                if (row := staged.get(source)) is not None:
                    items.append(Placed(home, row, order))
                else:
                    lost.append((home, order, order + many))
        publication.at_once(publication.take_in(items, index, ms, self._core.journal.fetch)).reveal()
        for home, low, high in lost:
            if high > home.next:
                settling.hole(home, max(low, home.next), high)
                home.next = home.visible = high
        self.published(facts, ms, index)

    def _staged(self, query: str, batch: int) -> dict[int, Row]:
        stages = (stage for stage in self.of(query) if stage.batch == batch)
        return {row.index: row for stage in stages for rows in stage.rows.values() for row in rows}

    def snapshot(self) -> dict[str, Any]:
        return {
            "stages": [stage.snapshot() for stage in self.open.values()],
            "sinks": list(self.sinks.values()),
            "ids_beyond": self._ids_beyond,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for facts in state["stages"]:
            self._add(Stage.restored(facts))
        self.sinks = {sink[0]: Sink(*sink) for sink in state["sinks"]}
        self._ids_beyond = state["ids_beyond"]

    def recovered(self) -> int:
        """All records are read: time begins anew for all stages. One beyond the last message id number given."""
        for stage in self.open.values():
            stage.active_ms = self._core.now_ms
            for number in [one for one in stage.rows if one not in self._core.destinations]:
                del stage.rows[number]
        if self.open:
            self._expire_at(self._core.now_ms + self._retention_ms)
        return self._ids_beyond
