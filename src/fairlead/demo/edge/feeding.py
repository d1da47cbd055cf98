"""Two adapters and one source; the adapter a program reads from is killed, and the program counts."""

from __future__ import annotations

import asyncio
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import fairlead
from fairlead.demo.books import Book
from fairlead.demo.edge.stage import PATIENCE_S, Skipped, Stage
from fairlead.demo.findings import Chart, Findings, Mark
from fairlead.demo.words import counted, spell
from fairlead.feeds.events import Event, FailedOver

if TYPE_CHECKING:
    from fairlead.testing.feeds import FeedWorld

__all__ = ["run"]

MESSAGES, RATE = 8_000, 2_500.0
AFTER = 0.4


def run(stage: Stage) -> Findings:
    missing = [name for name in ("numpy", "pyarrow") if find_spec(name) is None]
    if missing:
        raise Skipped(f"Feed adapters need {' and '.join(missing)}: pip install 'fairlead[feeds]'")
    from fairlead.testing.feed_numbers import NumberedSourceProcess
    from fairlead.testing.feeds import FeedWorld

    stage.say("two adapters and their administration start")
    with NumberedSourceProcess() as source:
        world = FeedWorld("ab", source=source, relays=False, adapter={"feed.heartbeat_s": 0.5})
        stage.place.watch(world.server.data)
        with world:
            return asyncio.run(_run(stage, world))


async def _run(stage: Stage, world: FeedWorld) -> Findings:
    book, events, marks = Book(), list[Event](), list[Mark]()
    victim = await world.active()
    async with (
        fairlead.connect(world.url, name="tour") as connection,
        connection.stream(world.stream, start="oldest", events=True) as stream,
    ):
        began_s = time.monotonic()
        book.begin(began_s)
        sending = asyncio.create_task(asyncio.to_thread(world.source.send, MESSAGES, RATE))
        until_s = began_s + PATIENCE_S
        while not book.has_all(MESSAGES) and time.monotonic() < until_s:
            try:
                items = await stream.batch(timeout=0.2)
            except fairlead.RequestTimeout:
                continue
            now_s = time.monotonic()
            for item in items:
                if isinstance(item, Event):
                    events.append(item)
                elif item.admin is None:
                    book.enter(item.record()["number"] - 1, now_s)
            stage.say(f"{book.received:,} of {MESSAGES:,} messages")
            if not marks and book.received >= AFTER * MESSAGES:
                marks.append(Mark(now_s - began_s, f"kill -9 of adapter {victim}"))
                world.adapters[victim].kill()
        await sending
        duplicates = stream.counters["duplicates"]
    count = book.count("stream", MESSAGES)
    killed_s = marks[0].at_s if marks else 0.0
    pause = book.pause(killed_s, killed_s + 5.0, "longest silence")
    failovers = [one for one in events if isinstance(one, FailedOver)]
    to = failovers[0].new if failovers else "nobody"
    return Findings(
        said=[
            f"adapter {victim} killed after {killed_s:.1f} s, {to} goes on; longest silence then: "
            f"{spell(pause.length_s)}; repeats recognised and dropped: {duplicates:,}",
            counted(count),
        ],
        counts=[count],
        charts=[
            Chart(title="Messages a second of the stream", curves=[book.curve("received")],
                  marks=marks, pauses=[pause]),
        ],
        checks={"the program went over to the other adapter": len(failovers) == 1 and to != victim},
    )  # fmt: skip
