"""The bridge process: one loop over the connections to its own server and to the parents, and the supervisor.

Every end is a client's connection like any other, with keep-alive, credit, reconnects and moves, so an update of
either server does not break a link (SRV-121).
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fairlead.client.aio.access import Access, Shown
from fairlead.client.aio.carrier import Carrier
from fairlead.client.target import parse
from fairlead.errors import ConfigError, FairleadError
from fairlead.runtime.control import Control, Start
from fairlead.runtime.version import VERSION
from fairlead.sites.bridge import Bridge
from fairlead.sites.edge.durable import DurableLink
from fairlead.sites.end import End

TICK_S: Final = 0.2
GATHER_S: Final = 0.01  # changes of interest in this time are told at once
PAUSE_S: Final = (0.1, 1.0)
FOR_EVER_S: Final = 1e9
BACKLOG_MAX: Final = 10_000  # messages that wait for one end before the others are held back


NAME_FILE: Final = "link-name"


def lasting_name(file: Path) -> str:
    """The name of this server's bridge, made once: its durable subscriptions have to be found again."""
    if not file.exists():
        new = file.with_name(f"{file.name}.new")
        new.write_text(secrets.token_hex(8))
        new.rename(file)
    return file.read_text().strip()


def run(control: Control, start: Start) -> int:
    """Be a bridge until told to stop."""
    return asyncio.run(BridgeProcess(control, start).run())


class Backlog:
    """Stands for an end's outbox at the other ends: while too much waits in it, they give no credit."""

    buffer = BACKLOG_MAX

    def __init__(self, end: End) -> None:
        self._end = end

    @property
    def queue(self) -> Sequence[object]:
        return self._end.outbox if self._end.is_live else ()

    def end(self) -> None:
        """The connection is closed; nobody waits here."""


class BridgeProcess:
    """The edge of one bridge."""

    def __init__(self, control: Control, start: Start) -> None:
        settings = start.config.links
        urls = [settings.own or (start.urls[0] if start.urls else ""), *settings.parents]
        for url in urls:
            parse(url)  # ConfigError before anything begins
        if len(set(urls)) != len(urls):
            raise ConfigError("[links] parents names a server twice.")
        self._control = control
        self._bridge = Bridge(
            f"{start.server_id:016x}",
            urls,
            queue_bytes=settings.queue_bytes,
            hold_s=settings.hold_s,
            log=control.log,
        )
        self._shown: Shown = {
            "certificate": settings.tls_certificate or None,
            "key": settings.tls_key or None,
            "ca": settings.tls_ca or None,
        }
        self._carriers: dict[End, Carrier] = {}
        name = lasting_name(Path(start.config.server.data).expanduser() / NAME_FILE) if settings.durable else ""
        self._durable = [
            DurableLink(name, urls[0], url, settings.durable, control.log, self._shown) for url in settings.parents
        ]
        if not settings.durable:
            self._durable = []
        self._refreshing: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._watched = -1
        self._reported: list[dict[str, object]] = []
        self._states: dict[str, str] = {}

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._bridge.changed = self._on_changed
        self._watch_control()
        self._control.send("ready")
        tasks = [self._loop.create_task(self._keep(end)) for end in self._bridge.ends]
        tasks.append(self._loop.create_task(self._tick()))
        tasks += [self._loop.create_task(link.run()) for link in self._durable]
        await self._stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(carrier.close() for carrier in self._carriers.values()), return_exceptions=True)
        return 0

    # -- connections

    async def _keep(self, end: End) -> None:
        """Always try to be attached to this server."""
        pause_s = PAUSE_S[0]
        told = ""
        while True:
            try:
                await self._serve(end)
                pause_s = PAUSE_S[0]
            except (FairleadError, OSError) as error:
                if str(error) != told:
                    told = str(error)
                    self._control.log("warning", f"no connection to {end.url.rpartition('@')[2]}: {error}")
            await asyncio.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(2 * pause_s, PAUSE_S[1])

    async def _serve(self, end: End) -> None:
        target = parse(end.url)
        session = self._bridge.session(end, target.user, target.password, f"fairlead-bridge {VERSION}")
        access = Access(**self._shown) if target.tls else None
        tls = (access.tls or ssl.create_default_context()) if access is not None else None
        carrier = Carrier(session, target, tls, connect_timeout_s=5, reconnect_limit_s=FOR_EVER_S, access=access)
        written = asyncio.Event()
        self._carriers[end] = carrier
        mailboxes: set[Any] = carrier.mailboxes
        mailboxes.update(Backlog(other) for other in self._bridge.ends if other is not end)

        def wake() -> None:
            if not session.is_live:
                return
            carrier.pushed()
            written.set()

        end.wake = wake
        try:
            await carrier.open()
            while carrier.ended is None:
                await self._pump(end, carrier, written)
            raise carrier.ended
        finally:
            if self._carriers.get(end) is carrier:
                del self._carriers[end]
            end.wake = lambda: None
            await carrier.close()

    async def _pump(self, end: End, carrier: Carrier, written: asyncio.Event) -> None:
        """Write what waits for this end, as far as there is room."""
        if carrier.brake:
            await carrier.room()
        outbox: deque[Any] = end.outbox
        if not outbox:
            written.clear()
            await written.wait()
            return
        while outbox and not carrier.brake:
            try:
                end.publish_next()
            except FairleadError as error:
                end.dropped += 1
                self._control.log("warning", f"a message cannot go to {end.url.rpartition('@')[2]}: {error}")
            if carrier.session.out_bytes > 65_536:
                carrier.flush()
        carrier.flush()
        for other in self._carriers.values():
            other.consumed()
        await asyncio.sleep(0)

    # -- time and the supervisor

    def _on_changed(self) -> None:
        if self._refreshing is None:
            self._refreshing = self._loop.call_later(GATHER_S, self._refresh)

    def _refresh(self) -> None:
        self._refreshing = None
        self._bridge.refresh()
        self._report()

    async def _tick(self) -> None:
        while True:
            self._bridge.on_tick(self._loop.time())
            self._report()
            if self._control.lost and self._control.tick(self._loop.time()):
                self._watch_control()
            await asyncio.sleep(TICK_S)

    def _report(self) -> None:
        report = self._bridge.report()
        for entry, durable in zip(report, self._durable, strict=False):
            entry["durable"] = durable.carried
        if report != self._reported:
            self._reported = report
            self._control.send("links", links=report)
        for link in report:
            parent, state = str(link["parent"]), str(link["state"])
            if self._states.get(parent, "down") != state:
                self._control.log("info" if state == "up" else "warning", f"the link to {parent} is {state}")
            self._states[parent] = state

    def _watch_control(self) -> None:
        self._watched = self._control.fileno()
        if self._watched >= 0:
            self._loop.add_reader(self._watched, self._obey)

    def _obey(self) -> None:
        fd = self._watched
        for command in self._control.receive():
            if command.name == "stop":
                self._stopped.set()
        if self._control.lost:
            self._loop.remove_reader(fd)
