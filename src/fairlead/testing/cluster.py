"""A real cluster on a temporary directory, for tests: started, hurt and stopped."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fairlead.cluster.configuration.overview import facts_of, overview, primary_of
from fairlead.cluster.configuration.types import Carrier
from fairlead.errors import Unavailable
from fairlead.runtime.local_cluster import LocalCluster, Shape, descendants
from fairlead.store.edge.segment import remove_directory, tmpfs_directory
from fairlead.testing.ready import START_S


class Cluster:
    """Every node is a process of its own: `cm1` …, and `mm1` … that host all groups `a`, `b` … (`shared=False`: `a1`,
    `a2`, `b1` …, nodes of its own for each group).

        with Cluster(cms=2, groups=2) as cluster:
            ...  # cluster.url is for clients; cluster.kill(cluster.primary("a"))

    `essential` are further values of cluster.toml, such as {"lease_s": 1.0}, `settings` of settings.toml.
    """

    def __init__(
        self,
        cms: int = 2,
        groups: int = 2,
        backups: int = 1,
        *,
        witnesses: int = 0,
        carrier: Carrier = "tcp",
        shared: bool = True,
        managers: int = 1,
        faults: bool = False,
        essential: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        directory: Path | None = None,
        python: str = sys.executable,
        **more: Any,
    ) -> None:
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="fairlead-cluster-")
        self.directory = directory or Path(self._temporary.name if self._temporary else "")
        self.local = LocalCluster(self.directory, python)
        self._frozen: dict[str, list[int]] = {}
        if not self.local.exists:
            self.local.found(
                Shape(
                    cms=cms,
                    groups=groups,
                    backups=backups,
                    witnesses=witnesses,
                    carrier=carrier,
                    shared=shared,
                    managers=managers,
                    faults=faults,
                    essential=essential or {},
                    settings=settings or {},
                    **more,
                )
            )

    # -- life

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_all()
        finally:
            for name in self.nodes:
                remove_directory(tmpfs_directory(self.local.data(name)))  # what a killed server left
            if self._temporary is not None:
                self._temporary.cleanup()

    def start_all(self) -> None:
        """Start whatever does not run, and wait until all groups serve."""
        for name in reversed(self.nodes):
            if self.local.pid(name) is None:
                self.local.start(name)
        self.wait_serving()

    def stop_all(self) -> None:
        """In order; AssertionError if a node had to be killed."""
        for name in list(self._frozen):
            self.thaw(name)
        killed = self.local.stop()
        assert not killed, f"did not stop in time: {', '.join(killed)}\n{self.output(killed[0])}"

    def start(self, node: str) -> int:
        """Start one node again; its process id. Wait with `wait_serving` or `wait_in_sync`."""
        return self.local.start(node)

    def stop(self, node: str) -> None:
        """In order: what it leads is handed over."""
        killed = self.local.stop([node])
        assert not killed, f"{node} did not stop in time\n{self.output(node)}"

    # -- hurting it

    def kill(self, node: str) -> None:
        """SIGKILL for all processes of a node at once, keeper included: as if its host had lost power."""
        pid = self._pid(node)
        family = [pid, *descendants(pid)]
        self._frozen.pop(node, None)
        for one in family:
            _signal(one, signal.SIGKILL)
        self.local.stop([node])

    def kill_process(self, node: str) -> None:
        """SIGKILL for the member node's own process; its keeper tells the others, and starts it again."""
        children = descendants(self._pid(node))
        assert children, f"{node} has no process below its keeper"
        _signal(children[0], signal.SIGKILL)

    def freeze(self, node: str) -> None:
        """Stop all its processes where they are (SIGSTOP): alive, and saying nothing."""
        pid = self._pid(node)
        self._frozen[node] = [pid, *descendants(pid)]
        for one in self._frozen[node]:
            _signal(one, signal.SIGSTOP)

    def thaw(self, node: str) -> None:
        for one in reversed(self._frozen.pop(node, [])):
            _signal(one, signal.SIGCONT)

    def fault(self, kind: str, **facts: Any) -> None:
        """Disturb the bus (with `faults=True`): fault("cut", sender="mm1", receiver="mm2"), fault("heal")."""
        words = {"from": facts.pop("sender", "*"), "to": facts.pop("receiver", "*"), **facts}
        answers = self.local.ask({"do": "fault", "fault": kind, **words})["nodes"]
        refused = {name: answer["error"] for name, answer in answers.items() if not answer.get("ok", True)}
        assert not refused, refused

    # -- looking at it

    @property
    def nodes(self) -> list[str]:
        return self.local.names()

    @property
    def url(self) -> str:
        """All client managers, for clients that take the next one when one is lost."""
        return self.local.url

    def urls(self) -> list[str]:
        """One URL for each client manager."""
        return self.local.urls()

    def data(self, node: str) -> Path:
        return self.local.data(node)

    def output(self, node: str) -> str:
        """The end of what a node has printed."""
        return self.local.output(node)

    def ask(self, do: str, nodes: list[str] | None = None, **facts: Any) -> dict[str, Any]:
        """A question to all nodes, or these (docs/cluster.md, section 9)."""
        return self.local.ask({"do": do, **facts}, nodes)

    def status(self) -> dict[str, Any]:
        """Nodes, groups and warnings, as `fairlead cluster status --json` has them."""
        return overview(self.ask("status"))

    def facts(self, node: str, group: str | None = None) -> dict[str, Any]:
        """What a node says about itself, or about its member of a group."""
        found = facts_of(self.ask("status", [node])["nodes"][node])
        member: dict[str, Any] = found["groups"][group] if group else found
        return member

    def primary(self, group: str) -> str:
        """The node that serves a group; empty if nobody does."""
        return primary_of(self.ask("status"), group)

    def backups(self, group: str) -> list[str]:
        """Members of a group that are in sync and do not lead."""
        found = next(one for one in self.status()["groups"] if one["group"] == group)
        return [one["node"] for one in found["members"] if one["in_sync"] and one["node"] != found["primary"]]

    def move_primary(self, group: str, node: str) -> None:
        """Planned, without loss; returns when it leads."""
        before = self.primary(group)
        if before == node:
            return
        answer = self.ask("hand-over", [before], group=group, to=node)["nodes"][before]
        assert answer.get("ok", True), answer
        self.wait_until(lambda: self.primary(group) == node, f"{node} leads {group}")

    def change(self, node: str | None = None, **changes: Any) -> dict[str, Any]:
        """Change settings of the whole cluster at a node (any that runs)."""
        chosen = node or self.local.running()[0]
        answer: dict[str, Any] = self.ask("settings", [chosen], changes=changes)["nodes"][chosen]
        if not answer.get("ok", True):
            raise Unavailable(str(answer.get("error")))
        return answer

    def wait_serving(self, timeout_s: float = START_S) -> dict[str, Any]:
        """Until every group has a primary that serves, and all running nodes have told so."""
        return self.local.wait_serving(timeout_s)

    def wait_in_sync(self, group: str, count: int, timeout_s: float = START_S) -> None:
        """Until so many copies of a group are in sync, that of the primary included."""

        def enough() -> bool:
            found = next((one for one in self.status()["groups"] if one["group"] == group), None)
            return found is not None and bool(found["primary"]) and len(found["in_sync"]) >= count

        self.wait_until(enough, f"{count} copies of {group} are in sync", timeout_s)

    def wait_until(self, condition: Callable[[], bool], what: str = "it", timeout_s: float = START_S) -> None:
        """Look again and again; AssertionError with the status if it does not become true."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except Unavailable:
                pass
            assert time.monotonic() < until_s, f"not in {timeout_s:g} s: {what}; the status is {self._last_words()}"
            time.sleep(0.05)

    def _last_words(self) -> Any:
        try:
            return self.status()
        except Unavailable as error:
            return error

    def _pid(self, node: str) -> int:
        pid = self.local.pid(node)
        assert pid is not None, f"{node} does not run"
        return pid


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
