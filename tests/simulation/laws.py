"""The laws. They look on from outside and know everything; the machines know nothing of them.

1. Nothing safe is lost: whoever leads has everything any earlier primary found safe, in the same order.
2. No two confirms for one position, and one store confirms in an epoch.
3. Order of each producer, without gaps; a repeat takes effect once.
4. One primary serves at a time: none in an epoch after a higher one has served. (This one rests on clocks.)
5. A backup settles only what is safe.
6. No copy is given up: what a store has had of what is safe it keeps, until its disk is lost.
7. After healing all converges: every send is confirmed, the group is whole, its members are equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlead.cluster.replication.record import node_of
from tests.simulation.service import SEND, unpacked
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from fairlead.cluster.replication.record import ControlRecord
    from tests.simulation.disk import SimLog


class Chosen:
    """What of a group's log was ever found safe."""

    def __init__(self) -> None:
        self.chain: list[bytes] = [b""]
        self.epochs: list[int] = []
        self.numbers: dict[str, int] = {}
        self.sends: set[tuple[str, int]] = set()
        self.served = 0
        self.confirming: dict[int, str] = {}
        self.newest: ControlRecord | None = None
        self.kept: dict[str, int] = {}  # store -> so much of what is safe it has had on its disk


class Laws:
    def __init__(self, world: World, *, leases_hold: bool = True, converges: bool = True) -> None:
        self.world, self.leases_hold, self.converges = world, leases_hold, converges
        self.groups: dict[str, Chosen] = {}
        self.lost_disks: dict[str, int] = {}
        self.witness: Callable[[str, Any], None] = lambda node, event: None

    def of(self, group: str) -> Chosen:
        return self.groups.setdefault(group, Chosen())

    def hold(self, fact: bool, law: str, *details: object) -> None:
        if not fact:
            raise Broken(f"{law}: {' '.join(map(str, details))}")

    def disks_lost(self, node: str) -> int:
        return self.lost_disks.get(node, 0)

    def loses_disk(self, node: str) -> None:
        self.lost_disks[node] = self.disks_lost(node) + 1
        for chosen in self.groups.values():
            chosen.kept = {store: upto for store, upto in chosen.kept.items() if node_of(store) != node}

    def strike(self, node: str, event: Any) -> None:
        self.witness(node, event)

    def tells(self, node: str) -> None:
        self.world.tally("told")
        self.witness(node, "told")

    # --- while it runs

    def leads(self, group: str, node: str, epoch: int, log: SimLog) -> None:
        # Only what *earlier* epochs made safe: one that slept through its own election may still believe in an old
        # epoch. It can neither serve (its lease ran out) nor confirm (the members are bound to a newer one).
        chosen = self.of(group)
        upto = bisect_left(chosen.epochs, epoch)
        self.hold(
            log.last >= upto and log.chain[upto] == chosen.chain[upto],
            "nothing safe is lost",
            f"{node} leads {group} in epoch {epoch} with {log.last} records, but {upto} were safe",
        )

    def is_safe(self, group: str, node: str, epoch: int, log: SimLog, upto: int) -> None:
        chosen = self.of(group)
        shared = min(upto, len(chosen.epochs))
        self.hold(log.chain[shared] == chosen.chain[shared], "no two confirms for one position", node, epoch, shared)
        self.hold(chosen.confirming.setdefault(epoch, node) == node, "one primary confirms in an epoch", node, epoch)
        for index in range(len(chosen.epochs) + 1, upto + 1):
            self._enter(chosen, unpacked(log.entries[index - 1]))
            chosen.chain.append(log.chain[index])
            chosen.epochs.append(log.epochs[index - 1])
        if shared < upto:
            self.strike(node, "safe")

    def _enter(self, chosen: Chosen, entry: Any) -> None:
        if entry.kind == SEND:
            key = entry.session, entry.number
            self.hold(key not in chosen.sends, "a repeat takes effect once", *key)
            before = chosen.numbers.get(entry.session, 0)
            self.hold(entry.number == before + 1, "order of each producer", *key, "after", before)
            chosen.sends.add(key)
            chosen.numbers[entry.session] = entry.number

    def settles(self, group: str, store: str, log: SimLog, upto: int) -> None:
        chosen = self.of(group)
        self.hold(
            upto <= len(chosen.epochs) and log.chain[upto] == chosen.chain[upto],
            "a backup settles only what is safe",
            store,
            upto,
        )

    def keeps(self, group: str, store: str, log: SimLog) -> None:
        """No confirm hangs on it as long as enough others have it; a forced promotion does (CLU-139, CLU-151)."""
        chosen = self.of(group)
        upto = chosen.kept.get(store, 0)
        self.hold(
            log.durable >= upto and log.chain[upto] == chosen.chain[upto],
            "no copy is given up",
            f"{store} had {upto} records that are safe, and has {log.durable} records",
        )
        chosen.kept[store] = max(upto, min(log.settled, log.durable, len(chosen.epochs)))

    def serves(self, group: str, node: str, epoch: int) -> None:
        chosen = self.of(group)
        self.hold(
            epoch >= chosen.served or not self.leases_hold,
            "one primary serves at a time",
            f"{node} serves {group} in epoch {epoch} after {chosen.served}",
        )
        chosen.served = max(epoch, chosen.served)

    def records(self, group: str, record: ControlRecord) -> None:
        chosen = self.of(group)
        if chosen.newest is None or record.stamp > chosen.newest.stamp:
            chosen.newest = record

    # --- when all is healed

    def confirmed(self, group: str, session: str, numbers: set[int]) -> None:
        sends = self.of(group).sends
        lost = sorted(number for number in numbers if (session, number) not in sends)
        self.hold(not lost, "nothing confirmed is lost", session, lost)

    def converged(self, fact: bool, *details: object) -> None:
        self.hold(fact or not self.converges, "all converges", *details)
