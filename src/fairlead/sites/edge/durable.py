"""Carries stored messages between a server and a parent: a durable subscription here, sends with a dedup id there.

The subscription goes on exactly where it was after a cut, and after the death of a bridge or of a server: a message
is acknowledged when the other server has it on stable storage (docs/sites.md).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import fairlead
from fairlead.client.aio.access import Shown
from fairlead.client.aio.delivery import Delivery
from fairlead.client.target import parse
from fairlead.errors import FairleadError
from fairlead.sites.trail import Trail, Way

BATCH_MAX: Final = 256
PAUSE_S: Final = (0.1, 2.0)
LASTED_S: Final = 10.0  # what broke after so long was no mistake of the configuration
FOR_EVER_S: Final = 1e9

Log = Callable[[str, str], None]


class DurableLink:
    """Both directions between two servers, for some patterns of topics."""

    def __init__(
        self, bridge: str, own: str, parent: str, patterns: list[str], log: Log, shown: Shown | None = None
    ) -> None:
        self.carried = 0
        self._bridge = bridge  # its name, which stays the same when the server is started again
        self._urls = own, parent
        self._patterns = patterns
        self._log = log
        self._shown: Shown = shown or {}

    async def run(self) -> None:
        """For ever."""
        shown = self._urls[1].rpartition("@")[2].rpartition("/")[2]
        up, down = Way.both(self._bridge, shown)
        pause_s, told = PAUSE_S[0], ""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            try:
                async with (
                    self._connect(self._urls[0]) as own,
                    self._connect(self._urls[1]) as parent,
                    asyncio.TaskGroup() as group,
                ):
                    for pattern in self._patterns:
                        group.create_task(self._carry(own, parent, pattern, up))
                        group.create_task(self._carry(parent, own, pattern, down))
            except* (FairleadError, OSError) as errors:
                text = str(errors.exceptions[0])
                if text != told:
                    told = text
                    self._log("warning", f"durable topics are not carried to and from {shown} for now: {text}")
            pause_s = PAUSE_S[0] if loop.time() - begun_s > LASTED_S else min(2 * pause_s, PAUSE_S[1])
            await asyncio.sleep(pause_s * (0.5 + random.random()))

    def _connect(self, url: str) -> fairlead.Connection:
        shown: Shown = self._shown if parse(url).tls else {}
        return fairlead.connect(
            url,
            type="fairlead.durable-link",
            name=self._bridge,
            reconnect_limit_s=FOR_EVER_S,
            connect_timeout_s=5,
            **shown,
        )

    async def _carry(self, here: fairlead.Connection, there: fairlead.Connection, pattern: str, way: Way) -> None:
        topic = here.topic(pattern, create=not any(wild in pattern for wild in "*>?:"))
        async with topic.subscribe(way.subscription(pattern), ack="individual", start="new") as consumer:
            while True:
                batch = await consumer.take_batch(BATCH_MAX)
                if not batch:
                    return
                # What a pattern got is known by the line it came by: its topic is asked for before that can be lost.
                await asyncio.gather(*(self._send(there, message, message.destination, way) for message in batch))
                for message in batch:
                    message.ack()

    async def _send(self, there: fairlead.Connection, message: Delivery, topic: str, way: Way) -> None:
        trail = Trail.of(message.id, message.properties)
        if not trail.may_go(way):
            return
        body = await message.read() if message.is_large else message.body
        await there.topic(topic).send(
            message.text() if message.body_kind == "text" else body if message.body_kind == "bytes" else message.data(),
            key=message.key,
            priority=message.priority,
            properties=trail.properties(message.properties, way),
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            type=message.type,
            dedup=trail.id,
            persistent=message.persistent,
        )
        self.carried += 1
