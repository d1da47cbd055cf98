"""`fairlead pipeline init`: a project of Spark's declarative pipelines, ready to run."""

from __future__ import annotations

import re
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from fairlead.errors import ConfigError
from fairlead.topics import compile as compile_pattern

__all__ = ["write_project"]

SUFFIX = ".in"
PROGRAMS = frozenset(("run",))


def write_project(directory: Path, *, destination: str, url: str) -> list[Path]:
    """Write it to a directory that is new or empty; the files."""
    directory = directory.absolute()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is there and not empty.")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            "A project is no place for a password: give FAIRLEAD_USER and FAIRLEAD_PASSWORD_FILE to ./run."
        )
    for name in filter(None, destination.split(",")):
        compile_pattern(name.strip())
    words = {
        "name": re.sub(r"[^a-z0-9_]+", "_", directory.name.lower()).strip("_") or "project",
        "storage": (directory / "storage").as_uri(),
        "destination": repr(destination),
        "url": repr(url),
        "bin": str(Path(sys.executable).parent),
    }
    files = []
    for name, text in _templates(resources.files("fairlead.pipeline") / "templates"):
        file = directory / name.removesuffix(SUFFIX)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(words), encoding="utf-8")
        if file.name in PROGRAMS:
            file.chmod(0o755)
        files.append(file)
    return files


def _templates(where: Traversable, under: str = "") -> list[tuple[str, str]]:
    found = []
    for one in sorted(where.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            found += _templates(one, f"{under}{one.name}/")
        elif one.name.endswith(SUFFIX):
            found.append((f"{under}{one.name}", one.read_text(encoding="utf-8")))
    return found
