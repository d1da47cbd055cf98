"""A stream with its administration and adapters as real processes, for tests: started, hurt, looked at, stopped.

    with FeedWorld("ab") as world:
        world.source.send(1000)
        ...  # fairlead.connect(world.url) and connection.stream(world.stream)

Between everybody there are relays (`world.lines["a"]`: to adapter a, for programs and for the other adapters;
`world.desks["a"]`: from adapter a to the administration; `world.desk`: from programs to it), unless `relays=False`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import fairlead
from fairlead.errors import FairleadError
from fairlead.runtime.local_cluster import free_ports
from fairlead.testing.feed_adapter import FeedAdapter
from fairlead.testing.feed_paths import Path as Way
from fairlead.testing.feed_paths import Paths
from fairlead.testing.server import Server

if TYPE_CHECKING:
    from fairlead.testing.feed_numbers import NumberedSource, NumberedSourceProcess

PATIENCE_S = 40.0
CONVERTER = "fairlead.testing.feed_numbers:scripted"
SOURCE = "exchange"


class FeedWorld:
    """Adapters by name, in order of preference; the first one is started first and is active.

    `settings` are those of the administration's server, `adapter` those of every adapter ("feed.heartbeat_s": 0.1),
    `own` those of single ones by name. `login` is how adapters and the world itself come to the administration where
    there are users. `source` replaces the scripted source, `tables` what an adapter (by name) reads from it; not
    `aligned`: they read such different sources that their numbers cannot agree.
    """

    def __init__(
        self,
        adapters: Iterable[str] = "ab",
        *,
        stream: str = "prices",
        settings: Mapping[str, Any] | None = None,
        adapter: Mapping[str, Any] | None = None,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        login: tuple[str, str] | None = None,
        source: NumberedSource | NumberedSourceProcess | None = None,
        tables: Callable[[str], list[dict[str, Any]]] | None = None,
        relays: bool = True,
        aligned: bool = True,
    ) -> None:
        self.names = list(adapters)
        self.stream = stream
        self._login: dict[str, Any] = dict(zip(("user", "password"), login or (), strict=False))
        self._stack = ExitStack()
        self._temporary = tempfile.TemporaryDirectory(prefix="fairlead-feeds-")
        self.home = Path(self._temporary.name)
        self._relays, self._aligned = relays, aligned
        ports = free_ports(1 + len(self.names))
        self._authority = f"127.0.0.1:{ports[0]}"
        lean = {"messages.enabled": "false", **(settings or {})}  # nobody needs its queues here
        self.server = Server(command=("streams", "serve"), managers=1, listen=self._authority, **lean)
        self._ports = dict(zip(self.names, ports[1:], strict=True))
        self._common, self._own = dict(adapter or {}), {name: dict((own or {}).get(name, {})) for name in self.names}
        self._given_source, self._tables = source, tables
        self.source: Any  # NumberedSource or NumberedSourceProcess
        self.desk: Way | None = None
        self.adapters: dict[str, FeedAdapter] = {}
        self.lines: dict[str, Way] = {}
        self.desks: dict[str, Way] = {}

    # -- life

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.close()
        finally:
            self._temporary.cleanup()

    def start(self) -> Self:
        """Returns when the first adapter is active and the others are synchronised."""
        self.source = self._given_source or self._stack.enter_context(_scripted_source())
        paths = self._stack.enter_context(Paths()) if self._relays else None
        authority = self._authority
        self.desk = paths.open(authority, framed=False) if paths else None
        for name in self.names:
            address = f"127.0.0.1:{self._ports[name]}"
            if paths:
                self.lines[name], self.desks[name] = paths.open(address), paths.open(authority, framed=False)
            self.adapters[name] = FeedAdapter(name, self.home / name, self._settings_of(name))
            self._stack.callback(self.adapters[name].stop)
        first, *others = self.names
        for name in others if paths else ():
            self.desks[name].cut()  # they are started at the same time, and wait for the first one to be active
        with ThreadPoolExecutor(1 + len(self.names)) as pool:
            work: list[Callable[[], object]] = [lambda: self._stack.enter_context(self.server)]
            work += [self.adapters[name].start for name in (self.names if paths else [first])]
            started = [pool.submit(one) for one in work]
        for one in started:
            one.result()
        asyncio.run(self.until(self.active, f"{first} is active"))
        for name in others:
            if paths:
                self.desks[name].heal()
            else:
                self.adapters[name].start()
        asyncio.run(self.until_ready())
        return self

    def _settings_of(self, name: str) -> dict[str, Any]:
        desk = self.desks[name].address if self._relays else self._authority
        settings: dict[str, Any] = {
            "feed": {"stream": self.stream, "name": name, "preference": 10 * (1 + self.names.index(name))},
            "administration": {"url": f"fairlead://{desk}", **self._login},
            "listen": {"address": f"127.0.0.1:{self._ports[name]}"},
            "source": self._tables(name) if self._tables else [_table(self.source, name)],
            "convert": {"converter": CONVERTER},
        }
        if self._relays:
            settings["listen"]["advertise"] = self.lines[name].address
        for key, value in (self._common | self._own[name]).items():
            section, _, option = key.partition(".")
            settings.setdefault(section, {})[option] = value
        return settings

    @property
    def url(self) -> str:
        """Where programs find the stream by its name."""
        return f"fairlead://{self.desk.address}" if self.desk is not None else self.server.url

    # -- looking at it

    async def facts(self) -> dict[str, Any]:
        """What the administration says of the stream; empty while it has none."""
        async with fairlead.connect(self.server.url, name="looking", **self._login) as connection:
            return next((one for one in await connection.list_streams() if one["name"] == self.stream), {})

    async def adapter_facts(self, name: str) -> dict[str, Any]:
        return next((one for one in (await self.facts()).get("adapters", ()) if one["name"] == name), {})

    async def active(self) -> str:
        return str((await self.facts()).get("active", ""))

    async def epoch(self) -> int:
        return int((await self.facts()).get("epoch", 0))

    async def until_ready(self, *names: str) -> None:
        """Until somebody is active, and all others that run (or these) are synchronised backups."""

        async def ready() -> bool:
            facts = await self.facts()
            wanted = set(names or [name for name, adapter in self.adapters.items() if adapter.runs])
            fine = {
                one["name"]
                for one in facts.get("adapters", ())
                if one["name"] == facts["active"] or (one["alive"] and (one["synchronised"] or not self._aligned))
            }
            return bool(facts.get("active")) and wanted <= fine

        await self.until(ready, f"ready: {', '.join(names) or 'all'}")

    async def until(self, condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
        """Look again and again, at something that may have to be awaited; what it was in the end."""
        deadline_s, last = time.monotonic() + timeout_s, ""
        while True:
            try:
                found = condition()
                found = await found if asyncio.iscoroutine(found) else found
                if found:
                    return found
            except FairleadError as error:
                last = f"; the last error was: {error}"
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not in {timeout_s:g} s: {what}{last}\n{self.outputs()}")
            await asyncio.sleep(0.02)

    def outputs(self) -> str:
        """The end of what everybody has printed."""
        told = [f"--- {name}\n{adapter.output()}" for name, adapter in self.adapters.items()]
        return "\n".join([*told, f"--- administration\n{self.server.output()}"])

    # -- hurting it

    def heal(self) -> None:
        """All relays as they were, nobody frozen."""
        for way in (*self.lines.values(), *self.desks.values(), *([self.desk] if self.desk else [])):
            way.heal()
        for adapter in self.adapters.values():
            adapter.thaw()

    async def restore(self) -> None:
        """As after `start`: healed, everybody runs and is synchronised; the source rests."""
        self.source.pause()
        self.source.heal()
        self.heal()
        if not self.server.process:
            self.server.start()
        for adapter in self.adapters.values():
            if adapter.runs:
                adapter.fault("clear")
                adapter.fault("link", up=True)
        dead = [adapter for adapter in self.adapters.values() if not adapter.runs]
        await asyncio.gather(*(asyncio.to_thread(adapter.start) for adapter in dead))
        await self.until_ready()
        await self.until(self._is_told, "the administration knows how far the active adapter is")

    async def _is_told(self) -> bool:
        """Somebody who subscribes now and wants what is new starts with the next message of the source."""
        positions = (await self.adapter_facts(await self.active())).get("positions", {})
        return not positions or any(place[0] >= self.source.sent for place in positions.values())

    def restart_administration(self) -> None:
        """Killed with all its processes, and started again on the same port and data."""
        self.server.kill_everything()
        self.server.start()


def _table(source: NumberedSource | NumberedSourceProcess, name: str) -> dict[str, Any]:
    return source.add(name).table(id=SOURCE)


def _scripted_source() -> NumberedSource:
    """Loaded only here: it needs the extra `feeds`."""
    from fairlead.testing.feed_numbers import NumberedSource

    return NumberedSource()
