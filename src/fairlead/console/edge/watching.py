"""The console's own look at the server: a status report each second, what it says since the last one, and the history.

Everybody who looks at the console is told what is found here, so a hundred pages cost the server no more than one. The
long lists (destinations, connections) are asked for only while somebody looks, and for the history now and then.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.console import history, series, views
from fairlead.console.counting import counters_of
from fairlead.console.destinations import Ledger, page
from fairlead.console.edge.asking import Supervisor
from fairlead.console.live import Hub, Listener
from fairlead.console.rates import Rates
from fairlead.console.shapes_messages import Destination
from fairlead.console.shapes_server import Latency, Overview
from fairlead.console.shapes_time import Sample
from fairlead.console.users_views import connections
from fairlead.errors import FairleadError
from fairlead.security.rules import LOG

FRESH_S: Final = 0.9
LISTS_S: Final = 2.0  # between two looks at the long lists while somebody looks on
DEPTHS_S: Final = 10.0  # and while nobody does
DESTINATIONS_MAX: Final = 10_000
PAGE: Final = 1000
LIVE_DESTINATIONS: Final = 500
LIVE_CONNECTIONS: Final = 200
Wake = Callable[[Iterable[Listener]], None]


class Watcher:
    """What is known of the server just now."""

    def __init__(
        self,
        supervisor: Supervisor,
        hub: Hub,
        wake: Wake,
        *,
        file: Path,
        managers: int,
        arena_bytes: int,
        history_s: float,
        destinations: int,
        node: str,
        latency: Callable[[], Latency | None],
        on_logs: Callable[[list[str]], None],
    ) -> None:
        self._on_logs = on_logs
        self._supervisor, self._hub, self._wake = supervisor, hub, wake
        self._arena_bytes, self.node, self._latency = arena_bytes, node, latency
        self._most = destinations
        self._rates = Rates()
        self._ledger = Ledger()
        self._report: dict[str, Any] = {}
        self._overview: Overview | None = None
        self._rows: list[Destination] = []
        self._complete = True
        self._looked_s = self._sampled_s = self._listed_s = -1e9
        self._updates_seen: int | None = None
        self._looking = asyncio.Lock()
        self._listing = asyncio.Lock()
        columns = series.columns_for(managers, destinations)
        rows = int(history_s * 1000 // history.COARSE_MS)
        self._map = mapped(file, history.size_of(columns, rows))
        self.history = history.History(memoryview(self._map), columns=columns, coarse_rows=rows, joined=series.joined)

    async def run(self) -> None:
        """Until cancelled: once each second."""
        while True:
            try:
                await self._turn()
            except FairleadError:
                pass  # the supervisor is being replaced, or busy: the next second has a gap in the history
            await asyncio.sleep(1.0 - time.time() % 1.0)

    async def _turn(self) -> None:
        wanted = self._hub.wanted
        await self.report(fresh_s=0.0, brief=not wanted & {"overview", "connections"})
        if "overview" in wanted:
            self._tell("overview", await self.overview())
        lists_s = LISTS_S if "destinations" in wanted else DEPTHS_S
        if time.monotonic() - self._listed_s >= lists_s - 0.1 and (self._most or "destinations" in wanted):
            with suppress(FairleadError):
                rows = await self.destinations(fresh_s=0.0)
                if "destinations" in wanted:
                    busiest = page(rows, sort="rate_in", limit=LIVE_DESTINATIONS, complete=self._complete)
                    self._tell("destinations", busiest)
        if "connections" in wanted:
            self._tell("connections", connections(self._report, limit=LIVE_CONNECTIONS, now_ms=now_ms()))
        self._remember()

    def _remember(self) -> None:
        known = len(self._report["updates"])
        before = known if self._updates_seen is None else min(self._updates_seen, known)
        pauses = [one["pause_ms"] for one in self._report["updates"][before:]]
        self._updates_seen = known
        values = series.values_of(
            self._report, self._rates, arena_bytes=self._arena_bytes, latency=self._latency(), pauses_ms=pauses
        )
        values |= series.of_destinations(self._rows, self._most)
        ms = now_ms()
        self.history.put(ms, values)
        if "history" in self._hub.wanted:
            known_now = {name: round(value, 6) for name, value in values.items() if value is not None}
            self._tell("history", Sample(ms=ms, values=known_now))

    def _tell(self, topic: str, what: msgspec.Struct) -> None:
        self._wake(self._hub.tell(topic, msgspec.json.encode(what)))

    async def report(self, *, fresh_s: float = FRESH_S, brief: bool = False) -> dict[str, Any]:
        """The status report; `brief` has no long lists."""
        async with self._looking:
            is_enough = brief or self._report.get("attachments") is not None
            if time.monotonic() - self._looked_s > fresh_s or not is_enough:
                found = await self._supervisor.status(brief=brief)
                if brief:
                    kept = ("attachments", "subscriptions", "registrations", "requests_open")
                    found |= {key: self._report.get(key) for key in kept if key != "attachments"}
                self._report, self._overview = found, None
                now_s = self._looked_s = time.monotonic()
                if now_s - self._sampled_s > FRESH_S / 2:  # rates over shorter times would only be noise
                    self._rates.sample(now_s, counters_of(found))
                    self._sampled_s = now_s
            return self._report

    async def overview(self, *, fresh_s: float = FRESH_S) -> Overview:
        report = await self.report(fresh_s=fresh_s)
        if self._overview is None:
            self._overview = views.overview(
                report,
                self._rates,
                now_ms(),
                arena_bytes=self._arena_bytes,
                node=self.node,
                latency=self._latency(),
            )
        return self._overview

    async def destinations(self, *, fresh_s: float = FRESH_S) -> list[Destination]:
        """All destinations, as many as are looked at."""
        async with self._listing:
            if time.monotonic() - self._listed_s > fresh_s:
                facts, complete = await self._all_destinations()
                self._rows, self._complete = self._ledger.rows(facts, time.monotonic(), now_ms()), complete
                self._listed_s = time.monotonic()
                self._on_logs([one.name for one in self._rows if one.name.startswith(f"{LOG}.")])
            return self._rows

    def changed(self) -> None:
        """Somebody changed something through us, and wants to see it."""
        self._looked_s = self._listed_s = -1e9

    @property
    def complete(self) -> bool:
        """Were all destinations looked at?"""
        return self._complete

    async def _all_destinations(self) -> tuple[list[dict[str, Any]], bool]:
        found: dict[str, dict[str, Any]] = {}
        number: int | None = 0
        complete = True
        while number is not None and len(found) < DESTINATIONS_MAX:
            answer = await self._supervisor.administer("destinations", page=number, count=PAGE)
            found |= {one["name"]: one for one in answer["destinations"]}
            complete = complete and not answer.get("incomplete")
            number = answer.get("next")
        return list(found.values()), complete and number is None

    def close(self) -> None:
        self.history.release()
        self._map.close()


def mapped(file: Path, size: int) -> mmap.mmap:
    """The file of the history in memory; made, or made as long as it has to be, for its owner only."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_size != size:
            os.ftruncate(fd, 0)
            os.posix_fallocate(fd, 0, size)  # a full disk is found out now, and not by a signal later
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
