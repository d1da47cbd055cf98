"""The server's log: one line per event, to standard error and to `DATA/log/fairlead.log`.

`2026-01-31T12:00:00.123Z info     router: active, 1.4 ms after its predecessor stopped pid=4711`
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error")
FILE_BYTES_MAX: Final = 16 << 20


def line(now_s: float, level: str, who: str, text: str, facts: dict[str, Any]) -> str:
    """How one event is written."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s))
    tail = "".join(f" {key}={value}" for key, value in facts.items())
    return f"{stamp}.{int(now_s * 1000) % 1000:03d}Z {level:<8} {who}: {' '.join(text.split())}{tail}\n"


class Logbook:
    """Appends lines; a full disk or a closed terminal never stops the server."""

    def __init__(self, path: Path, level: str, *, to_stderr: bool = True) -> None:
        self.path = path
        self._threshold = LEVELS.index(level)
        self._to_stderr = to_stderr
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, level: str, who: str, text: str, **facts: Any) -> None:
        if level in LEVELS and LEVELS.index(level) < self._threshold:
            return
        whole = line(time.time(), level, who, text, facts)
        with contextlib.suppress(OSError):
            os.write(self.fd, whole.encode("utf-8", "replace"))
        if self._to_stderr:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(whole)
                sys.stderr.flush()

    def info(self, who: str, text: str, **facts: Any) -> None:
        self.write("info", who, text, **facts)

    def warning(self, who: str, text: str, **facts: Any) -> None:
        self.write("warning", who, text, **facts)

    def error(self, who: str, text: str, **facts: Any) -> None:
        self.write("error", who, text, **facts)

    def turn_over(self) -> None:
        """Begin a new file when this one has become long; one old file is kept."""
        with contextlib.suppress(OSError):
            if os.fstat(self.fd).st_size < FILE_BYTES_MAX:
                return
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            fresh = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.dup2(fresh, self.fd, inheritable=False)
            os.close(fresh)

    def tail(self, lines: int) -> str:
        """The last lines, for the operator's eyes when something would not start."""
        with contextlib.suppress(OSError):
            return "\n".join(self.path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""
