"""One line per event."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.runtime.logbook import LINE_CHARACTERS_MAX, Logbook, json_line, line
from fairlead.runtime.settings import Log


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


def test_a_long_file_is_put_aside(tmp_path: Path) -> None:
    book = Logbook(tmp_path / "f.log", "info", to_stderr=False, file_bytes=100)
    book.turn_over()
    book.info("a", "x" * 200)
    book.turn_over()
    book.info("a", "fresh")
    assert "fresh" in book.path.read_text()
    assert "xxx" in (tmp_path / "f.log.1").read_text()


def test_as_json_a_line_is_one_object_with_what_is_known() -> None:
    text = json_line(
        1.25, "warning", "manager 3", "connection 7 ended:\nslow", {"pid": 9, "connection": 7, "code": "slow"}
    )
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "warning",
        "role": "manager",
        "index": 3,
        "message": "connection 7 ended:\nslow",
        "pid": 9,
        "connection": 7,
        "code": "slow",
    }
    assert json.loads(json_line(0, "info", "message-manager", "x", {"message": "not the message"}))["message"] == "x"
    assert json.loads(json_line(0, "info", "", "x", {}))["role"] == ""


@pytest.mark.parametrize("write", [line, json_line])
def test_passwords_of_urls_are_struck_out(write: type) -> None:
    text = write(0, "info", "bridge", "no way to fairlead://ann:s3cret@h:1 today", {"url": "http://bob:hunter2@h/x"})  # type: ignore[call-arg]
    assert "s3cret" not in text
    assert "hunter2" not in text
    assert "fairlead://…@h:1" in text


def test_what_a_peer_made_up_is_neither_a_line_nor_a_command_of_the_terminal() -> None:
    text = line(0, "info", "manager 0", "instance \x1b[2J\r\n2026-01-01 error  all: lost", {"x": "a\nb"})
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(line(0, "info", "x", "y" * 100_000, {})) < LINE_CHARACTERS_MAX + 100
    assert len(json_line(0, "info", "x", "y" * 100_000, {})) < LINE_CHARACTERS_MAX + 200


def test_the_settings_choose_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = Logbook.of(tmp_path / "f.log", Log(format="json", level="warning"))
    book.info("a", "quiet")
    book.error("a", "loud", code="x")
    assert json.loads(book.path.read_text())["code"] == "x"
    assert json.loads(capsys.readouterr().err)["level"] == "error"


def test_the_last_words_of_a_process_are_an_object_too() -> None:
    script = (
        "from fairlead.errors import ConfigError; from fairlead.runtime.logbook import tell_crashes_as_json;"
        "tell_crashes_as_json('manager 2'); raise ConfigError('no such thing')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    said = json.loads(done.stderr)
    assert (said["role"], said["index"], said["level"]) == ("manager", 2, "error")
    assert said["message"] == "ConfigError: no such thing"
    assert said["code"] == "bad-config"
    assert "Traceback" in said["trace"]
