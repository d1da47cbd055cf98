"""What administrators may ask about stages and sinks, and do to them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from fairlead.cluster.admin_arguments import Count

if TYPE_CHECKING:
    from fairlead.cluster.admin import Admin
    from fairlead.cluster.core import Core
    from fairlead.cluster.staged import Sink, Stage

Label = Annotated[str, Meta(max_length=512)]


class OfQuery(Struct, kw_only=True):
    query: Label = ""
    page: Annotated[int, Meta(ge=0)] = 0
    count: Count = 100


class DropStage(Struct, kw_only=True):
    query: Label
    batch: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    stage: Label


class ForgetSink(Struct, kw_only=True):
    query: Label


def register(admin: Admin, core: Core) -> None:
    commands = StageCommands(core)
    admin.register("stages", OfQuery, commands.stages)
    admin.register("sinks", OfQuery, commands.sinks)
    admin.register("drop-stage", DropStage, commands.drop_stage, changes=True)
    admin.register("forget-sink", ForgetSink, commands.forget_sink, changes=True)


class StageCommands:
    """The handlers; the docstring of each is its description in `commands`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def stages(self, asked: OfQuery) -> dict[str, Any]:
        """What is staged and not published: by query, batch and stage."""
        stages = self._core.stages
        found = stages.of(asked.query) if asked.query else stages.open.values()
        first = asked.page * asked.count
        shown = [self._stage(one) for one in islice(found, first, first + asked.count)]
        return {"stages": shown, "total": len(found), "next": _next(asked, len(found))}

    def _stage(self, stage: Stage) -> dict[str, Any]:
        destinations = self._core.destinations
        return {
            "query": stage.query,
            "batch": stage.batch,
            "stage": stage.name,
            "user": stage.user,
            "opened_ms": stage.opened_ms,
            "active_ms": stage.active_ms,
            "messages": stage.messages,
            "bytes": sum(rows.bytes for rows in stage.rows.values()),
            "destinations": {destinations[n].name: r.accepted for n, r in stage.rows.items() if n in destinations},
        }

    def sinks(self, asked: OfQuery) -> dict[str, Any]:
        """The last batch of each query that published, the newest first."""
        sinks = self._core.stages.sinks
        if asked.query:
            found = [sinks[asked.query]] if asked.query in sinks else []
            return {"sinks": [_sink(one) for one in found], "total": len(found), "next": None}
        first = asked.page * asked.count
        shown = [_sink(one) for one in islice(reversed(sinks.values()), first, first + asked.count)]
        return {"sinks": shown, "total": len(sinks), "next": _next(asked, len(sinks))}

    def drop_stage(self, asked: DropStage) -> dict[str, Any]:
        """Drop a stage with its messages; a batch that counts on it cannot be published any more."""
        return {"messages": self._core.stages.drop_one(asked.query, asked.batch, asked.stage)}

    def forget_sink(self, asked: ForgetSink) -> dict[str, Any]:
        """Forget which batch a query published last: whatever it publishes next counts as new."""
        return _sink(self._core.stages.forget(asked.query))


def _sink(sink: Sink) -> dict[str, Any]:
    return {
        "query": sink.query,
        "batch": sink.batch,
        "user": sink.user,
        "published_ms": sink.ms,
        "messages": sink.messages,
    }


def _next(asked: OfQuery, total: int) -> int | None:
    return asked.page + 1 if (asked.page + 1) * asked.count < total else None
