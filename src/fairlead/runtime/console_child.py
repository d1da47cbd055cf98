"""The console as a child of a server: its settings, and its line to the supervisor, which holds its sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from fairlead.broker.edge.secret import server_secret
from fairlead.console.edge.around_handlers import DirectoryAccess
from fairlead.console.edge.program import Console, Settings
from fairlead.errors import FairleadError
from fairlead.runtime import config as configuring
from fairlead.runtime.config import Config
from fairlead.runtime.control import Control, Start
from fairlead.runtime.plumbing import CONSOLE
from fairlead.runtime.program_child import ProgramChild
from fairlead.security import inside

FOLDER = "console"


def run(control: Control, start: Start) -> int:
    """Be the console until told to stop."""
    return asyncio.run(ConsoleProcess(control, start).run())


class ConsoleProcess(ProgramChild):
    """The edge between a console and its supervisor."""

    role = "console"

    def begin(self) -> Console:
        logging.getLogger("fairlead.console").addHandler(logging.StreamHandler())  # into the server's log
        self._console = Console(settings_of(self._start, self._control), note=self._audit)
        return self._console

    def _audit(self, record: dict[str, Any]) -> None:
        self._control.send("audit", record=record)

    def _reload(self) -> None:
        try:
            self._console.reload(configuring.users_path(self._start.config))
        except FairleadError as error:
            self._control.log("error", f"The users file was not read again: {error}")

    async def close(self) -> None:
        await self._console.close()


def settings_of(start: Start, control: Control) -> Settings:
    """What the console of this server is to be."""
    config, secret = start.config, server_secret(start.store)
    names = sorted(name for name in start.fds if name.startswith(CONSOLE))
    return Settings(
        sockets=[socket.socket(fileno=os.dup(start.fds[name])) for name in names],
        run_dir=control.run_dir,
        folder=configuring.data_path(config) / FOLDER,
        own=start.urls[0],
        user=inside.CONSOLE,
        password=inside.password_of(secret, inside.CONSOLE),
        users_file=configuring.users_path(config),
        wishes=config.console,
        managers=start.managers,
        arena_bytes=config.store.arena_bytes,
        certificate=config.security.tls_certificate,
        key=config.security.tls_key,
        plain_passwords=plain_passwords(config),
        clustered=config.agent,
        directory=directory_of(start),
    )


def plain_passwords(config: Config) -> str:
    """From where passwords are taken without TLS, as managers have it."""
    allowed = config.security.plain_passwords
    return "allow" if config.server.insecure and allowed == "local" else allowed


def directory_of(start: Start) -> DirectoryAccess | None:
    """The directory this server keeps or is a broker of; asked as the console itself where it is at home."""
    settings = start.config.directory
    if settings.serve:
        password = inside.password_of(server_secret(start.store), inside.CONSOLE)
        return DirectoryAccess(start.urls[0], inside.CONSOLE, password)
    if not configuring.is_broker(start.config):
        return None
    from fairlead.runtime.registrar_child import read_password

    return DirectoryAccess(settings.servers, settings.user, read_password(settings.password_file))
