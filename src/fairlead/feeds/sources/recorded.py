"""Packets of a file: in order, once each. There is nobody to ask, and nothing to wait for but later packets."""

from __future__ import annotations

from typing import Final

from fairlead.feeds.sources.actions import Action, Began, Lost, Ready
from fairlead.feeds.sources.mold import BadPacket
from fairlead.feeds.sources.mold_codec import split
from fairlead.feeds.sources.reassembly import Reassembly
from fairlead.feeds.sources.recovery import session_name
from fairlead.feeds.sources.runs import Run

__all__ = ["Recorded"]

REORDER_MESSAGES: Final = 4096  # packets of two lines are mixed at most so far


class Recorded:
    """A hole is given up when so many messages behind it were read, or with the session."""

    def __init__(self) -> None:
        self.counters = {"packets": 0, "messages": 0, "duplicates": 0, "lost": 0, "sessions": 0}
        self.troubles: dict[str, int] = {}
        self._session: bytes | None = None
        self._name = ""
        self._state = Reassembly(1)
        self._past: set[bytes] = set()

    def on_packet(self, packet: bytes) -> list[Action]:
        self.counters["packets"] += 1
        try:
            session, sequence, _, lengths, data = split(packet)
        except BadPacket as fault:
            self._note(f"no packet: {fault}")
            return []
        actions: list[Action] = []
        if session != self._session:
            if session in self._past:
                self._note("a session that is over")
                return []
            actions += self._begin(session, sequence)
        if not lengths:
            self._state.heard(sequence - 1)
            return actions
        run = Run(sequence, lengths, data)
        before, held = self._state.next, self._state.held_messages
        actions += [Ready(self._name, ready) for ready in self._state.add(run)]
        self.counters["messages"] += run.size
        self.counters["duplicates"] += run.size - (self._state.next - before + self._state.held_messages - held)
        while self._state.held_messages > REORDER_MESSAGES:
            actions += self._give_up()
        return actions

    def on_end(self) -> list[Action]:
        actions: list[Action] = []
        while self._session is not None and self._state.hole is not None:
            actions += self._give_up()
        return actions

    def _begin(self, session: bytes, first: int) -> list[Action]:
        actions = self.on_end()
        after = self._name
        if self._session is not None and len(self._past) < 1024:
            self._past.add(self._session)
        start = 1 if self._session is not None else first
        self._session = session
        self._name = session_name(session)
        self._state = Reassembly(start)
        self.counters["sessions"] += 1
        actions.append(Began(self._name, after, start))
        return actions

    def _give_up(self) -> list[Action]:
        hole, runs = self._state.give_up()
        self.counters["lost"] += hole.size
        return [Lost(self._name, hole.first, hole.last), *(Ready(self._name, run) for run in runs)]

    def _note(self, trouble: str) -> None:
        self.troubles[trouble] = self.troubles.get(trouble, 0) + 1
