"""What a process uses, as /proc tells: memory and processor time. Read when somebody asks, never on the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
UTIME, STIME, THREADS, RSS = 11, 12, 17, 21  # columns behind the name


class Usage(msgspec.Struct, kw_only=True):
    """Of one process; all zero if it has ended."""

    pid: int
    role: str
    index: int
    state: str
    rss_bytes: int = 0
    cpu_s: float = 0.0
    threads: int = 0


def usage_of(pid: int, role: str, index: int, state: str, *, proc: Path = Path("/proc")) -> Usage:
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()  # the name may hold anything, spaces and parentheses too
        return Usage(
            pid=pid,
            role=role,
            index=index,
            state=state,
            rss_bytes=int(fields[RSS]) * PAGE_BYTES,
            cpu_s=(int(fields[UTIME]) + int(fields[STIME])) / TICKS_PER_S,
            threads=int(fields[THREADS]),
        )
    except (OSError, ValueError, IndexError):
        return Usage(pid=pid, role=role, index=index, state=state)
