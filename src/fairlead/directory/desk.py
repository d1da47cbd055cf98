"""What those who decide an operation work with: the tables as they are, the settings, the leases."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msgspec import Struct

from fairlead.directory.leases import Leases
from fairlead.directory.operations import ADMIN, APP, BROKER
from fairlead.directory.rows import Heuristic, Rule
from fairlead.directory.rules import Rules
from fairlead.directory.state import BrokerEntry, State
from fairlead.errors import NotAllowed, UnknownBroker

Change = dict[str, Any]
Answer = dict[str, Any]

MOVE_MS: Final = 60_000  # for how long links are asked to go elsewhere


class TableSettings(Struct, frozen=True, kw_only=True):
    lease_s: float = 15.0
    reserve_s: float = 10.0
    suspect_s: float = 10.0  # reports of two clients within this; then skipped as long
    heuristic: Heuristic = "auto"
    rule: Rule = "rotation"


class Decision(NamedTuple):
    """Changes to write and apply, in order; then `answer()` at once, to be sent when they are safe."""

    changes: list[Change]
    answer: Callable[[], Answer]


@dataclass(slots=True)
class Desk:
    state: State
    settings: TableSettings
    leases: Leases
    rules: Rules

    def change(self, what: str, /, **facts: Any) -> Change:
        return {"c": what, "r": self.state.revision + 1, **facts}

    def decided(self, changes: list[Change], **answer: Any) -> Decision:
        for number, change in enumerate(changes, self.state.revision + 1):
            change["r"] = number
        return Decision(changes, lambda: {**answer, "revision": self.state.revision})

    def broker(self, name: str) -> BrokerEntry:
        entry = self.state.brokers.get(name)
        if entry is None:
            raise UnknownBroker(f"The directory has no broker {name[:60]!r}; it registers itself when it starts.")
        return entry

    def living(self, name: str) -> BrokerEntry:
        entry = self.broker(name)
        if not entry.leased:
            raise UnknownBroker(f"The lease of broker {name!r} is over; it must renew it first.")
        return entry


def allow(may: Collection[str], *, broker: str = "", app: str = "") -> None:
    """Raise unless who asks may speak for that broker, that application, or as an administrator (DIR-34)."""
    if not (ADMIN in may or (broker and BROKER + broker in may) or (app and APP + app in may)):
        needed = [f"serve {BROKER + broker[:60]!r}"] * bool(broker) + [f"consume {APP + app[:60]!r}"] * bool(app)
        raise NotAllowed(f"This needs the right {' or '.join([*needed, f'admin {ADMIN!r}'])}; ask an administrator.")
