"""Votes on the groups' control records, with their files: what a vote promises is on disk before it is said (CLU-144).

A vote is `NODE.0` on a node that was founded with its cluster and never lost what it wrote; else it has a name of its
own, and counts only when a primary has let it in (CLU-145). Agents, member nodes and witnesses all have them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fairlead.bus.port import Bus
from fairlead.cluster.configuration.edge.files import NOTES, write_file
from fairlead.cluster.edge.member_home import VoteFile
from fairlead.cluster.replication.messages import decode, encode
from fairlead.cluster.replication.notes import VoterNotes
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings
from fairlead.cluster.replication.voter import Voter
from fairlead.errors import ConfigError, RemoteProtocolError


class Ballot(msgspec.Struct):
    """The file of one vote."""

    identity: str
    notes: VoterNotes


class Register(msgspec.Struct):
    """Of which groups this data directory ever had a vote, and whether it was founded with the cluster."""

    founded: bool
    groups: list[str] = []


class VoteBook:
    """All votes of a node, in `DATA/votes/`. Open it before anything else of a new life is written to `DATA`."""

    def __init__(self, data: Path, node: str) -> None:
        self._data = data
        self._node = node
        self._path = data / "votes" / "register.json"
        try:
            self._register = msgspec.json.decode(self._path.read_bytes(), type=Register)
        except FileNotFoundError:
            self._register = Register((data / NOTES).exists())
            self._write()
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from error

    def open(self, group: str, founding: ControlRecord) -> tuple[Ballot, Callable[[VoterNotes], None]]:
        """The vote in that group, and what makes its notes durable."""
        file = VoteFile(self._data, group)
        ballot = file.read(Ballot)
        if ballot is None:
            is_first = self._register.founded and group not in self._register.groups
            name = "0" if is_first else secrets.token_hex(8)
            ballot = Ballot(f"{self._node}.{name}", VoterNotes.fresh(founding))
            file.write(ballot)
            if group not in self._register.groups:
                self._register.groups.append(group)
                self._write()
        found = ballot

        def write(notes: VoterNotes) -> None:
            found.notes = notes
            file.write(found)

        return found, write

    def _write(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(self._path, msgspec.json.encode(self._register))


class Vote:
    """One vote at work: listens on `voter:GROUP`; its answers have a port of their own, relayed between buses too."""

    def __init__(
        self,
        bus: Bus,
        group: str,
        book: VoteBook,
        settings: Settings,
        founding: ControlRecord,
        clock_s: Callable[[], float],
    ) -> None:
        self._bus = bus
        self._clock_s = clock_s
        self._port, self._answers = f"voter:{group}", f"ballot:{group}"
        ballot, self._write = book.open(group, founding)
        self.machine = Voter(group, ballot.identity, ballot.notes, settings, clock_s(), founding=founding)
        self.strange = 0  # messages that were none
        bus.listen(self._port, self._on_message)

    def _on_message(self, sender: str, data: memoryview) -> None:
        try:
            message = decode(data)
        except RemoteProtocolError:
            self.strange += 1
            return
        self.machine.on_message(sender, message, self._clock_s())
        self._say()

    def on_dead(self, node: str, start: int) -> None:
        """Its keeper says that this process is dead: its lease is over."""
        self.machine.on_dead(node, start, self._clock_s())
        self._say()

    def _say(self) -> None:
        machine = self.machine
        if machine.notes_dirty:
            self._write(machine.notes)
            machine.notes_dirty = False
        out, machine.out = machine.out, []
        for send in out:
            self._bus.send(send.node, self._answers, encode(send.message))

    def facts(self) -> dict[str, Any]:
        return dict(self.machine.facts(self._clock_s()))

    def close(self) -> None:
        self._bus.deaf(self._port)
