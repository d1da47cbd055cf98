"""The directory as a machine: decides an operation at the primary, applies what was decided everywhere (DIR-5).

    decision = tables.decide(op, arguments, now_ms, may=may)   # at the primary; changes nothing that is replicated
    for change in decision.changes: write(change); tables.apply(change)
    answer = decision.answer()                                 # to be sent when the changes are safe

Backups, and a server that starts, only `apply`. Leases are the primary's own and in no log: `begin` when it begins to
lead. `tick` makes the changes that time brings; it is to be called before a decision when `next_ms` has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from fairlead.directory import deciding, linking, picking
from fairlead.directory.applying import apply_change
from fairlead.directory.desk import Answer, Change, Decision, Desk
from fairlead.directory.desk import TableSettings as TableSettings
from fairlead.directory.leases import Leases
from fairlead.directory.reading import READS
from fairlead.directory.rules import ALL_RULES, Rules
from fairlead.directory.state import State
from fairlead.errors import BadParameter, FairleadError

_DECIDES: Final[Mapping[str, Callable[[Desk, Any, int, Collection[str]], Decision]]] = {
    "put_broker": deciding.put_broker,
    "renew": deciding.renew,
    "restate": linking.restate,
    "remove_broker": deciding.remove_broker,
    "join_cluster": deciding.join_cluster,
    "leave_cluster": deciding.leave_cluster,
    "set_cluster": deciding.set_cluster,
    "register_app": linking.register_app,
    "deregister_app": linking.deregister_app,
    "connection_opened": linking.connection_opened,
    "connection_closed": linking.connection_closed,
    "pick_broker": picking.pick,
    "report_failure": picking.report_failure,
    "publish_key": linking.publish_key,
    "rebalance": deciding.rebalance,
}
LAPSE_BATCH: Final = 1000  # reservations that lapse in one change


class Tables:
    def __init__(self, settings: TableSettings | None = None, *, rules: Rules = ALL_RULES) -> None:
        settings = settings or TableSettings()
        leases = Leases(round(settings.lease_s * 1000))
        self._desk = Desk(State(), settings, leases, rules)
        self.operations: Counter[str] = Counter()  # asked of this server
        self.refused: Counter[str] = Counter()  # by code

    @property
    def settings(self) -> TableSettings:
        """May be set while it runs: holds for leases that are renewed and picks that are made from then on."""
        return self._desk.settings

    @settings.setter
    def settings(self, settings: TableSettings) -> None:
        self._desk.settings = settings
        self._desk.leases.length_ms = round(settings.lease_s * 1000)
        for cluster in self._desk.state.clusters.values():
            cluster.told = None

    @property
    def revision(self) -> int:
        return self._desk.state.revision

    def decide(self, op: str, arguments: Struct, now_ms: int, *, may: Collection[str]) -> Decision:
        """`may`: names on which who asks has the right (`directory/rights.py`)."""
        self.operations[op] += 1
        try:
            return _DECIDES[op](self._desk, arguments, now_ms, may)
        except FairleadError as refusal:
            self.refused[refusal.code] += 1
            raise
        except KeyError:
            if op in _DECIDES:
                raise
            raise BadParameter(f"{op[:60]!r} changes nothing in the directory: ask it.") from None

    def ask(self, op: str, arguments: Struct, now_ms: int) -> Answer:
        """Answer a question from the tables as they are here."""
        self.operations[op] += 1
        read = READS.get(op)
        if read is not None:
            return read(self._desk, arguments)
        if op != "status":
            raise BadParameter(f"{op[:60]!r} is no question.")
        return self._status(now_ms)

    def apply(self, change: Change) -> bool:
        """Do what was decided. False: it was done before. ValueError: a change before it is missing."""
        state = self._desk.state
        number = change["r"]
        if number <= state.revision and self._desk.rules.apply_once:
            return False
        if number > state.revision + 1:
            raise ValueError(f"change {number} of the directory comes after {state.revision}")
        state.revision = number
        apply_change(state, change, self._desk.rules)
        if change["c"] == "expired":
            self._desk.leases.forget(change["broker"])
        return True

    # time

    def begin(self, now_ms: int) -> None:
        """This server leads: brokers that were alive have a whole lease to say that they still are."""
        brokers = self._desk.state.brokers
        self._desk.leases.begin((name for name, entry in brokers.items() if entry.leased), now_ms)

    def end(self) -> None:
        self._desk.leases.begin((), 0)

    @property
    def next_ms(self) -> int | None:
        """When `tick` should be called; None: nothing waits for a time."""
        state = self._desk.state
        times = []
        if (lease := self._desk.leases.next_ms) is not None:
            times.append(lease)
        for place in islice(state.reservations.values(), 1):  # they are in the order in which they end
            times.append(place.until_ms)
        if state.suspects:
            times.append(min(state.suspects.values()))
        if state.moving:
            times.append(min(state.moving.values()))
        return min(times, default=None)

    def tick(self, now_ms: int) -> list[Change]:
        """What has ended by now, as changes to write and apply."""
        state, desk = self._desk.state, self._desk
        changes = []
        for name in desk.leases.over(now_ms):
            if name in state.brokers and state.brokers[name].leased:
                changes.append(desk.change("expired", broker=name))
            else:
                desk.leases.forget(name)
        lapsed: list[list[str]] = []
        for key, place in islice(state.reservations.items(), LAPSE_BATCH):
            if place.until_ms > now_ms:
                break
            lapsed.append(list(key))
        if lapsed:
            changes.append(desk.change("lapsed", reservations=lapsed))
        if trusted := [name for name, until in state.suspects.items() if until <= now_ms]:
            changes.append(desk.change("trusted", brokers=trusted))
        if stay := [name for name, until in state.moving.items() if until <= now_ms]:
            changes.append(desk.change("stay", brokers=stay))
        return desk.decided(changes).changes

    # checkpoints

    def snapshot(self) -> dict[str, Any]:
        """The replicated state in plain values; equal wherever the same changes were applied."""
        return self._desk.state.snapshot()

    def restore(self, kept: dict[str, Any]) -> None:
        self._desk.state = State.restored(kept)

    def _status(self, now_ms: int) -> Answer:
        """What a test or an operator wants to see (DIR-81); long lists are cut."""
        state = self._desk.state
        most = 1000
        return {
            "revision": state.revision,
            "brokers": len(state.brokers),
            "clusters": len(state.clusters),
            "apps": len(state.apps),
            "connections": state.links,
            "picks": state.picks,
            "picks_by_cluster": {name: cluster.picks for name, cluster in islice(state.clusters.items(), most)},
            "operations": dict(self.operations),
            "refused": dict(self.refused),
            "rotations": [
                {"cluster": cluster, "app": app, "last": turn.last, "owed": dict(turn.owed)}
                for (cluster, app), turn in islice(reversed(state.turns.items()), most)
            ],
            "reserved": len(state.reservations),
            "reservations": [
                {
                    "app": app,
                    "reservation": request,
                    "cluster": place.cluster,
                    "broker": place.broker,
                    "left_s": max(0, place.until_ms - now_ms) / 1000,
                }
                for (app, request), place in islice(state.reservations.items(), most)
            ],
            "failures": state.failures,
            "failures_by_broker": {
                name: {"failures": entry.failures, "reason": entry.reason, "reporters": list(entry.reports)}
                for name, entry in islice(state.brokers.items(), most)
                if entry.failures
            },
            "suspects": {name: max(0, until - now_ms) / 1000 for name, until in state.suspects.items()},
            "leases": self._desk.leases.left_s(now_ms),
        }
