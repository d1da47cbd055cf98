"""What a step of the tour is given: a place to work, a line to say how far it is, and the server all of them share."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from fairlead.demo.edge.workplace import Workplace
from fairlead.testing import Server

__all__ = ["PATIENCE_S", "Skipped", "Stage"]

PATIENCE_S: Final = 60.0
"""How long anything may take on a busy machine before the tour gives up on it."""


class Skipped(Exception):
    """The step cannot be done here; the text says what is missing and how to get it."""


class Stage:
    """Made once for the whole tour. What a step enters on `stack` ends with the tour."""

    def __init__(self, place: Workplace, stack: ExitStack, say: Callable[[str], None]) -> None:
        self.place = place
        self.stack = stack
        self.say = say
        self.ready_s = 0.0
        self._server: Server | None = None

    def server(self) -> Server:
        """The server of the tour, started by whoever needs it first."""
        if self._server is None:
            self.say("the server starts")
            began_s = time.monotonic()
            server = Server(managers=2, data=self.place.data("server"))
            self.stack.callback(server.stop)
            server.start()
            self.ready_s = time.monotonic() - began_s
            self._server = server
        return self._server
