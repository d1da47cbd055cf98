"""For the whole suite: is the compiled code really under test, and which requirement does each test show?

A run without the extensions would pass, and prove nothing about them. So a machine that has a C compiler must
have built them, unless FAIRLEAD_PURE=1 asks for the plain-Python twins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.runtime import extensions
from fairlead.store.edge.segment import TMPFS, remove_directory
from scripts.requirements import all_ids

STATES = ("shown", "scaled", "half")
REQUIREMENT = "requirement"

# These speak of several nodes, of a failover, or of clocks that differ. Only a test with the mark `nodes`, or in one of
# the folders below, shows them; any other shows half of them at most, whatever its mark says.
SEVERAL_NODES = {
    f"CLU-{number}"
    for number in (
        *(1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 21, 23, 25, 36, 41, 42, 61, 62, 63, 67, 69, 72, 75, 76, 77, 79),
        *(84, 86, 87, 97, 104, 112, 113, 114, 116, 118, 119, 124, 127, 134, 155, 162, 172, 178, 180, 181, 182, 183),
        *(184, 185, 192, 196, 202, 203, 205, 206, 208),
    )
}
WITH_NODES = {
    *(("processes", "cluster"), ("cluster", "forms"), ("cluster", "upgrade")),
    *(("tests", "directory_requirements"), ("directory", "client")),
    *(("tests", "feeds_requirements"), ("processes", "feeds")),
}
# These speak of an end of a tunnel alone, whose packets a test may hand it itself.
OF_ONE_END = {f"TUN-{number}" for number in (18, 19, 69, 72, 74, 75, 81, 84, 88)}
MACHINES = {("tunnel", "end"), ("tunnel", "gateway")}
# These look for what was lost, doubled or damaged: what they find is not to be tried away, unless it was only time.
STRICT = {"simulation", "replication", "journal", "store"}
STRICT_FILES = {
    *("test_crash.py", "test_crashing.py", "test_soak.py", "test_exactly_once.py", "test_carrying.py"),
    *("test_transactions.py", "test_laws.py", "test_chaos.py", "test_failover.py", "test_processes.py"),
}
CLOCK = ["Timeout", "monotonic", r"loop\.time", "not reached", "in vain", "come about", "in time", "come to that"]
# What `make test` leaves to `make test-full`, by the time it was seen to take: files, or tests of them.
FULL = Path(__file__).with_name("full.txt")
STORES = f"fairlead-{os.getuid()}-*"
YOUNG_S = 60
BEFORE = pytest.StashKey[set[Path]]()
os.environ.setdefault("FAIRLEAD_CONSOLE_ENABLED", "false")  # servers of tests have one only where it is tested


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirements-out", metavar="FILE", help="write requirement -> [test, outcome, state, note] as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not extensions.is_pure() and extensions.missing() and has_compiler():
        raise pytest.UsageError(
            f"{', '.join(extensions.missing())}: not built, though there is a C compiler. Run `make build`, "
            "or FAIRLEAD_PURE=1 to test the plain-Python twins"
        )
    if (out := config.getoption("--requirements-out")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RequirementsReport(Path(out)), "requirements-report")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEFORE] = set(TMPFS.glob(STORES))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests that kill a server for good leave its store behind; what nobody has mapped goes when the suite ends."""
    if hasattr(session.config, "workerinput"):
        return  # others still work
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped |= set(re.findall(r"fairlead-\d+-[0-9a-f]+", maps.read_text()))
    for store in set(TMPFS.glob(STORES)) - session.config.stash[BEFORE]:
        with suppress(OSError):  # a young one may be of a server that another run of the suite is starting
            if store.name not in mapped and time.time() - store.stat().st_mtime > YOUNG_S:
                remove_directory(store)


def pytest_report_header() -> str:
    return f"fairlead: {extensions.sentence()}"


def has_compiler() -> bool:
    configured = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return any(shutil.which(name) for name in (configured, "cc", "gcc", "clang"))


@pytest.hookimpl(tryfirst=True)  # marks that -m asks for must be there before it asks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = all_ids()
    full = (
        set() if any("::" in argument for argument in config.args) else left_to_full(items)
    )  # who names a test gets it
    tries = config.getoption("reruns", None)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in full or name.partition("::")[0] in full:
            item.add_marker(pytest.mark.full)
        if tries and (STRICT & set(item.path.parts) or item.path.name in STRICT_FILES):
            item.add_marker(pytest.mark.flaky(reruns=tries, only_rerun=CLOCK))
        for id_, state, note in requirements_of(item):
            item.user_properties.append((REQUIREMENT, (id_, state, note)))  # travels with its reports
            if id_ not in known or state not in STATES:
                raise pytest.UsageError(f"{item.nodeid}: there is no requirement {id_}, or no state {state!r}")


def left_to_full(items: list[pytest.Item]) -> set[str]:
    """The names in the list. Each must be there, as far as that can be seen now: the list must not rot."""
    lines = (line.partition("#")[0].strip() for line in FULL.read_text(encoding="utf-8").splitlines())
    names = {line for line in lines if line}
    there = {item.nodeid.partition("[")[0] for item in items}
    files = {name.partition("::")[0] for name in there}
    lost = [name for name in names if not (FULL.parent.parent / name.partition("::")[0]).is_file()]
    lost += [name for name in names if name.partition("::")[0] in files and name not in there | files]
    if lost:
        raise pytest.UsageError(f"{FULL.name} names {', '.join(lost)}: no such test")
    return names


def requirements_of(item: pytest.Item) -> list[tuple[str, str, str]]:
    """(id, state, note) for each requirement mark of a test; `scaled` and `half` marks lower the state of all.

    `requirement(id, half="why")` is short for `requirement(id, state="half", note="why")`; `scaled=` likewise.
    The requirements speak of servers, not of their parts: a test without real processes shows half of one at most (a
    tunnel's: without real sockets).
    """
    found = []
    nodes = item.get_closest_marker("nodes") is not None or item.path.parent.parts[-2:] in WITH_NODES
    inside = not nodes and "processes" not in item.path.parts and not has_real_sockets(item.path)
    for mark in item.iter_markers("requirement"):
        facts = dict(mark.kwargs)
        state, note = facts.pop("state", "shown"), facts.pop("note", "")
        for lower in ("scaled", "half"):
            if lower in facts:
                state, note = lower, facts.pop(lower)
            elif state == "shown" and item.get_closest_marker(lower):
                state = lower
        if facts:
            raise pytest.UsageError(f"{item.nodeid}: a requirement has no {', '.join(facts)}")
        for id_ in mark.args:
            lowered = (inside and id_ not in OF_ONE_END) or (id_ in SEVERAL_NODES and not nodes)
            found.append((id_, "half" if lowered else state, note))
    return found


def has_real_sockets(path: Path) -> bool:
    """Tunnels are shown on sockets and proxies, in as many processes as it takes; their machines are not enough."""
    return "tunnel" in path.parts and path.parent.parts[-2:] not in MACHINES


class RequirementsReport:
    """Remembers how each marked test ended, and writes it all down at the end."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.marks: dict[str, list[tuple[str, str, str]]] = {}
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.marks[report.nodeid] = [tuple(mark) for name, mark in report.user_properties if name == REQUIREMENT]
        if str(report.outcome) == "rerun":
            return  # the second try counts
        if report.when == "call" or report.outcome != "passed":
            before = self.outcomes.get(report.nodeid, "passed")
            self.outcomes[report.nodeid] = report.outcome if before == "passed" else before

    def pytest_sessionfinish(self) -> None:
        table: dict[str, list[tuple[str, str, str, str]]] = {}
        for test, marks in self.marks.items():
            for id_, state, note in marks:
                table.setdefault(id_, []).append((test, self.outcomes.get(test, "not run"), state, note))
        self.out.write_text(json.dumps(table, indent=1, sort_keys=True), encoding="utf-8")
