"""The server's log: one line per event, to standard error and to `DATA/log/fairlead.log`.

`2026-01-31T12:00:00.123Z info     router: active, 1.4 ms after its predecessor stopped pid=4711`

As JSON, for programs that gather logs, the same line is an object: `time`, `level`, `role` (with `index` where there
are several), `message`, then whatever is known of `pid`, `connection`, `code` and others. Passwords in URLs are struck
out in both, and nothing a peer made up can look like a second line or move a terminal's cursor.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

if TYPE_CHECKING:
    from fairlead.runtime.settings import Log

LEVELS: Final = ("debug", "info", "warning", "error")
FILE_BYTES_MAX: Final = 16 << 20
LINE_CHARACTERS_MAX: Final = 16_384
Form = Literal["text", "json"]
_CREDENTIALS: Final = re.compile(r"(\w://)[^\s/@]+@")


def line(now_s: float, level: str, who: str, text: str, facts: dict[str, Any]) -> str:
    """How one event is written for people."""
    tail = "".join(f" {key}={value}" for key, value in facts.items())
    return f"{stamp(now_s)} {level:<8} {who}: {printable(' '.join((text + tail).split()))}\n"


def json_line(now_s: float, level: str, who: str, text: str, facts: dict[str, Any]) -> str:
    """The same for programs."""
    role, _, number = who.rpartition(" ") if who[-1:].isdecimal() and " " in who else (who, "", "")
    said: dict[str, Any] = {"time": stamp(now_s), "level": level, "role": role}
    if number:
        said["index"] = int(number)
    said["message"] = without_passwords(text.strip())[:LINE_CHARACTERS_MAX]
    for key, value in facts.items():
        said.setdefault(key, value if isinstance(value, int | float) else without_passwords(str(value)))
    return msgspec.json.encode(said).decode() + "\n"


def stamp(now_s: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s * 1000) % 1000:03d}Z"


def without_passwords(text: str) -> str:
    return _CREDENTIALS.sub(r"\1…@", text)


def printable(text: str) -> str:
    text = without_passwords(text[:LINE_CHARACTERS_MAX])
    return (
        text
        if text.isprintable()
        else "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
    )


class Logbook:
    """Appends lines; a full disk or a closed terminal never stops the server."""

    def __init__(
        self,
        path: Path,
        level: str,
        *,
        to_stderr: bool = True,
        form: Form = "text",
        file_bytes: int = FILE_BYTES_MAX,
    ) -> None:
        self.path = path
        self._threshold = LEVELS.index(level)
        self._to_stderr = to_stderr
        self._write = json_line if form == "json" else line
        self._file_bytes = file_bytes
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @classmethod
    def of(cls, path: Path, settings: Log) -> Self:
        """As `[log]` says."""
        return cls(path, settings.level, form=settings.format, file_bytes=settings.file_bytes)

    def write(self, level: str, who: str, text: str, **facts: Any) -> None:
        if level in LEVELS and LEVELS.index(level) < self._threshold:
            return
        whole = self._write(time.time(), level, who, text, facts)
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
            if os.fstat(self.fd).st_size < self._file_bytes:
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


def tell_crashes_as_json(who: str) -> None:
    """Of a process whose standard error is the log file: its last words are an object, too."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        facts = {"pid": os.getpid(), "trace": "".join(traceback.format_exception(kind, error, trace))[-8192:]}
        if code := getattr(error, "code", ""):
            facts["code"] = str(code)
        sys.stderr.write(json_line(time.time(), "error", who, f"{kind.__name__}: {error}", facts))

    sys.excepthook = hook
