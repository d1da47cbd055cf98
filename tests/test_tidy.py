"""The promises of the tree itself: machines only compute, and nothing in it points at somebody's computer."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fairlead"

# What lives here may touch sockets, files, clocks and processes; everything else only computes.
EDGE_FOLDERS = {"edge", "aio", "sync", "bench", "cli", "runtime", "testing", "pipeline"}
EDGE_FILES = {"__init__.py", "__main__.py", "client/identity.py", "security/passwords.py", "security/users.py"}

WORLD = {
    *("asyncio", "uvloop", "trio", "threading", "multiprocessing", "concurrent", "subprocess", "signal"),
    *("socket", "ssl", "select", "selectors", "socketserver", "http", "urllib.request"),
    *("os", "io", "pathlib", "tempfile", "shutil", "glob", "fcntl", "mmap"),
    *("time", "datetime", "sched", "random", "secrets", "uuid", "logging"),
}
ALLOWED = {
    "broker/turn.py": {"os", "select", "time"},  # the plain twin of the compiled duty cycle waits and wakes
    "security/certificates.py": {"ssl"},  # reads dates the way `ssl` writes them
    "cluster/cron.py": {"datetime"},  # calendar arithmetic; the time is handed in
    "store/arena.py": {"os"},  # gives memory to the segment it is handed
    "store/ring.py": {"fcntl"},  # the plain twin of the atomics is a byte-range lock
    "wire/codec.py": {"logging"},  # says once that the compiled codec is missing
}

TEXT = {"", ".cfg", ".json", ".jsonl", ".md", ".pxd", ".py", ".pyi", ".pyx", ".svg", ".toml", ".txt", ".yaml"}
SOMEBODYS_PATH = re.compile(r"(?<![\w.~])/(?:work|home|root|Users|mnt)/[\w.-]+")


def machines() -> list[Path]:
    return [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not EDGE_FOLDERS & set(path.relative_to(SOURCE).parts[:-1])
        and path.relative_to(SOURCE).as_posix() not in EDGE_FILES
        and "build" not in path.relative_to(SOURCE).parts
    ]


@pytest.mark.parametrize("path", machines(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_machine_does_not_reach_for_the_world(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    reached = {module for module in imported(path) if module in WORLD}
    if uses_only_the_environment(path):
        reached -= {"os"}  # asking for FAIRLEAD_PURE is the one question a machine may put to the world
    assert reached <= ALLOWED.get(name, set()), f"{name} imports {', '.join(sorted(reached))}: move that to an edge"


@pytest.mark.parametrize("path", machines(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_machine_says_at_the_door_what_it_is_for(path: Path) -> None:
    if path.name != "__init__.py":
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_nothing_in_the_tree_points_at_somebodys_computer() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (match := SOMEBODYS_PATH.search(line))
    ]
    assert not found


def test_links_between_pages_lead_somewhere() -> None:
    found = []
    for page in (path for path in texts() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z+]+:", target) and not (page.parent / target).exists():
                found.append(f"{page.relative_to(ROOT)}: {target}")
    assert not found


def uses_only_the_environment(path: Path) -> bool:
    uses = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    ]
    return all(node.attr == "environ" for node in uses)


def imported(path: Path) -> Iterator[str]:
    """All modules a file imports, wherever in it, and their packages; those only for types do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for child in branch.body
        for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in (alias.name, alias.name.partition(".")[0]))
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (node.module, node.module.partition(".")[0])


def texts() -> Iterator[Path]:
    """Every text file that belongs to the project: what git would commit."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = ROOT / name
        if path.suffix in TEXT and path.is_file():
            yield path


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION


def test_the_example_of_the_readme_is_as_short_as_it_says() -> None:
    (example,) = re.findall(
        r"## Fifteen lines\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S
    )
    ast.parse(example)
    assert len(example.splitlines()) == 15
