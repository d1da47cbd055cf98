"""A node's part in the talk about configuration: the distributor on the bus, its files on the disk.

The loop of an agent, a member node or a witness owns one: it calls `turn` whenever the bus was turned, and
begins its own work when `state` is "checked"; "refused" ends the process with exit code 1 and `reason`.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from typing import Any, Final

from fairlead.bus.port import Bus, View
from fairlead.cluster.configuration.distributor import ConfigNotes, Distributor
from fairlead.cluster.configuration.documents import canonical, settings_digest
from fairlead.cluster.configuration.edge.files import NodeFiles
from fairlead.cluster.configuration.events import Adopt, Checked, Done, Note, Refused
from fairlead.cluster.configuration.messages import decode, encode
from fairlead.cluster.configuration.types import ClusterSettings

PORT: Final = "config"
SOON_S: Final = 0.05  # after something has happened
KINDS: Final = ("cm", "mm", "witness")

Log = Callable[[str, str], None]
"""Level and text."""


class ConfigPart:
    """`settings` are those in force; `on_settings` is called when others came into force."""

    def __init__(
        self,
        bus: Bus,
        files: NodeFiles,
        log: Log,
        now_s: float,
        on_settings: Callable[[ClusterSettings], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.reason = ""
        self._bus = bus
        self._files = files
        self._log = log
        self._now_s = now_s
        self._on_settings = on_settings or (lambda settings: None)
        self._due_s = 0.0
        self._ticket = 0
        self._waiting: dict[int, Callable[[Done], None]] = {}
        node = files.node
        self._machine = Distributor(
            node.name,
            kind=node.kind,
            buses=node.buses,
            essential=files.essential,
            founders=list(files.cluster.voters),
            vote=node.vote,
            settings=files.settings,
            notes=files.read_notes(),
            rng=rng or random.Random(),
            now_s=now_s,
            machine=socket.gethostname(),
        )
        bus.listen(PORT, self._on_message)
        bus.on_view(self._on_view)
        self._on_view(bus.view)

    @property
    def state(self) -> str:
        """ "starting", "checked" or "refused"."""
        return self._machine.state

    @property
    def settings(self) -> ClusterSettings:
        return self._machine.settings

    def turn(self, now_s: float) -> float:
        """When it wants to be called next; called earlier it costs nothing."""
        self._now_s = now_s
        if now_s >= self._due_s:
            self._due_s = self._machine.tick(now_s)
            self._carry_out()
        return self._due_s

    def change(self, changes: dict[str, Any], done: Callable[[Done], None]) -> None:
        """Have settings changed on all nodes; `done` is called when it is decided, or not."""
        self._ticket += 1
        self._waiting[self._ticket] = done
        self._machine.change(self._ticket, changes, self._now_s)
        self._due_s = self._now_s + SOON_S
        self._carry_out()

    def facts(self) -> dict[str, Any]:
        return self._machine.facts()

    def _on_message(self, sender: str, data: memoryview) -> None:
        message = decode(data)
        if message is not None:
            self._machine.on_message(sender, message, self._now_s)
            self._due_s = self._now_s + SOON_S
            self._carry_out()

    def _on_view(self, view: View) -> None:
        names = [peer.name for peer in view.peers.values() if peer.tag.get("kind") in KINDS]
        self._machine.on_view(names, self._now_s)
        self._due_s = self._now_s + SOON_S
        self._carry_out()

    def _carry_out(self) -> None:
        """Files, then notes, then messages: nothing leaves that we could forget."""
        machine = self._machine
        events, machine.events = machine.events, []
        out, machine.out = machine.out, []
        adopted: ClusterSettings | None = None
        for event in events:
            match event:
                case Adopt(settings):
                    if edited := self._files.write_settings(settings):
                        self._log("warning", edited)
                    adopted = settings
                case Note(level, text):
                    self._log(level, text)
                case Refused(reason):
                    self.reason = reason
                    self._log("error", reason)
                case Checked():
                    self._log("info", f"configuration checked, settings of revision {machine.settings.revision}")
                case Done():
                    pass
        if machine.notes_dirty:
            machine.notes_dirty = False
            self._files.write_notes(machine.notes)
        for sending in out:
            self._bus.send(sending.node, PORT, encode(sending.message))
        if adopted is not None:
            self._on_settings(adopted)
        for event in events:
            if isinstance(event, Done) and (done := self._waiting.pop(event.ticket, None)) is not None:
                done(event)


def founding_notes(settings: ClusterSettings) -> ConfigNotes:
    """What a node that is founded with its cluster remembers: these settings, and that it never voted."""
    notes = ConfigNotes(applied=settings_digest(canonical(settings)))
    notes.ballots.abstain = 0
    return notes
