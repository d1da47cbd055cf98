"""Writes docs/requirements.md: each numbered requirement of docs/spec, its state, and the tests that show it.

Runs the full suite and believes only tests that passed; a failing run writes nothing. `--from FILE` takes the
outcome of an earlier `pytest --requirements-out FILE` instead.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"
SPECIFICATIONS = {
    "SRV": ("server.md", "The messaging server"),
    "CLU": ("cluster.md", "The cluster"),
    "DIR": ("directory.md", "The directory"),
    "STR": ("streams.md", "Redundant message streams"),
    "TUN": ("tunnel.md", "The HTTP tunnel"),
}
STATES = {"shown": "shown", "scaled": "scaled down", "half": "half met", "not yet": "not yet"}  # best first
MARKED = re.compile(r"^\*\*(?P<id>[A-Z]{3}-\d+)(?:\*\* `(?P<tick>[^`]+)`|[. ]\s*(?P<title>[^*]+?)\.?\*\*)")

# requirement -> [test, outcome, state, note] of each test that is marked with it
Outcomes = dict[str, list[tuple[str, str, str, str]]]


class Requirement(NamedTuple):
    id: str
    name: str


def numbered(specification: str) -> Iterator[Requirement]:
    """The requirements of one specification, in its order."""
    file, _ = SPECIFICATIONS[specification]
    for line in (ROOT / "docs" / "spec" / file).read_text(encoding="utf-8").splitlines():
        if found := MARKED.match(line):
            name = found["tick"] or re.sub(r"\s*\(.*completion.*\)", "", found["title"])
            yield Requirement(found["id"], name)


def all_ids() -> set[str]:
    return {requirement.id for specification in SPECIFICATIONS for requirement in numbered(specification)}


def state_of(outcomes: list[tuple[str, str, str, str]]) -> str:
    """The best state a passed test shows."""
    passed = {state for _, outcome, state, _ in outcomes if outcome == "passed"}
    return next((state for state in STATES if state in passed), "not yet")


def page(outcomes: Outcomes) -> str:
    lines = [
        "# Requirements and the tests that show them",
        "",
        "<!-- Written by scripts/requirements.py (`make docs`) from a passing run of the suite; do not edit. -->",
        "",
        '*shown*: a test does what the "Observe" line of the requirement says. *scaled down*: the same with smaller',
        "numbers. *half met*: a part of it is built and tested; the note says which. *not yet*: not built, or not",
        "shown by a test.",
        "",
        "| specification | " + " | ".join(STATES.values()) + " | all |",
        "|---|" + "---:|" * (len(STATES) + 1),
    ]
    tables: list[str] = []
    for specification, (file, title) in SPECIFICATIONS.items():
        requirements = list(numbered(specification))
        states = [state_of(outcomes.get(requirement.id, [])) for requirement in requirements]
        counts = " | ".join(str(states.count(state)) for state in STATES)
        lines.append(f"| [{title}](spec/{file}) | {counts} | {len(requirements)} |")
        tables += ["", f"## {title}", ""]
        if set(states) == {"not yet"}:
            tables += [f"All {len(requirements)} requirements ({requirements[0].id} … {requirements[-1].id}): not yet."]
            continue
        tables += ["| id | name | state | tests |", "|---|---|---|---|"]
        for requirement, state in zip(requirements, states, strict=True):
            tests = cell(outcomes.get(requirement.id, []))
            tables.append(f"| {requirement.id} | {requirement.name} | {STATES[state]} | {tests} |")
    return "\n".join([*lines, *tables, ""])


def cell(outcomes: list[tuple[str, str, str, str]]) -> str:
    """Test functions, parameters left out, with what their marks say."""
    seen: dict[str, str] = {}
    for test, outcome, state, note in outcomes:
        if outcome == "passed":
            remark = "; ".join(part for part in (STATES[state] if state != "shown" else "", note) if part)
            seen.setdefault(test.partition("[")[0].removeprefix("tests/"), remark)
    return "<br>".join(f"`{test}`" + (f" ({remark})" if remark else "") for test, remark in sorted(seen.items()))


def run_suite(pytest_arguments: list[str]) -> Outcomes | None:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "requirements.json")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not long",
            f"--requirements-out={out}",
            *pytest_arguments,
        ]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            return None
        return read(out)


def read(file: Path) -> Outcomes:
    return {id_: [tuple(row) for row in rows] for id_, rows in json.loads(file.read_text(encoding="utf-8")).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="file", type=Path, help="take the outcomes from this file")
    parser.add_argument("pytest_arguments", nargs="*")
    arguments = parser.parse_args()
    outcomes = read(arguments.file) if arguments.file else run_suite(arguments.pytest_arguments)
    if outcomes is None:
        print("the suite did not pass; docs/requirements.md stays as it was", file=sys.stderr)
        return 1
    PAGE.write_text(page(outcomes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
