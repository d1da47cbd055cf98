"""The fault switch: what stands between named nodes, per bus and direction, while a test wants it so.

It is there only if a node was started with one. A stream carrier cannot lose a message and go on, so a drop is there
what it is to TCP: the data comes later, by one repeat time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ANY = "*"
REPEAT_S = 0.2


@dataclass(frozen=True, slots=True)
class Fault:
    """From whom to whom on which bus; `*` is any."""

    kind: str  # "cut", "drop" or "delay"
    sender: str = ANY
    receiver: str = ANY
    bus: str = ANY
    value: float = 0.0  # probability of a drop, seconds of a delay

    def concerns(self, sender: str, receiver: str, bus: str) -> bool:
        return self.sender in (ANY, sender) and self.receiver in (ANY, receiver) and self.bus in (ANY, bus)


class FaultSwitch:
    """Set at run time; `version` grows with each change, so that an edge may look only then."""

    def __init__(self, seed: int = 0) -> None:
        self._faults: list[Fault] = []
        self._rates: dict[str, float] = {}
        self._lots = Lots(seed)
        self.version = 0

    def cut(self, sender: str = ANY, receiver: str = ANY, bus: str = ANY) -> None:
        """Nothing goes from the one to the other."""
        self._add(Fault("cut", sender, receiver, bus))

    def drop(self, probability: float, sender: str = ANY, receiver: str = ANY, bus: str = ANY) -> None:
        self._add(Fault("drop", sender, receiver, bus, probability))

    def delay(self, seconds: float, sender: str = ANY, receiver: str = ANY, bus: str = ANY) -> None:
        self._add(Fault("delay", sender, receiver, bus, seconds))

    def limit(self, bytes_per_s: float, bus: str = ANY) -> None:
        """What this node may send on a bus; 0 takes the limit away."""
        if bytes_per_s > 0:
            self._rates[bus] = bytes_per_s
        else:
            self._rates.pop(bus, None)
        self.version += 1

    def heal(self) -> None:
        """All is well again."""
        self._faults.clear()
        self._rates.clear()
        self.version += 1

    def command(self, words: dict[str, Any]) -> dict[str, Any]:
        """The same by administration: `{"fault": "cut", "from": "a1", "to": "*", "bus": "*", "value": 0}`."""
        kind = str(words.get("fault", ""))
        sender, receiver, bus = (str(words.get(key, ANY)) for key in ("from", "to", "bus"))
        try:
            value = float(words.get("value", 0))
        except (TypeError, ValueError):
            return {"ok": False, "error": "value is a number: a probability, seconds, or bytes per second"}
        if kind == "heal":
            self.heal()
        elif kind == "rate":
            self.limit(value, bus)
        elif kind in ("cut", "drop", "delay"):
            if value < 0 or (kind == "drop" and value > 1):
                return {"ok": False, "error": f"{value} is no value for {kind}"}
            self._add(Fault(kind, sender, receiver, bus, value))
        else:
            return {"ok": False, "error": f"{kind!r} is none of cut, drop, delay, rate, heal"}
        return {"ok": True, "faults": self.facts()}

    def facts(self) -> list[str]:
        """What is set, for status."""
        faults = [f"{one.kind} {one.sender}>{one.receiver} on {one.bus} {one.value:g}" for one in self._faults]
        return faults + [f"rate on {bus} {rate:g} B/s" for bus, rate in self._rates.items()]

    def is_cut(self, sender: str, receiver: str, bus: str) -> bool:
        return any(one.kind == "cut" and one.concerns(sender, receiver, bus) for one in self._faults)

    def is_dropped(self, sender: str, receiver: str, bus: str) -> bool:
        """Draws a lot for each fault that concerns them."""
        return any(
            one.kind == "drop" and one.concerns(sender, receiver, bus) and self._lots.draw() < one.value
            for one in self._faults
        )

    def delay_s(self, sender: str, receiver: str, bus: str) -> float:
        return sum(one.value for one in self._faults if one.kind == "delay" and one.concerns(sender, receiver, bus))

    def rate(self, bus: str) -> float:
        """Bytes per second that may be sent on it; 0: no limit."""
        return self._rates.get(bus, self._rates.get(ANY, 0.0))

    def _add(self, fault: Fault) -> None:
        self._faults.append(fault)
        self.version += 1


class Lots:
    """Numbers from 0 to 1 that look drawn, the same for the same seed (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & (1 << 64) - 1

    def draw(self) -> float:
        mask = (1 << 64) - 1
        self._state = self._state + 0x9E3779B97F4A7C15 & mask
        mixed = (self._state ^ self._state >> 30) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
        return float((mixed ^ mixed >> 31) >> 11) / (1 << 53)


class Bucket:
    """A rate: how many bytes may go now."""

    def __init__(self) -> None:
        self._room = 0.0
        self._at_s = 0.0

    def room(self, rate: float, now_s: float) -> float:
        """Saves up at most a tenth of a second; may be overdrawn by one block, which is paid back first."""
        if self._at_s == 0.0:
            self._room = rate / 10
        self._room = min(rate / 10, self._room + rate * max(0.0, now_s - self._at_s))
        self._at_s = now_s
        return self._room

    def spend(self, count: int) -> None:
        self._room -= count
