"""A numbered source on one or more lines: who is believed, what is asked for again, and when a loss is final (STR-15).

The lines carry the same packets; the first copy is taken. A hole is waited for, since lines differ and networks
reorder; then asked for at the rewind server; and reported with its exact range when nothing came for `patience_s`.
A packet of another session, or one far beyond all others, is believed only when two more of its kind follow with
nothing else between: a source may begin a new session without a word, but one stray packet must not end the old one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from fairlead.feeds.sources import mold
from fairlead.feeds.sources.actions import DEFAULTS, Action, Alive, Ask, Began, Limits, Lost, Ready, Silent
from fairlead.feeds.sources.mold import END_OF_SESSION, BadPacket
from fairlead.feeds.sources.mold_codec import split
from fairlead.feeds.sources.reassembly import Reassembly
from fairlead.feeds.sources.runs import Run

__all__ = ["NEVER", "REWIND", "Recovery", "session_name"]

CONFIRMED_BY: Final = 3  # packets in a row
JUMP: Final = b"a sequence far beyond all others, which is longer than any session is"
FAR_BEHIND: Final = 1000  # messages that the other line may be late without a word about it
LAST_ASKS: Final = 3  # for a hole that waited behind one that was given up
SUSPECTS_HELD_MAX: Final = 256
PAST_SESSIONS_MAX: Final = 64
PACKET_COSTS: Final = 128  # bytes to keep one, beside its own
NEVER: Final = float("inf")
REWIND: Final = -1
"""In place of a line's number: this came from the rewind server, and says nothing about the lines."""

Parsed: TypeAlias = tuple[bytes, int, int, bytes, bytes]
"""As `mold.split` gives it."""


class Recovery:
    """`start`: the first sequence wanted, 0 for whatever comes first. `session`: the only one believed, "" for any."""

    def __init__(
        self, *, lines: int = 1, has_rewind: bool = False, start: int = 0, session: str = "", limits: Limits = DEFAULTS
    ) -> None:
        self.counters = dict.fromkeys(
            ("packets", "messages", "heartbeats", "duplicates", "holes", "recovered", "asked", "lost", "sessions"), 0
        )
        self.troubles: dict[str, int] = {}
        self._limits = limits
        self._patience_s = limits.patience_s if has_rewind or lines > 1 else limits.reorder_s
        self._has_rewind = has_rewind
        self._start = start
        self._only = session
        self._session = b""
        self._name = ""
        self._state: Reassembly | None = None
        self._is_ended = False
        self._past: deque[bytes] = deque(maxlen=PAST_SESSIONS_MAX)
        self._suspect = b""
        self._suspects: list[tuple[int, Parsed]] = []
        self._next: tuple[bytes, list[tuple[int, Parsed]]] | None = None  # a session that waits for the old one's holes
        self._next_bytes = 0
        self._heard_s = 0.0
        self._is_alive: bool | None = None
        self._hole_first = self._hole_last = 0
        self._hole_s = NEVER  # since when the present hole has made no progress
        self._asked_s = -NEVER
        self._asked_to = 0
        self._reach = 0  # the highest sequence known when the present hole last made progress
        self._old_to = 0  # holes up to here have waited long enough when their turn comes

    @property
    def session(self) -> str:
        """The present one."""
        return self._name

    @property
    def position(self) -> int:
        """The last sequence given out or given up."""
        return self._state.next - 1 if self._state else 0

    @property
    def deadline_s(self) -> float:
        """When `on_tick` is due."""
        due_s = self._heard_s + self._limits.silent_s if self._is_alive is not False else NEVER
        if self._hole_s < NEVER:
            due_s = min(due_s, self._hole_s + self._patience())
            if self._has_rewind:
                due_s = min(due_s, max(self._hole_s + self._limits.reorder_s, self._asked_s + self._limits.ask_s))
        return due_s

    def on_start(self, now_s: float) -> None:
        """The lines are open."""
        self._heard_s = now_s

    def on_packet(self, line: int, packet: bytes, now_s: float) -> list[Action]:
        """One packet of a line, or of the rewind server (REWIND). Nothing it contains makes this raise."""
        self.counters["packets"] += 1
        try:
            return self.on_parsed(line, split(packet), now_s)
        except BadPacket as fault:
            self.note(f"no packet: {fault}")
            return []

    def on_run(self, line: int, session: bytes, run: Run, now_s: float) -> list[Action]:
        """Messages of a source with another framing."""
        return self.on_parsed(line, (session, run.first, run.size, run.lengths, run.data), now_s) if run.size else []

    def on_parsed(self, line: int, parsed: Parsed, now_s: float) -> list[Action]:
        session, sequence, count, lengths, data = parsed
        actions: list[Action] = []
        state = self._state
        if state is None or session != self._session:
            self._stranger(parsed, line, now_s, actions)
            return actions
        is_message = bool(lengths)
        reaches = sequence + count - 1 if is_message else sequence - 1
        if reaches - state.highest > self._limits.jump_max:
            self.note("a sequence far beyond all others")
            if line == REWIND or not self._is_confirmed(JUMP, line, parsed):
                return actions
            state.heard(reaches)
            held, self._suspects = self._suspects[:-1], []
            for held_line, held_parsed in held:
                actions += self.on_parsed(held_line, held_parsed, now_s)
        elif self._suspects and line != REWIND:
            self._suspects = []
        if line != REWIND:
            self._hear(now_s, actions)
        if is_message:
            self.counters["messages"] += count
            self._is_ended = False
            self._take(state, Run(sequence, lengths, data), now_s, actions)
        else:
            self.counters["heartbeats"] += 1
            self._is_ended = count == END_OF_SESSION
            state.heard(sequence - 1)
        self._watch(now_s, actions)
        return actions

    def on_tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        if self._is_alive is not False and now_s >= self._heard_s + self._limits.silent_s:
            self._is_alive = False
            actions.append(Silent(f"no packet and no heartbeat for {now_s - self._heard_s:.1f} s"))
        self._watch(now_s, actions)
        return actions

    def on_down(self, why: str) -> list[Action]:
        """The line is known to be broken, without waiting for its silence."""
        if self._is_alive is False:
            return []
        self._is_alive = False
        return [Silent(why)]

    def take_troubles(self) -> dict[str, int]:
        """What did not belong here since this was last asked. The words are few, whatever is sent."""
        troubles, self.troubles = self.troubles, {}
        return troubles

    # -- sessions

    def _stranger(self, parsed: Parsed, line: int, now_s: float, actions: list[Action]) -> None:
        """A packet that is not of the present session."""
        session = parsed[0]
        if line == REWIND:
            self.note("an answer for another session")
            return
        if self._only and session_name(session) != self._only:
            self.note("another session than the configured one")
            return
        if session in self._past:
            self.note("a session that is over")
            return
        if self._next and session == self._next[0]:
            self._next[1].append((line, parsed))
            self._next_bytes += len(parsed[4]) + PACKET_COSTS
            self._watch(now_s, actions)
            return
        if self._state is None:
            self._begin(session, self._start or parsed[1], now_s, actions)
            actions += self.on_parsed(line, parsed, now_s)
            return
        self.note("another session than the present one")
        if self._next is None and (self._is_confirmed(session, line, parsed) or self._is_ended):
            self._next = (session, self._suspects)
            self._next_bytes = sum(len(held[4]) + PACKET_COSTS for _, held in self._suspects)
            self._suspects = []
            self._watch(now_s, actions)

    def _begin(self, session: bytes, start: int, now_s: float, actions: list[Action]) -> None:
        if self._session:
            self._past.append(self._session)
        after, self._name = self._name, session_name(session)
        self._session = session
        self._state = Reassembly(start)
        self._is_ended = False
        self._hole_s = NEVER
        self._hole_first = self._old_to = 0
        self.counters["sessions"] += 1
        actions.append(Began(self._name, after, start))
        self._hear(now_s, actions)

    def _is_confirmed(self, kind: bytes, line: int, parsed: Parsed) -> bool:
        """Has it been seen often enough in a row? Held until then, so that nothing of it is missing if it has."""
        if kind != self._suspect:
            self._suspect = kind
            self._suspects = []
        if len(self._suspects) < SUSPECTS_HELD_MAX:
            self._suspects.append((line, parsed))
        return len(self._suspects) >= CONFIRMED_BY

    # -- messages

    def _take(self, state: Reassembly, run: Run, now_s: float, actions: list[Action]) -> None:
        limits = self._limits
        if state.held_messages > limits.window_messages or state.held_bytes > limits.window_bytes:
            self.note("more behind a hole than there is room for")
            if not self._has_rewind:
                self._give_up(state, actions)
            elif run.first > state.next:
                state.heard(run.last)  # it will be asked for again
                return
        before = state.next
        known = state.held_messages
        for ready in state.add(run):
            actions.append(Ready(self._name, ready))
        fresh = state.next - before + state.held_messages - known
        if fresh < run.size:
            self.counters["duplicates"] += run.size - max(fresh, 0)
            if run.last < before - FAR_BEHIND:
                self.note("a sequence that goes back")
        if self._hole_s < NEVER and state.next > before:
            self.counters["recovered"] += min(state.next, self._hole_last + 1) - before
            self._hole_s = now_s  # it shrinks: be patient
            self._reach = state.highest

    def _watch(self, now_s: float, actions: list[Action]) -> None:
        """See to the first hole, and to a session that waits for it."""
        state = self._state
        if state is None:
            return
        while (hole := state.hole) is not None:
            if self._hole_s == NEVER:
                self.counters["holes"] += 1
                self._hole_s = now_s
                self._asked_s = -NEVER
                self._asked_to = 0
                self._reach = state.highest
            self._hole_last = hole.last
            is_full = self._next is not None and self._next_bytes > self._limits.window_bytes
            is_next = hole.first != self._hole_first
            self._hole_first = hole.first
            if now_s >= self._hole_s + self._patience() or is_full:
                if hole.first > self._old_to:
                    self._old_to = self._reach
                self._give_up(state, actions)
                continue
            # A complete answer is followed by the next question; who has waited long enough need not wait again.
            is_due = is_next and (hole.first >= self._asked_to > 0 or hole.first <= self._old_to)
            self._ask(hole.first, hole.size, now_s, actions, is_due)
            return
        self._hole_s = NEVER
        if self._next is not None:
            session, packets = self._next
            self._next = None
            self._begin(session, 1, now_s, actions)
            for line, parsed in packets:
                actions += self.on_parsed(line, parsed, now_s)

    def _patience(self) -> float:
        """For the present hole."""
        if self._hole_first > self._old_to:
            return self._patience_s
        return min(self._patience_s, LAST_ASKS * self._limits.ask_s) if self._has_rewind else 0.0

    def _ask(self, first: int, count: int, now_s: float, actions: list[Action], is_due: bool) -> None:
        if not self._has_rewind:
            return
        limits = self._limits
        if is_due or now_s >= max(self._hole_s + limits.reorder_s, self._asked_s + limits.ask_s):
            count = min(count, limits.ask_messages)
            actions.append(Ask(mold.request(self._session, first, count)))
            self._asked_s = now_s
            self._asked_to = first + count
            self.counters["asked"] += 1

    def _give_up(self, state: Reassembly, actions: list[Action]) -> None:
        hole, runs = state.give_up()
        self.counters["lost"] += hole.size
        actions.append(Lost(self._name, hole.first, hole.last))
        actions += [Ready(self._name, run) for run in runs]
        self._hole_s = NEVER

    # -- small things

    def _hear(self, now_s: float, actions: list[Action]) -> None:
        self._heard_s = now_s
        if self._is_alive is not True:
            self._is_alive = True
            actions.append(Alive())

    def note(self, trouble: str) -> None:
        self.troubles[trouble] = self.troubles.get(trouble, 0) + 1


def session_name(session: bytes) -> str:
    """A session as people and ids have it."""
    return session.rstrip(b" ").decode("ascii", "backslashreplace")
