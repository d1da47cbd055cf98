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
    DURABLE_IN = 17, "Frames handed to the message manager."
    DURABLE_OUT = 18, "Frames of the message manager handed to client connections."
    DIVERTED = 19, "Transient publishes to names of the message manager."
    LINK_STRAYS = 20, "Frames of the message manager for connections that had ended."
    LINK_DROPPED = 21, "Frames dropped because there was no message manager; their senders were told."
    LINK_CHOKES = 22, "Times clients were not read because the message manager did not keep up."
    LINK_WAITING = 23, "Bytes waiting for the message manager now."
    LINKED = 24, "1 while the link to the message manager is up, else 0."
    DENIED = 25, "Operations on destinations that the user had no right to."
    PASSED_ON = 26, "Connections that began with HTTP, passed on to the gateway of tunnels."
    TURNED_AWAY = 27, "Connections that began with HTTP, turned away because the gateway did not keep up."
    SLOWED = 28, "Times a client was not read because its user or tenant sent faster than its quota."
    OVER_QUOTA = 29, "Messages refused because they were longer than the quota of their user or tenant."


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
    QUOTAS_MET = 15, "Connections and subscriptions refused because their user or tenant had as many as it may."


class DispatcherCounter(Counter):
    """What the dispatcher counts."""

    ACCEPTED = 0, "Connections accepted."
    HANDED_OVER = 1, "Connections handed to a manager."
    REFUSED = 2, "Connections closed because the server was full."
    LOOP_PROGRESS = 3, "Turns of the loop; stands still when the process hangs."
    HELD = 4, "Times accepting was held because no manager's socket had room."
    SWEPT = 5, "Entries handed over but never adopted, freed again."


class MessageManagerCounter(Counter):
    """What the message manager counts."""

    LOOP_PROGRESS = 0, "Turns of the duty cycle; stands still when the process hangs."
    COMMANDS = 1, "Commands taken from the links."
    DROPPED = 2, "Commands for a handle or connection that is not known, or that made no sense."
    STORED = 3, "Messages stored."
    STORED_BYTES = 4, "Bytes of the messages stored."
    DELIVERED = 5, "Messages handed to consumers."
    DELIVERED_BYTES = 6, "Bytes of the messages handed to consumers."
    SETTLED = 7, "Messages settled by consumers."
    REPEATS = 8, "Sends that had been stored before and were not stored again."
    REFUSED = 9, "Sends that were refused."
    EXPIRED = 10, "Messages that expired."
    DEAD = 11, "Messages moved to a dead message queue."
    COMMITS = 12, "Transactions committed."
    ROLLBACKS = 13, "Transactions rolled back."
    DESTINATIONS = 14, "Queues and topics now."
    DEPTH = 15, "Messages waiting in all queues and topics now."
    DEPTH_BYTES = 16, "Bytes of the messages waiting in all queues and topics now."
    SESSIONS = 17, "Sessions now, those that wait to be resumed among them."
    CONSUMERS = 18, "Consumers now."
    PRODUCERS = 19, "Producers now."
    LINKS = 20, "Connection managers linked now."
    BLOCKED = 21, "Destinations whose producers are blocked now."
    TASKS_WAITING = 22, "Commands waiting in command queues now."
    SAFE_INDEX = 23, "Newest record of the journal that is on stable storage."
    PENDING_RECORDS = 24, "Records of the journal that are not on stable storage yet."
    SYNCS = 25, "Flushes of the journal to stable storage."
    LAST_SYNC_NS = 26, "How long the newest flush of the journal took."
    SEGMENTS = 27, "Files of the journal."
    JOURNAL_BYTES = 28, "Bytes of the files of the journal."
    CHECKPOINTS = 29, "Checkpoints finished."
    TICK_GAP_MAX_NS = 30, "The longest time between two turns while there was work."
    STORE_FULL = 31, "1 while nothing can be stored for lack of room, else 0."
    RECOVERY_NS = 32, "How long reading the journal took at the newest start."
    WORK_WAITING = 33, "1 while something waits to be done; with LOOP_PROGRESS standing still the process is frozen."
    EVENTS_DROPPED = 34, "Event log lines dropped because the log could not keep up."
    GROUPS_UP = 35, "Of an agent, which stands in a message manager's place: groups it is linked to now."
    INTERRUPTIONS = 36, "Of an agent: times the links to a group were lost."
    CHOKES = 37, "Of an agent: times managers were not read because a group's node did not keep up."
    BYTES_IN = 38, "Of an agent: bytes passed on to groups unread."
    BYTES_OUT = 39, "Of an agent: bytes passed on to managers."
    WRITTEN_BYTES = 40, "Bytes of records written to the journal."
    REDELIVERED = 41, "Messages handed to consumers not for the first time."
    SYNCS_TIMED = 42, "Flushes whose time was taken: those that waited for the device."
    SYNC_TIME_NS = 43, "How long all flushes whose time was taken took together."
    SYNC_LE_500US = 44, "How many of these flushes took at most 0.5 ms."
    SYNC_LE_1MS = 45, "How many took at most 1 ms."
    SYNC_LE_2MS = 46, "How many took at most 2 ms."
    SYNC_LE_5MS = 47, "How many took at most 5 ms."
    SYNC_LE_10MS = 48, "How many took at most 10 ms."
    SYNC_LE_20MS = 49, "How many took at most 20 ms."
    SYNC_LE_50MS = 50, "How many took at most 50 ms."
    SYNC_LE_100MS = 51, "How many took at most 100 ms."
    SYNC_LE_200MS = 52, "How many took at most 200 ms."
    SYNC_LE_500MS = 53, "How many took at most 500 ms."
    SYNC_LE_1S = 54, "How many took at most 1 s."


COUNTERS: dict[str, type[Counter]] = {
    "manager": ManagerCounter,
    "router": RouterCounter,
    "dispatcher": DispatcherCounter,
    "message-manager": MessageManagerCounter,
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
