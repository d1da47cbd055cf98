"""What each operation does, third part: tunnels, feeds, directory, pipelines. Where there is none, a note says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.console.edge.handlers import Handlers
from fairlead.console.edge.request import Request
from fairlead.console.shapes_users import (
    Adapter,
    Cursor,
    Directory,
    Feed,
    Feeds,
    Job,
    Pipelines,
    Sink,
    Stage,
    Tunnels,
)
from fairlead.errors import FairleadError
from fairlead.runtime.rundir import short_path
from fairlead.runtime.tunnelling import STATUS_NAME

PATIENCE_S: Final = 5.0
STATUS_BYTES_MAX: Final = 32 << 20
TUNNELS_MAX: Final = 1000
APPLICATIONS_MAX: Final = 1000
JOBS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class DirectoryAccess:
    """Where the directory of this server is, and as whom it is asked."""

    url: str
    user: str
    password: str


class AroundHandlers(Handlers):
    """The operations about what stands around the server."""

    run_dir: Path
    directory_access: DirectoryAccess | None = None

    async def tunnels(self, asked: Request) -> Tunnels:
        tunnel = (await self.watcher.report(brief=True))["tunnel"]
        note, found = "", dict[str, Any]()
        if tunnel["broker"]["state"] == "active":
            try:
                found = await self._tunnel_status()
            except (OSError, TimeoutError, msgspec.DecodeError) as error:
                note = f"The broker of tunnels does not say how they are: {error}."
        else:
            note = "Nobody has come through HTTP yet." if tunnel["enabled"] else "HTTP is switched off ([tunnel])."
        links = found.get("links", [])
        return Tunnels(
            enabled=bool(tunnel["enabled"]),
            gateway=tunnel["gateway"],
            broker=tunnel["broker"],
            passed_on=tunnel["passed_on"],
            turned_away=tunnel["turned_away"],
            tunnels=[one for link in links for one in link.get("tunnels", [])][:TUNNELS_MAX],
            links=[{key: value for key, value in link.items() if key != "tunnels"} for link in links],
            note=note,
        )

    async def _tunnel_status(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            with short_path(self.run_dir / STATUS_NAME) as path:
                reader, writer = await asyncio.open_unix_connection(path)
            try:
                raw = await reader.read(-1)
            finally:
                writer.close()
        return msgspec.json.decode(raw, type=dict[str, Any])

    async def feeds(self, asked: Request) -> Feeds:
        streams = (await self.watcher.report(brief=True))["streams"]
        if streams["state"] != "active":
            state = streams["state"]
            note = "This server is no stream administration ([streams] serve)." if state == "switched off" else state
            return Feeds(serving=False, feeds=[], note=str(note))
        from fairlead.feeds.edge.administration.operator import Operator
        from fairlead.feeds.words import Order

        async with Operator(self.client.connection) as operator:
            found = await operator.order(Order(do="status"), PATIENCE_S)
        return Feeds(serving=True, feeds=[_feed(one) for one in found], note="")

    async def directory(self, asked: Request) -> Directory:
        report = await self.watcher.report(brief=True)
        broker = dict(report["registrar"])
        if self.directory_access is None:
            note = "This server neither keeps a directory nor is a broker of one ([directory])."
            return _no_directory(broker, note, serving=False)
        from fairlead.directory import open_directory

        access = self.directory_access
        try:
            async with open_directory(
                access.url, user=access.user or None, password=access.password or None, deadline_s=PATIENCE_S
            ) as directory:
                brokers = await directory.list_brokers()
                clusters = await directory.list_clusters()
                apps = await directory.list_apps()
        except (FairleadError, OSError) as error:
            return _no_directory(broker, f"{error}", serving=True)
        return Directory(
            serving=True,
            broker=broker,
            brokers=[plain(one) for one in brokers.brokers],
            clusters=[plain(one) for one in clusters.clusters],
            applications=[plain(one) for one in apps.apps[:APPLICATIONS_MAX]],
            revision=brokers.revision,
            stale=brokers.stale,
            note="",
        )

    async def pipelines(self, asked: Request) -> Pipelines:
        jobs = await asyncio.to_thread(_jobs)
        cursors = _joined(await self.supervisor.administer("cursors"), "cursors")
        sinks = _joined(await self.supervisor.administer("sinks"), "sinks")
        stages = _joined(await self.supervisor.administer("stages"), "stages")
        return Pipelines(
            cursors=[_cursor(one) for one in cursors],
            sinks=[Sink(**one) for one in sinks],
            stages=[Stage(**one) for one in stages],
            jobs=[_job(one) for one in jobs],
            complete=True,
        )


def _jobs() -> list[dict[str, Any]]:
    from fairlead.pipeline import registry  # only when asked for: much comes with it

    return list(registry.entries(registry.state_directory()))[:JOBS_MAX]


def _joined(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Of a single server, or of all groups of a cluster."""
    if "groups" in answer:
        return [one for said in answer["groups"].values() for one in said.get(key, [])]
    found: list[dict[str, Any]] = answer.get(key, [])
    return found


def _no_directory(broker: dict[str, Any], note: str, *, serving: bool) -> Directory:
    return Directory(
        serving=serving,
        broker=broker,
        brokers=[],
        clusters=[],
        applications=[],
        revision=None,
        stale=False,
        note=note,
    )


def _feed(one: dict[str, Any]) -> Feed:
    return Feed(
        name=one["name"],
        epoch=one["epoch"],
        active=one["active"],
        switching_to=one["switching_to"],
        settling=one["settling"],
        failovers=one["failovers"],
        switches=one["switches"],
        gaps=one["gaps"],
        adapters=[
            Adapter(
                **{name: row[name] for name in Adapter.__struct_fields__},
            )
            for row in one["adapters"]
        ],
        clients=one["clients"],
        clients_total=one["clients_total"],
        decisions=one["decisions"],
    )


def _cursor(one: dict[str, Any]) -> Cursor:
    return Cursor(
        destination=one["destination"],
        name=one["name"],
        kind=one["kind"],
        at=one["at"],
        reserved=one["reserved"],
        lag=one["rows"],
        lag_bytes=one["bytes"],
        opened_ms=one["opened_ms"],
        used_ms=one["used_ms"],
    )


def _job(one: dict[str, Any]) -> Job:
    return Job(
        name=str(one["name"]),
        job=str(one.get("job", "")),
        state=str(one.get("state", "")),
        pid=int(one["pid"]),
        began_ms=int(float(one["began"]) * 1000),
        updated_ms=int(float(one.get("updated", 0)) * 1000),
        rows=int(one.get("rows") or 0),
        bytes=int(one.get("bytes") or 0),
        batches=int(one.get("batches") or 0),
        last_batch=one.get("last_batch"),
        rate=float(one.get("rate") or 0.0),
        lag=one.get("lag"),
        destination=str(one.get("destination", "")),
    )


def plain(value: Any) -> Any:
    """Rows with every field in them, also one that has its usual value."""
    match value:
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
    return value
