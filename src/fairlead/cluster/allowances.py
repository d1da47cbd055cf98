"""How much a tenant may keep in the store, and how long its messages may be: looked at before a message is taken.

What is in use is added up over the tenant's destinations at most ten times a second; what came since is counted on top,
so that a burst does not get past it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from fairlead.errors import QuotaExceeded
from fairlead.security.spaces import prefix_of
from fairlead.wire.entry_codec import details

if TYPE_CHECKING:
    from fairlead.cluster.host import Host

FRESH_MS: Final = 100


class Allowance:
    """Of one tenant, or of one user (`=NAME`), who has a limit only on the length of a message."""

    __slots__ = ("_core", "_counted", "_seen_ms", "_used", "message_bytes", "scope", "storage_bytes")

    def __init__(self, core: Host, scope: str, said: dict[str, Any], counted: Counter[tuple[str, str]]) -> None:
        self._core = core
        self._counted = counted
        self.scope = scope
        self.message_bytes = _limit(said, "message_bytes")
        self.storage_bytes = 0 if scope.startswith("=") else _limit(said, "storage_bytes")
        self._used = 0
        self._seen_ms = -FRESH_MS

    def check(self, entries: memoryview) -> None:
        """Raise QuotaExceeded if these messages may not be taken."""
        size = len(entries)
        if self.message_bytes and size > self.message_bytes:
            for entry in details(entries, 0, size):
                length = entry.body_end - entry.body_start + len(entry.headers)
                if length > self.message_bytes:
                    self._over("message_bytes", f"A message of {length} bytes is longer than {self.message_bytes}")
        if self.storage_bytes:
            if self._core.now_ms - self._seen_ms >= FRESH_MS:
                self._used, self._seen_ms = self._in_use(), self._core.now_ms
            if self._used + size > self.storage_bytes:
                self._over("storage_bytes", f"{self._used} of {self.storage_bytes} bytes of storage are in use")
            self._used += size

    def _in_use(self) -> int:
        prefix = prefix_of(self.scope)
        return sum(one.bytes for one in self._core.destinations.values() if one.name.startswith(prefix))

    def _over(self, kind: str, text: str) -> None:
        self._counted[self.scope, kind] += 1
        whose = f"user {self.scope[1:]}" if self.scope.startswith("=") else f"tenant {self.scope}"
        raise QuotaExceeded(f"{text}: that is the quota of the {whose}.")


class Allowances:
    """Of everybody who has any, and how often each was met."""

    def __init__(self, core: Host) -> None:
        self._core = core
        self._by_scope: dict[str, tuple[dict[str, Any], Allowance]] = {}
        self.exceeded: Counter[tuple[str, str]] = Counter()

    def of(self, request: dict[str, Any]) -> tuple[Allowance, ...]:
        """Those that count for what this request opens; the manager that passed it on vouches for them."""
        found = []
        for scope, said in (request.get("quota") or {}).items():
            known = self._by_scope.get(scope)
            if known is None or known[0] != said:
                known = self._by_scope[scope] = said, Allowance(self._core, scope, said, self.exceeded)
            found.append(known[1])
        return tuple(found)

    def check_new_destination(self, request: dict[str, Any]) -> None:
        """Raise QuotaExceeded if the tenant has as many destinations as it may."""
        for scope, said in (request.get("quota") or {}).items():
            most = _limit(said, "destinations")
            if not most or scope.startswith("="):
                continue
            prefix = prefix_of(scope)
            own = f"{prefix}_"
            there = sum(
                one.name.startswith(prefix) and not one.name.startswith(own) for one in self._core.destinations.values()
            )
            if there >= most:
                self.exceeded[scope, "destinations"] += 1
                raise QuotaExceeded(f"The tenant {scope} has the {most} queues and topics it may have.")

    def facts(self) -> list[dict[str, Any]]:
        """For status: how often which quota was met."""
        return [{"whose": scope, "quota": kind, "times": times} for (scope, kind), times in self.exceeded.items()]


def _limit(said: dict[str, Any], name: str) -> int:
    value = said.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0
