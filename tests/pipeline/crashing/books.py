"""What was sent, and where each message must be found: once, and behind those of its key that were sent before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.processes.durable.books import Faults


@dataclass
class Books:
    """Of one flow. Numbers are given in the order of sending, `taken` are those another consumer has acknowledged."""

    name: str
    keys: dict[int, str] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)
    unsure: set[int] = field(default_factory=set)
    """Acknowledged by another consumer that did not hear whether that was in time."""

    def missing(self, arrived: Iterable[int]) -> set[int]:
        return self.confirmed - set(arrived) - set(self.taken) - self.unsure

    def check(self, arrived: list[int], faults: Faults) -> None:
        for number in sorted(self.missing(arrived))[:20]:
            faults.add("lost", f"{self.name}: {number}")
        counts = Counter(arrived) + Counter(self.taken)
        for number in sorted(number for number, count in counts.items() if count > 1)[:20]:
            faults.add("doubled", f"{self.name}: {number}, {counts[number]} times")
        for number in sorted(counts.keys() - self.keys.keys())[:20]:
            faults.add("invented", f"{self.name}: {number}")
        self._check_order("out of the pipeline", arrived, faults)
        self._check_order("at the other consumer", self.taken, faults)

    def _check_order(self, where: str, numbers: list[int], faults: Faults) -> None:
        last: dict[str, int] = {}
        for number in numbers:
            key = self.keys.get(number, "")
            if last.get(key, -1) > number:
                faults.add("reordered", f"{self.name}, {where}: {number} after {last[key]} of key {key}")
                return
            last[key] = number
