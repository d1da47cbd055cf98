"""What a connection remembers of routes: bounded, used again for a while, and longer if nobody can be asked.

Everything is forgotten when the connection has gone to another broker, for a route is one from there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from fairlead.directory.delivery.routes import Route

__all__ = ["KnownRoutes"]

ROUTES_MAX: Final = 1024
FRESH_S: Final = 5.0


class KnownRoutes:
    """Routes by application, the oldest used one goes first."""

    def __init__(self, *, fresh_s: float = FRESH_S, routes_max: int = ROUTES_MAX) -> None:
        self._fresh_s = fresh_s
        self._routes_max = routes_max
        self._broker = ""
        self._routes: OrderedDict[str, tuple[Route, float]] = OrderedDict()

    def at(self, broker: str) -> None:
        """The connection is at this broker now."""
        if broker != self._broker:
            self._broker = broker
            self._routes.clear()

    def fresh(self, name: str, now_s: float) -> Route | None:
        """A route that need not be asked for."""
        found = self._routes.get(name)
        if found is None or now_s - found[1] > self._fresh_s:
            return None
        self._routes.move_to_end(name)
        return found[0]

    def old(self, name: str) -> Route | None:
        """The last one that was told, for when nobody can be asked."""
        found = self._routes.get(name)
        return found[0] if found is not None else None

    def learn(self, name: str, route: Route, now_s: float) -> None:
        if not route.is_known and not name.startswith("@"):
            self.forget(name)
            return
        self._routes[name] = (route, now_s)
        self._routes.move_to_end(name)
        while len(self._routes) > self._routes_max:
            self._routes.popitem(last=False)

    def forget(self, name: str) -> None:
        """It turned out to be wrong."""
        self._routes.pop(name, None)

    def __len__(self) -> int:
        return len(self._routes)
