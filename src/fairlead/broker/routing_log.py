"""Reading the routing log: how a standby keeps up, how a successor starts, how the status report sees the state.

Reading disturbs nobody: what a commit record covers does not change until the area is used again two flips later, and
a reader that was overtaken by that notices and begins anew.
"""

from __future__ import annotations

import struct
from typing import Any

from fairlead.broker import commit, parties, records
from fairlead.broker.commit import Commit
from fairlead.broker.routing import RID_BASE, Routing
from fairlead.security.rules import Rules
from fairlead.store import layout
from fairlead.wire.kinds import KIND_FANOUT

TRIES = 5


class Follower:
    """A copy of the router's state that follows its log."""

    def __init__(self, segment: Any, made_of: Any = parties, rules: Rules | None = None) -> None:
        self._segment = memoryview(segment).cast("B")
        self._area_bytes = struct.unpack_from("<Q", self._segment, layout.ROUTING_AREA_BYTES)[0]
        self._made_of = made_of
        self._rules = rules
        self._forget()

    def _forget(self) -> None:
        self.routing = Routing(self._made_of, self._rules)
        self._flips = self._at = 0

    def catch_up(self) -> Commit | None:
        """Apply everything committed since the last call; the commit that was reached, or None in a fresh store."""
        for _ in range(TRIES):
            found = commit.newest(self._segment)
            if found is None:
                return None
            try:
                self._read(found)
            except (ValueError, KeyError, struct.error):
                self._forget()  # the area was written over while it was read
                continue
            after = commit.newest(self._segment)
            if after is not None and after.flips - found.flips < 2:
                self.routing.next_request = max(self.routing.next_request, found.next_request)
                return found
            self._forget()
        raise RuntimeError("the routing log could not be read: its area changed again and again")

    def _read(self, found: Commit) -> None:
        if found.flips != self._flips:
            self._forget()
            self._flips = found.flips
        start = layout.ROUTING_AREAS + (found.flips & 1) * self._area_bytes
        self._apply(self._segment[start + self._at : start + found.log_end])
        self._at = found.log_end

    def _apply(self, area: memoryview) -> None:
        """Apply records; requests that begin and end within them only leave their mark on the balance."""
        asks: dict[int, dict[int, bytes]] = {}  # request -> receiver -> record
        chosen: dict[int, int] = {}
        apply = self.routing.apply
        for kind, payload in records.decode(area):
            if kind == records.ASK:
                rid, _, _, receiver, mode = records.ASK_FORMAT.unpack(payload)
                asks.setdefault(rid, {})[receiver] = payload
                if mode != KIND_FANOUT:
                    chosen[receiver] = rid
            elif kind == records.ANSWERED:
                rid, receiver = records.ANSWERED_FORMAT.unpack(payload)
                if asks.get(rid, {}).pop(receiver, None) is None:
                    apply(kind, payload)
                elif not asks[rid]:
                    del asks[rid]
            elif kind != records.END or asks.pop(records.END_FORMAT.unpack(payload)[0], None) is None:
                apply(kind, payload)
        for receivers in asks.values():
            for payload in receivers.values():
                apply(records.ASK, payload)
        for uid, rid in chosen.items():
            if uid in self.routing.by_uid:
                receiver = self.routing.by_uid[uid]
                receiver.chosen = max(receiver.chosen, rid & ~RID_BASE)


def read_state(segment: Any) -> dict[str, Any]:
    """Attachments, subscriptions and open requests as of the newest commit, whether or not a router runs."""
    follower = Follower(segment)
    found = follower.catch_up()
    return follower.routing.summary() | {"commit": found.sequence if found else 0}
