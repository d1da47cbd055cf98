"""Administrative messages are known by their id alone (STR-68), and fetched by it where a void stands (STR-67)."""

from __future__ import annotations

from fairlead.feeds.records import Place

__all__ = ["AdminIds", "Fetch"]

KNOWN_MAX = 10_000
FETCHES_MAX = 1024
FETCH_S = 60.0


class Fetch:
    def __init__(self, name: str, source: str, place: Place, now_s: float) -> None:
        self.id, self.source, self.place = name, source, place
        self.until_s = now_s + FETCH_S
        self.again_s = now_s
        self.question = 0
        self.asked = ""
        self.refused: set[str] = set()


class AdminIds:
    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self.fetches: dict[str, Fetch] = {}

    def is_known(self, name: str) -> bool:
        return name in self._known

    def add(self, name: str) -> None:
        """It is delivered, or does not concern this client."""
        self.fetches.pop(name, None)
        self._known[name] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def want(self, fetch: Fetch) -> bool:
        """False: so many are wanted already that this one cannot be fetched."""
        if fetch.id not in self.fetches and len(self.fetches) >= FETCHES_MAX:
            return False
        self.fetches.setdefault(fetch.id, fetch)
        return True
