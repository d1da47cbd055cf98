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
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.runtime import extensions
from fairlead.store.edge.segment import TMPFS, remove_directory
from scripts.requirements import all_ids

STATES = ("shown", "scaled", "half")
STORES = f"fairlead-{os.getuid()}-*"
BEFORE = pytest.StashKey[set[Path]]()


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
    if out := config.getoption("--requirements-out"):
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
        if store.name not in mapped:
            remove_directory(store)


def pytest_report_header() -> str:
    return f"fairlead: {extensions.sentence()}"


def has_compiler() -> bool:
    configured = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return any(shutil.which(name) for name in (configured, "cc", "gcc", "clang"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = all_ids()
    for item in items:
        for id_, state, _ in requirements_of(item):
            if id_ not in known or state not in STATES:
                raise pytest.UsageError(f"{item.nodeid}: there is no requirement {id_}, or no state {state!r}")


def requirements_of(item: pytest.Item) -> list[tuple[str, str, str]]:
    """(id, state, note) for each requirement mark of a test; `scaled` and `half` marks lower the state of all.

    The requirements speak of servers, not of their parts: a test without real processes shows half of one at most.
    """
    found = []
    inside = "processes" not in item.path.parts
    for mark in item.iter_markers("requirement"):
        state = mark.kwargs.get("state", "shown")
        for lower in ("scaled", "half"):
            if state == "shown" and item.get_closest_marker(lower):
                state = lower
        found += [(id_, "half" if inside else state, mark.kwargs.get("note", "")) for id_ in mark.args]
    return found


class RequirementsReport:
    """Remembers how each marked test ended, and writes it all down at the end."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.marks: dict[str, list[tuple[str, str, str]]] = {}
        self.outcomes: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.marks = {item.nodeid: requirements_of(item) for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            before = self.outcomes.get(report.nodeid, "passed")
            self.outcomes[report.nodeid] = report.outcome if before == "passed" else before

    def pytest_sessionfinish(self) -> None:
        table: dict[str, list[tuple[str, str, str, str]]] = {}
        for test, marks in self.marks.items():
            for id_, state, note in marks:
                table.setdefault(id_, []).append((test, self.outcomes.get(test, "not run"), state, note))
        self.out.write_text(json.dumps(table, indent=1, sort_keys=True), encoding="utf-8")
