"""What a process uses, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fairlead.runtime.usage import PAGE_BYTES, TICKS_PER_S, usage_of


def test_our_own_usage_is_plausible() -> None:
    found = usage_of(os.getpid(), "router", 0, "active")
    assert found.rss_bytes > 1 << 20
    assert abs(found.cpu_s - time.process_time()) < 1.0
    assert found.threads >= 1


def test_a_name_with_spaces_and_parentheses_confuses_nobody(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    behind = ["S", *(str(number) for number in range(1, 40))]
    (tmp_path / "7" / "stat").write_text(f"7 (a b) c) {' '.join(behind)}\n")
    found = usage_of(7, "manager", 1, "active", proc=tmp_path)
    assert (found.cpu_s, found.threads, found.rss_bytes) == ((11 + 12) / TICKS_PER_S, 17, 21 * PAGE_BYTES)


def test_a_process_that_has_ended_uses_nothing(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "stat").write_text("8 (x) Z 1")
    for pid in (7, 8):
        found = usage_of(pid, "router", 0, "stopping", proc=tmp_path)
        assert (found.pid, found.rss_bytes, found.cpu_s) == (pid, 0, 0.0)
