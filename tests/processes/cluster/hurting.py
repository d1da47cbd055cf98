"""What is done to a cluster, one function for each: it happens, lasts for a while, and is over when it returns."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from fairlead.errors import Unavailable
from fairlead.runtime.local_cluster import descendants
from fairlead.testing.cluster import Cluster

LEASE_S: Final = 3.0
MARGIN_S: Final = 1.0
PRIMARY_S: Final = 8.0  # so long it is waited for one to hurt
DIED_S: Final = 2.0  # budget of a failover whose keeper says that the primary is dead
SILENT_S: Final = LEASE_S + MARGIN_S + 1.0  # and of one where nobody can know


@dataclass
class Hurt:
    """One thing done: when, to which group, and how long its clients may wait for it (0: no budget)."""

    what: str
    group: str
    at_s: float
    node: str = ""
    budget_s: float = 0.0
    over_s: float = 0.0
    waited_s: float = 0.0  # the longest wait of a client of the group


class Hurting:
    """Does it. Several may be done at once, in threads; starting and stopping is one at a time."""

    def __init__(self, cluster: Cluster, groups: list[str], members: list[str]) -> None:
        self.cluster = cluster
        self.groups = groups
        self.members = members
        self._lock = threading.Lock()

    def do(self, what: str, chance: Random) -> Hurt | None:
        """None: there was nobody to do it to."""
        group = chance.choice(self.groups)
        try:
            hurt = HURTS[what](self, group, chance)
        except Unavailable:
            return None
        if hurt is not None:
            hurt.over_s = time.monotonic()
        return hurt

    # --- Processes ------------------------------------------------------------------------------------------------
    def kill_primary(self, group: str, chance: Random) -> Hurt | None:
        return self._kill_process("kill-primary", self._primary(group), group, DIED_S)

    def kill_backup(self, group: str, chance: Random) -> Hurt | None:
        return self._kill_process("kill-backup", self._backup(group, chance), group, DIED_S)

    def _kill_process(self, what: str, node: str, group: str, budget_s: float) -> Hurt | None:
        if not node:
            return None
        hurt = Hurt(what, group, time.monotonic(), node, budget_s)
        self.cluster.kill_process(node)
        return hurt

    def kill_host(self, group: str, chance: Random) -> Hurt | None:
        """All processes of the primary's node at once: nobody is left to tell of it."""
        return self._away("kill-host", self._primary(group), group, chance.uniform(0.2, 6.0), SILENT_S)

    def kill_agent(self, group: str, chance: Random) -> Hurt | None:
        return self._kill_child("agent", group, chance)

    def kill_manager(self, group: str, chance: Random) -> Hurt | None:
        return self._kill_child("manager", group, chance)

    def _kill_child(self, role: str, group: str, chance: Random) -> Hurt | None:
        node = chance.choice([name for name in self.cluster.nodes if name.startswith("cm")])
        pid = self.cluster.local.pid(node)
        found = [one for one in (descendants(pid) if pid else []) if f"runtime.child\0{role}\0" in _command(one)]
        if not found:
            return None
        hurt = Hurt(f"kill-{role}", group, time.monotonic(), node)
        with suppress(ProcessLookupError):
            os.kill(found[0], signal.SIGKILL)
        return hurt

    def kill_cm(self, group: str, chance: Random) -> Hurt | None:
        node = chance.choice([name for name in self.cluster.nodes if name.startswith("cm")])
        return self._away("kill-cm", node, group, chance.uniform(0.1, 3.0), 0.0)

    def _away(self, what: str, node: str, group: str, seconds: float, budget_s: float) -> Hurt | None:
        if not node:
            return None
        hurt = Hurt(what, group, time.monotonic(), node, budget_s)
        with self._lock:
            self.cluster.kill(node)
        time.sleep(seconds)
        self._start(node)
        return hurt

    def empty_backup(self, group: str, chance: Random) -> Hurt | None:
        """A backup's node comes back with an empty disk."""
        node = self._backup(group, chance)
        if not node:
            return None
        hurt = Hurt("empty-backup", group, time.monotonic(), node)
        with self._lock:
            self.cluster.kill(node)
        for directory in self.cluster.data(node).glob("group-*"):
            shutil.rmtree(directory)
        self._start(node)
        return hurt

    def restart_all(self, group: str, chance: Random) -> Hurt | None:
        """The power of all hosts fails, and comes back."""
        hurt = Hurt("restart-all", group, time.monotonic())
        with self._lock:
            for node in self.cluster.nodes:
                if self.cluster.local.pid(node) is not None:
                    self.cluster.kill(node)
        names = list(self.cluster.nodes)
        chance.shuffle(names)
        for node in names:
            self._start(node)
        return hurt

    def _start(self, node: str) -> None:
        with self._lock:
            if self.cluster.local.pid(node) is None:
                self.cluster.start(node)

    # --- Silence --------------------------------------------------------------------------------------------------
    def freeze_primary(self, group: str, chance: Random) -> Hurt | None:
        return self._freeze("freeze-primary", self._primary(group), group, chance, SILENT_S)

    def freeze_backup(self, group: str, chance: Random) -> Hurt | None:
        return self._freeze("freeze-backup", self._backup(group, chance), group, chance, SILENT_S)

    def _freeze(self, what: str, node: str, group: str, chance: Random, budget_s: float) -> Hurt | None:
        if not node:
            return None
        hurt = Hurt(what, group, time.monotonic(), node, budget_s)
        self.cluster.freeze(node)
        try:
            time.sleep(chance.choice((chance.uniform(0.3, 3.0), chance.uniform(4.0, 7.0))))
        finally:
            self.cluster.thaw(node)
        return hurt

    def cut_primary(self, group: str, chance: Random) -> Hurt | None:
        return self._cut("cut-primary", self._primary(group), chance, group)

    def cut_backup(self, group: str, chance: Random) -> Hurt | None:
        return self._cut("cut-backup", self._backup(group, chance), chance, group)

    def _cut(self, what: str, node: str, chance: Random, group: str) -> Hurt | None:
        """From everybody both ways, or one way, or from the other members only."""
        if not node:
            return None
        way = chance.choice(("whole", "whole", "deaf", "dumb", "members"))
        others = [name for name in self.members if name != node]
        pairs = {
            "whole": [(node, "*"), ("*", node)],
            "deaf": [("*", node)],
            "dumb": [(node, "*")],
            "members": [pair for other in others for pair in ((node, other), (other, node))],
        }[way]
        hurt = Hurt(f"{what} ({way})", group, time.monotonic(), node, SILENT_S if way == "whole" else 0.0)
        try:
            for sender, receiver in pairs:
                self._fault({"fault": "cut", "from": sender, "to": receiver})
            hurt.at_s = time.monotonic()
            time.sleep(chance.uniform(1.0, 7.0))
        finally:
            self._fault({"fault": "heal"})
        return hurt

    def cut_kill(self, group: str, chance: Random) -> Hurt | None:
        """The primary dies while it reaches client managers and votes, but not one of the other members."""
        node = self._primary(group)
        if not node:
            return None
        others = [name for name in self.members if name != node]
        try:
            for other in others:
                self._fault({"fault": "cut", "from": node, "to": other})
                self._fault({"fault": "cut", "from": other, "to": node})
            time.sleep(chance.uniform(0.1, 2.0))
            return self._kill_process("cut-kill", node, group, 0.0)
        finally:
            self._fault({"fault": "heal"})

    def _fault(self, words: dict[str, Any]) -> None:
        """By each node's own door: no question crosses what was cut."""
        for name in self.cluster.nodes:
            with suppress(Unavailable):
                self.cluster.ask("fault", [name], **words)

    # --- Disks ----------------------------------------------------------------------------------------------------
    def slow_disk(self, group: str, chance: Random) -> Hurt | None:
        return self._disk("slow-disk", f"slow {chance.choice((20, 100, 500))}", group, chance)

    def fill_disk(self, group: str, chance: Random) -> Hurt | None:
        return self._disk("fill-disk", "full", group, chance)

    def _disk(self, what: str, words: str, group: str, chance: Random) -> Hurt | None:
        leads = chance.random() < 0.5
        node = self._primary(group) if leads else self._backup(group, chance)
        if not node:
            return None
        hurt = Hurt(f"{what} ({'primary' if leads else 'backup'})", group, time.monotonic(), node)
        switch = self._disk_switch(node)
        switch.write_text(words)
        try:
            time.sleep(chance.uniform(1.0, 4.0))
        finally:
            switch.unlink(missing_ok=True)
        return hurt

    def slow_kill(self, group: str, chance: Random) -> Hurt | None:
        """The primary dies while every disk is slow, so that much more is under way than otherwise."""
        node = self._primary(group)
        if not node:
            return None
        switches = [self._disk_switch(name) for name in self.members]
        for switch in switches:
            switch.write_text(f"slow {chance.choice((50, 150))}")
        try:
            time.sleep(chance.uniform(0.5, 1.5))
            hurt = self._kill_process("slow-kill", node, group, 0.0)
            time.sleep(chance.uniform(0.0, 1.0))
        finally:
            for switch in switches:
                switch.unlink(missing_ok=True)
        return hurt

    def _disk_switch(self, node: str) -> Path:
        return self.cluster.directory / node / "disk"

    # --- Orders ---------------------------------------------------------------------------------------------------
    def hand_over(self, group: str, chance: Random) -> Hurt | None:
        before, to = self._primary(group), self._backup(group, chance)
        if not before or not to:
            return None
        hurt = Hurt("hand-over", group, time.monotonic(), before, DIED_S)
        self.cluster.ask("hand-over", [before], group=group, to=to)
        return hurt

    # --- Who ------------------------------------------------------------------------------------------------------
    def _primary(self, group: str) -> str:
        """Empty if nobody has led it for a while."""
        until_s = time.monotonic() + PRIMARY_S
        while not (found := self.cluster.primary(group)) and time.monotonic() < until_s:
            time.sleep(0.05)
        return found

    def _backup(self, group: str, chance: Random) -> str:
        found = self.cluster.backups(group)
        return chance.choice(found) if found else ""

    def heal(self) -> None:
        """Whatever was left undone."""
        self._fault({"fault": "heal"})
        for name in self.cluster.nodes:
            self.cluster.thaw(name)
            self._disk_switch(name).unlink(missing_ok=True)
            self._start(name)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


HURTS: Final[dict[str, Callable[[Hurting, str, Random], Hurt | None]]] = {
    "kill-primary": Hurting.kill_primary,
    "kill-backup": Hurting.kill_backup,
    "kill-host": Hurting.kill_host,
    "kill-agent": Hurting.kill_agent,
    "kill-manager": Hurting.kill_manager,
    "kill-cm": Hurting.kill_cm,
    "freeze-primary": Hurting.freeze_primary,
    "freeze-backup": Hurting.freeze_backup,
    "cut-primary": Hurting.cut_primary,
    "cut-backup": Hurting.cut_backup,
    "cut-kill": Hurting.cut_kill,
    "slow-disk": Hurting.slow_disk,
    "fill-disk": Hurting.fill_disk,
    "slow-kill": Hurting.slow_kill,
    "hand-over": Hurting.hand_over,
    "restart-all": Hurting.restart_all,
    "empty-backup": Hurting.empty_backup,
}
ON_DISKS: Final = ("slow-disk", "fill-disk", "slow-kill")
