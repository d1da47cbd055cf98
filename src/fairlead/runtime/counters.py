"""Every counter of the server, listed once: its number, its name and a sentence.

A process counts in its own segment (`counters-ROLE`), a row of u64 that only it writes; supervisor, status report and
tests read the same row. Numbers are never given a second meaning: new counters go to the end.
"""

from __future__ import annotations

from enum import IntEnum

from fairlead.store.layout import COUNTERS_BYTES, COUNTERS_FIRST


class Counter(IntEnum):
    """A number in the row, with its sentence."""

    sentence: str

    def __new__(cls, number: int, sentence: str) -> Counter:
        member = int.__new__(cls, number)
        member._value_ = number
        member.sentence = sentence
        return member


class ManagerCounter(Counter):
    """What a connection manager counts."""

    CONNECTIONS_OPEN = 0, "Connections in service now."
    CONNECTIONS_TOTAL = 1, "Connections adopted since the segment was made."
    MESSAGES_IN = 2, "Client messages read."
    BYTES_IN = 3, "Bytes read from clients."
    MESSAGES_OUT = 4, "Messages handed to client connections."
    BYTES_OUT = 5, "Bytes written to clients."
    INSTRUCTIONS = 6, "Instructions of the router carried out."
    ROUNDS = 7, "Rounds over the client connections."
    READING_STOPPED = 8, "1 while clients are not read because the queue is at its limit, else 0."
    ACCOUNTING_FAULTS = 9, "Completion words whose count exceeded their limit; must stay 0."
    SAFETY_TICK_FINDS = 10, "Work found by the slow safety tick, that is, wake-ups lost; must stay 0."
    SLOW_CLIENTS_CUT = 11, "Clients cut off because too much was waiting for them."
    PROTOCOL_ERRORS = 12, "Connections closed or frames refused for breaking the protocol."
    MESSAGES_GIVEN_UP = 13, "Messages given up, each of them logged (SRV-129)."
    WAKEUPS = 14, "Times the eventfd ended a wait."
    LOOP_PROGRESS = 15, "Turns of the duty cycle; stands still when the process hangs."
    STOPS = 16, "Times reading of clients was stopped at the limit."


class RouterCounter(Counter):
    """What the router counts."""

    ENTRIES = 0, "Entries taken from the up rings."
    MESSAGES_ROUTED = 1, "Client messages for which recipients were looked up."
    DELIVERIES = 2, "Recipients named in delivery instructions."
    DELETES = 3, "Separate delete instructions."
    COMMITS = 4, "Commit records written."
    SNAPSHOTS = 5, "Times the whole state was written to the other area."
    REQUESTS_OPEN = 6, "Requests and conversations open now."
    NO_RECEIVER = 7, "Messages for which there was no receiver."
    REFUSED = 8, "Entries refused: bad header, not allowed, too many."
    SAFETY_TICK_FINDS = 9, "Work found by the slow safety tick, that is, wake-ups lost; must stay 0."
    BLOCKED_ON_FULL = 10, "Turns in which a full down ring held an up ring back."
    TAKEOVERS = 11, "Times a router took the store over."
    LAST_PAUSE_NS = 12, "From the last commit of the predecessor to the first turn of the newest router."
    LOOP_PROGRESS = 13, "Turns of the duty cycle; stands still when the process hangs."
    LAST_TURN_NS = 14, "Monotonic time of the newest turn."


class DispatcherCounter(Counter):
    """What the dispatcher counts."""

    ACCEPTED = 0, "Connections accepted."
    HANDED_OVER = 1, "Connections handed to a manager."
    REFUSED = 2, "Connections closed because the server was full."
    LOOP_PROGRESS = 3, "Turns of the loop; stands still when the process hangs."
    HELD = 4, "Times accepting was held because no manager's socket had room."
    SWEPT = 5, "Entries handed over but never adopted, freed again."


COUNTERS: dict[str, type[Counter]] = {
    "manager": ManagerCounter,
    "router": RouterCounter,
    "dispatcher": DispatcherCounter,
}


class Counters:
    """One process's row over its segment. Hot loops index `words` themselves."""

    __slots__ = ("kind", "words")

    def __init__(self, role: str, buffer: memoryview | bytearray) -> None:
        self.kind = COUNTERS[role]
        self.words = memoryview(buffer).cast("B")[COUNTERS_FIRST:COUNTERS_BYTES].cast("Q")

    def add(self, number: int, amount: int = 1) -> None:
        self.words[number] += amount

    def set(self, number: int, value: int) -> None:
        self.words[number] = value

    def get(self, number: int) -> int:
        return self.words[number]

    def as_dict(self) -> dict[str, int]:
        """All of the role's counters by name, for the status report."""
        return {counter.name.lower(): self.words[counter] for counter in self.kind}
