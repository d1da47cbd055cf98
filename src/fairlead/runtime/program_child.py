"""A child that is an ordinary client of its own server: it runs a program, tells of it, and obeys the supervisor."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

from fairlead.errors import FairleadError
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Command, Control, Start
from fairlead.security import users
from fairlead.security.rules import Rules

__all__ = ["ProgramChild", "rules_of"]

REPORT_S: Final = 0.2
CLOSE_S: Final = 4.0


class Program(Protocol):
    """What such a child runs; `facts` are for `fairlead status`."""

    async def run(self) -> None: ...
    def facts(self) -> dict[str, Any]: ...
    def reload(self, rules: Rules, /) -> None: ...


class ProgramChild(ABC):
    """`role` is its name among the processes, and the word under which it reports."""

    role: str

    def __init__(self, control: Control, start: Start) -> None:
        self._control, self._start = control, start
        self._stopped = asyncio.Event()
        self._watched = -1
        self._told: dict[str, Any] = {}

    @abstractmethod
    def begin(self) -> Program:
        """Make the program; the loop runs already."""

    @abstractmethod
    async def close(self) -> None:
        """End the program in order."""

    def outcome(self, work: asyncio.Task[None]) -> int:
        """The program has ended by itself."""
        raise work.exception() or RuntimeError(f"the program of {self.role} ended")

    def obey(self, command: Command) -> None:  # noqa: B027 - most have nothing to add
        """A command beside `stop` and `reload`, or more to be done at one of these."""

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._program = self.begin()
        self._watch_control()
        self._control.send("ready")
        work = self._loop.create_task(self._program.run())
        report = self._loop.create_task(self._report())
        stopped = self._loop.create_task(self._stopped.wait())
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
            return self.outcome(work) if work.done() else 0
        finally:
            for task in (work, report, stopped):
                task.cancel()
            await asyncio.gather(work, report, stopped, return_exceptions=True)
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self.close()
            except (TimeoutError, FairleadError, OSError) as error:
                self._control.log("info", f"did not end in order: {error}")

    async def _report(self) -> None:
        while True:
            facts = self._program.facts()
            if facts != self._told:
                self._told = facts
                self._control.send(self.role, **{self.role: facts})
            if self._control.lost and self._control.tick(self._loop.time()):
                self._watch_control()
                self._told = {}
            await asyncio.sleep(REPORT_S)

    def _watch_control(self) -> None:
        self._watched = self._control.fileno()
        if self._watched >= 0:
            self._loop.add_reader(self._watched, self._obey)

    def _obey(self) -> None:
        fd = self._watched
        for command in self._control.receive():
            self.obey(command)
            if command.name == "stop":
                self._stopped.set()
            elif command.name == "reload":
                self._reload()
        if self._control.lost:
            self._loop.remove_reader(fd)

    def _reload(self) -> None:
        try:
            self._program.reload(rules_of(self._start))
        except FairleadError as error:
            self._control.log("error", f"The users file was not read again: {error}")


def rules_of(start: Start) -> Rules:
    """What the users file says now; everything is open where there is none."""
    path = configuring.users_path(start.config)
    return Rules.open() if path is None else users.read(path).rules()
