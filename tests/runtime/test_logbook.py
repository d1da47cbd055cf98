"""One line per event."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.runtime import logbook
from fairlead.runtime.logbook import Logbook, line


def test_a_line_has_time_level_who_what_and_facts() -> None:
    assert line(1.25, "info", "router", "ready,\nactive", {"pid": 7}) == (
        "1970-01-01T00:00:01.250Z info     router: ready, active pid=7\n"
    )


def test_lines_below_the_level_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = Logbook(tmp_path / "log" / "f.log", "warning")
    book.info("a", "quiet")
    book.warning("a", "loud")
    book.error("a", "louder")
    assert [text.split(": ")[1] for text in book.path.read_text().splitlines()] == ["loud", "louder"]
    assert capsys.readouterr().err == book.path.read_text()
    assert book.tail(1).endswith("louder")


def test_a_long_file_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logbook, "FILE_BYTES_MAX", 100)
    book = Logbook(tmp_path / "f.log", "info", to_stderr=False)
    book.turn_over()
    book.info("a", "x" * 200)
    book.turn_over()
    book.info("a", "fresh")
    assert "fresh" in book.path.read_text()
    assert "xxx" in (tmp_path / "f.log.1").read_text()
