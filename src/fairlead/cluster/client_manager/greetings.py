"""What managers of this node are told of names: all of them when they say hello, then every change.

After a start managers wait for their answer until every group has told its names, or a moment has passed: with half of
the names, publishes to the other half would miss their topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fairlead.cluster.client_manager import envelopes
from fairlead.cluster.client_manager.announcing import Announcing
from fairlead.cluster.client_manager.directory import Change
from fairlead.cluster.client_manager.managers import ManagerLink
from fairlead.cluster.naming import NAMES_PER_FRAME, WELL_KNOWN, fixed_id

if TYPE_CHECKING:
    from fairlead.cluster.client_manager.agent import Agent

NAMES_S: Final = 1.0
HELLO: Final = 1  # the number a hello has if it says none


class Greetings:
    """Of one agent."""

    def __init__(self, agent: Agent, now_s: float) -> None:
        self._agent = agent
        self._until_s = now_s + NAMES_S
        self._announcing = Announcing()

    def on_hello(self, link: ManagerLink, number: int) -> None:
        link.greeting = number or HELLO
        self.greet()

    def on_announced(self, link: ManagerLink, number: int) -> None:
        self._announcing.acknowledged(link.slot, number)

    def on_lost(self, link: ManagerLink) -> None:
        self._announcing.lost(link.slot)

    def greet(self) -> None:
        """Answer managers with all names, once those are here that can be: else publishes would miss their topics."""
        if self._agent.now_s < self._until_s and not self._agent.directory.is_complete:
            return
        for link in self._agent.managers.values():
            if link.greeting:
                self._greet_one(link)

    def _greet_one(self, link: ManagerLink) -> None:
        number, link.greeting = link.greeting, 0
        link.is_known = True
        names = [[name, entry.kind, entry.id] for name, entry in self._agent.directory.names.items()]
        known = self._agent.directory.names
        names += [[name, kind, fixed_id(id_).hex()] for name, (id_, kind) in WELL_KNOWN.items() if name not in known]
        first = {"names": names[:NAMES_PER_FRAME], "count": len(names), "group": "", "epoch": 0}
        link.give(envelopes.answer(0, 0, number, first))
        for at in range(NAMES_PER_FRAME, len(names), NAMES_PER_FRAME):
            more = {"do": "announce", "add": names[at : at + NAMES_PER_FRAME], "remove": [], "number": 0}
            link.give(envelopes.command(0, 0, 0, more))

    def announce(self, change: Change, then: Callable[[], None]) -> None:
        """Tell it to every manager; `then` is called when all of them know."""
        add = [[name, entry.kind, entry.id] for name, entry in change.add.items()]
        remove = [name for name in change.remove if name not in WELL_KNOWN]
        listening = [link for link in self._agent.managers.values() if link.is_known]
        if not add and not remove:
            then()
            return
        for at in range(0, max(len(add), len(remove)), NAMES_PER_FRAME):
            is_last = at + NAMES_PER_FRAME >= max(len(add), len(remove))
            number = self._announcing.begin(
                {link.slot for link in listening} if is_last else set(), then if is_last else lambda: None
            )
            part = {"add": add[at : at + NAMES_PER_FRAME], "remove": remove[at : at + NAMES_PER_FRAME]}
            for link in listening:
                link.give(envelopes.command(0, 0, 0, {"do": "announce", **part, "number": number}))
