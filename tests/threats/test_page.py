"""The page of threats: every line of it is shown by tests that exist, and every test of this folder stands on it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
PAGE = TESTS.parent / "docs" / "threat-model.md"
COLUMNS = "| threat | what stops it | tests |"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
OPEN_RISK = "**Open risk.**"


@cache
def named_in(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def rows() -> list[str]:
    """The lines of the tables of threats."""
    found: list[str] = []
    in_table = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line == COLUMNS:
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("|---"):
            found.append(line)
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_line_is_shown_by_tests_that_exist(row: str) -> None:
    assert row.count(" | ") == 2, "threat, what stops it, tests"
    named = NAMED.findall(row.rpartition(" | ")[2])
    assert named or OPEN_RISK in row, "no test is named, and it is not said that this is open"
    for file, name in named:
        assert (TESTS / file).is_file(), f"there is no tests/{file}"
        assert name in named_in(TESTS / file), f"there is no {name} in tests/{file}"


def test_every_test_of_this_folder_stands_on_the_page() -> None:
    here = {
        (f"threats/{file.name}", name)
        for file in Path(__file__).parent.glob("test_*.py")
        if file != Path(__file__)
        for name in named_in(file)
    }
    named = {one for row in rows() for one in NAMED.findall(row)}
    assert len(rows()) > 50
    assert not here - named, "a test that shows no line of the page"
