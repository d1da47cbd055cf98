"""The console as a client of its own server: it follows the log, measures round trips, and sends what people send.

It logs in as `_console`, a user that no users file has, whose rights are in `security/rules.py`.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fairlead.client.aio import Connection
from fairlead.console.problems import Denied
from fairlead.console.shapes_messages import NewMessage, Sent
from fairlead.console.shapes_server import Latency
from fairlead.errors import BadParameter, FairleadError, RequestTimeout
from fairlead.security.rules import LOG

PROBES_KEPT: Final = 240
PROBE_WINDOW_S: Final = 60.0
PROBE_PATIENCE_S: Final = 5.0
SEND_S: Final = 15.0
AGAIN_S: Final = 2.0
PREFETCH: Final = 200

OnEvent = Callable[[dict[str, Any]], None]


class OwnClient:
    def __init__(self, url: str, *, user: str, password: str, probe_s: float, on_event: OnEvent) -> None:
        self._connection = Connection(url, name="console", user=user, password=password, reconnect_limit_s=1e9)
        self._probe_s, self._on_event = probe_s, on_event
        self._trips: deque[tuple[float, float]] = deque(maxlen=PROBES_KEPT)  # when, milliseconds
        self._open = asyncio.Event()
        self._logs = [LOG]
        self._group: asyncio.TaskGroup | None = None

    def follow(self, logs: list[str]) -> None:
        """The event logs there are; in a cluster every group has one."""
        for name in logs:
            if name not in self._logs:
                self._logs.append(name)
                if self._group is not None:
                    self._group.create_task(self._follow(name))

    @property
    def connection(self) -> Connection:
        """An open connection; Denied while there is none."""
        if not self._open.is_set():
            raise Denied(
                503, "The console has no connection to its server at the moment; try again.", code="unavailable"
            )
        return self._connection

    def latency(self) -> Latency | None:
        """Of the last minute; None if nothing came through."""
        since_s = time.monotonic() - PROBE_WINDOW_S
        trips = sorted(trip_ms for at_s, trip_ms in self._trips if at_s >= since_s)
        if not trips:
            return None
        return Latency(p50_ms=_at(trips, 0.5), p99_ms=_at(trips, 0.99), probes=len(trips))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._connection
                break
            except (FairleadError, OSError):
                await asyncio.sleep(AGAIN_S)
        self._open.set()
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name in self._logs:
                group.create_task(self._follow(name))
            if self._probe_s > 0:
                group.create_task(self._probe())

    async def close(self) -> None:
        if self._open.is_set():
            self._open.clear()
            await self._connection.close()

    async def _follow(self, name: str) -> None:
        """An event log, as it grows; where there is no message manager, later."""
        while True:
            try:
                async with self._connection.topic(name, create=False).subscribe(
                    prefetch=PREFETCH, ack="auto"
                ) as events:
                    async for message in events:
                        self._tell(message.body)
            except FairleadError:
                pass
            await asyncio.sleep(AGAIN_S)

    def _tell(self, body: bytes) -> None:
        try:
            record = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            return
        self._on_event(record)

    async def _probe(self) -> None:
        """A tiny message to ourselves now and then, through manager and router."""
        topic = f"_CONSOLE.probe.{secrets.token_hex(8)}"
        while True:
            try:
                async with self._connection.subscribe(topic) as echoes:
                    await self._measure(topic, echoes)
            except FairleadError:
                pass
            await asyncio.sleep(AGAIN_S)

    async def _measure(self, topic: str, echoes: Any) -> None:
        number = 0
        while True:
            number += 1
            wanted = b"%d" % number
            sent_s = time.perf_counter()
            await self._connection.publish(topic, wanted)
            try:
                while (await echoes.next(PROBE_PATIENCE_S)).body != wanted:
                    pass  # an answer that came after its time
            except RequestTimeout:
                continue
            self._trips.append((time.monotonic(), (time.perf_counter() - sent_s) * 1000))
            await asyncio.sleep(self._probe_s)

    async def send(self, kind: str, name: str, wanted: NewMessage) -> Sent:
        """Messages to a destination; what is answered is on stable storage."""
        body = wanted.body.encode() if wanted.encoding == "text" else _binary(wanted.body)
        connection = self.connection
        make = connection.queue if kind == "queue" else connection.topic
        destination = make(name, create=False)
        ids = []
        for _ in range(wanted.count):
            receipt = await destination.send(
                body,
                key=wanted.key or None,
                priority=4 if wanted.priority is None else wanted.priority,
                ttl=None if wanted.ttl_ms is None else wanted.ttl_ms / 1000,
                delay=wanted.delay_ms / 1000 if wanted.delay_ms else None,
                properties=wanted.properties or None,
                timeout=SEND_S,
                on_blocked="raise",
            )
            ids.append(str(receipt.id))
        return Sent(messages=len(ids), ids=ids)


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadParameter("The body is not base64.") from None


def _at(trips: list[float], share: float) -> float:
    return round(trips[min(len(trips) - 1, int(share * len(trips)))], 3)
