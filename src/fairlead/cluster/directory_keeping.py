"""The directory in a message manager: what its tables decide becomes records, and is answered when it is safe (DIR-36).

Every core has the tables, so that what the journal says of them is never lost; they are asked only where `[directory]
serve` says so. Leases are not in the journal: whoever begins to lead gives every broker a fresh one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec import Struct

from fairlead.cluster import records
from fairlead.cluster.outgoing import encode_json
from fairlead.directory import operations
from fairlead.directory.operations import OPERATIONS
from fairlead.directory.rows import Heuristic, Rule
from fairlead.directory.tables import Tables, TableSettings
from fairlead.errors import (
    BadParameter,
    FairleadError,
    NoDirectory,
    StoreFull,
    TooLarge,
    UnknownBroker,
    UnknownCluster,
)
from fairlead.journal.faults import JournalFailed
from fairlead.wire.kinds import BODY_BYTES_MAX

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.parties import Line
    from fairlead.cluster.port import Bytes

AROUND: Final = frozenset({"do", "op", "may"})  # of a command, beside the operation's arguments
OVERLOADED_COMMANDS: Final = 500  # wait behind this one: clients that can choose by themselves should (DIR-55)
FREEING: Final = frozenset({"remove_broker", "leave_cluster", "deregister_app", "connection_closed", "renew"})
"""Taken also when the disk is full: after them less is kept."""


class Values(Protocol):
    """The settings of `[directory]` that matter here."""

    @property
    def serve(self) -> bool: ...
    @property
    def lease_s(self) -> float: ...
    @property
    def reserve_s(self) -> float: ...
    @property
    def suspect_s(self) -> float: ...
    @property
    def heuristic(self) -> Heuristic: ...
    @property
    def rule(self) -> Rule: ...


class DirectoryKeeping:
    """The directory of one core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.serves = False
        self.tables = Tables()
        self._changed = 0  # index of the newest record about it
        self.configure()

    def configure(self) -> None:
        """As the settings of the core say now."""
        values = self._core.settings.directory
        self.serves = values is not None and values.serve
        if values is not None:
            self.tables.settings = TableSettings(
                lease_s=values.lease_s,
                reserve_s=values.reserve_s,
                suspect_s=values.suspect_s,
                heuristic=values.heuristic,
                rule=values.rule,
            )

    # --- Asking ---------------------------------------------------------------------------------------------------
    def on_command(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """One operation of a client. It is answered whatever happens, for nobody asks a second time on this line."""
        try:
            self._on_command(line, number, request)
        except JournalFailed:
            raise
        except FairleadError as refusal:
            self._core.error(line, number, refusal.code, refusal.text)
        except Exception as error:
            self._core.fault(line, number, error)

    def _on_command(self, line: Line, number: int, request: dict[str, Any]) -> None:
        core = self._core
        self._check_serves()
        op, arguments = asked(request)
        if OPERATIONS[op].writes:
            facts = self._change(op, arguments, request.get("may") or ())
        else:
            facts = self.tables.ask(op, arguments, core.now_ms)
        if core.session_task.depth > OVERLOADED_COMMANDS:
            facts["overloaded"] = True
        body = encode_json(facts)
        if len(body) > BODY_BYTES_MAX:
            raise TooLarge(f"The answer has {len(body)} bytes: ask for less, such as one application.", size=len(body))
        # What it shows is safe before anybody hears of it: a reader as well as a writer.
        core.after(self._changed, lambda: core.answer_long(line, number, body))

    def stale(self, request: Mapping[str, Any], tables: Tables | None = None) -> dict[str, Any]:
        """What a member that does not serve can say: reads only, and only of what it knows (DIR-38)."""
        self._check_serves()
        op, arguments = asked(request)
        if OPERATIONS[op].writes:
            raise NoDirectory(f"No majority of the directory's servers is in reach: `{op}` has to wait; try again.")
        try:
            return {**(tables or self.tables).ask(op, arguments, self._core.now_ms), "stale": True}
        except (UnknownCluster, UnknownBroker) as unknown:  # others may know it by now
            raise NoDirectory(f"This server is cut off from the others, and as far as it knows: {unknown}") from None

    def _check_serves(self) -> None:
        if not self.serves:
            raise NoDirectory("This server keeps no directory; ask one that has [directory] serve = true.")

    def _change(self, op: str, arguments: Struct, may: Collection[str]) -> dict[str, Any]:
        full = self._core.journal.full
        if full and op not in FREEING:
            raise StoreFull(full)
        self._catch_up()
        decision = self.tables.decide(op, arguments, self._core.now_ms, may=may)
        for change in decision.changes:
            self._write(change)
        self._ask_for_tick()
        return decision.answer()

    def _write(self, change: dict[str, Any]) -> None:
        self._changed, _ = self._core.append(records.DIRECTORY, encode_json(change))
        self.tables.apply(change)

    # --- Time -----------------------------------------------------------------------------------------------------
    def began(self) -> None:
        """This member leads from now on."""
        self.tables.begin(self._core.now_ms)
        self._changed = self._core.last_index
        self._ask_for_tick()

    def _catch_up(self) -> None:
        due_ms, now_ms = self.tables.next_ms, self._core.now_ms
        if due_ms is not None and now_ms >= due_ms:
            for change in self.tables.tick(now_ms):
                self._write(change)

    def _ask_for_tick(self) -> None:
        due_ms = self.tables.next_ms
        if due_ms is not None:
            self._core.timers.at(due_ms, self._tick, self)

    def _tick(self) -> None:
        if not self._core.follows:
            self._catch_up()
            self._ask_for_tick()

    # --- Records and checkpoints ----------------------------------------------------------------------------------
    def apply(self, body: Bytes) -> None:
        """A record, read again at a start or told by whoever leads."""
        self.tables.apply(msgspec.json.decode(body))

    def snapshot(self) -> dict[str, Any]:
        return self.tables.snapshot()

    def restore(self, state: dict[str, Any]) -> None:
        self.tables.restore(state)


def asked(request: Mapping[str, Any]) -> tuple[str, Struct]:
    """Operation and arguments of a command."""
    op = request.get("op")
    arguments = operations.read(op, {name: value for name, value in request.items() if name not in AROUND})
    if not isinstance(op, str):
        raise BadParameter("An operation of the directory has a name.")
    return op, arguments
