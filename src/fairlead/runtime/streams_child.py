"""The stream administration as a child of a server: its settings, and its line to the supervisor."""

from __future__ import annotations

import asyncio

from fairlead.broker.edge.secret import server_secret
from fairlead.client.target import parse
from fairlead.feeds.administration import Options
from fairlead.feeds.edge.administration.program import Settings, StreamAdministration
from fairlead.feeds.edge.administration.store import FILE
from fairlead.feeds.source_relations import configured
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Control, Start
from fairlead.runtime.program_child import ProgramChild, rules_of
from fairlead.security import inside


def run(control: Control, start: Start) -> int:
    """Be the stream administration until told to stop."""
    return asyncio.run(StreamsProcess(control, start).run())


class StreamsProcess(ProgramChild):
    """The edge between the stream administration and its supervisor."""

    role = "streams"

    def begin(self) -> StreamAdministration:
        self._administration = StreamAdministration(settings_of(self._start), say=self._control.log)
        return self._administration

    async def close(self) -> None:
        await self._administration.close()


def settings_of(start: Start) -> Settings:
    """What the administration of this server is to be; ConfigError if that cannot work."""
    own = start.urls[0]
    parse(own)
    wanted = start.config.streams
    return Settings(
        own=own,
        user=inside.STREAMS,
        password=inside.password_of(server_secret(start.store), inside.STREAMS),
        file=configuring.data_path(start.config) / FILE,
        options=Options(
            token_life_s=wanted.token_life_s,
            grace_s=wanted.grace_s,
            reports_missed=wanted.reports_missed,
            relations=configured(wanted.relations),
        ),
        rules=rules_of(start),
    )
