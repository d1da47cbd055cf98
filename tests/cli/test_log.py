"""`fairlead log` on the file of a server: which events, and what happens when the file is replaced or cut short."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlead.cli import main
from fairlead.cli.log import events_of, since_ms
from fairlead.errors import ConfigError

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def line(code: str, level: str = "info", ms: int = 0) -> str:
    return json.dumps({"ms": ms, "level": level, "code": code, "text": f"about {code}", "node": "a"}) + "\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "events.jsonl").write_text(
        line("start", ms=1000) + line("store-full", "error", 5000) + line("fine", "debug", 6000) + '{"cut sho'
    )
    return tmp_path


def fairlead_log(data: Path, *arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["log", "--data", str(data), "--json", *arguments])
    assert done.exit_code == 0, done.output
    return [json.loads(text) for text in done.output.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        ((), ["start", "store-full"]),
        (("--level", "debug"), ["start", "store-full", "fine"]),
        (("--level", "warning"), ["store-full"]),
        (("--code", "start"), ["start"]),
        (("--since", "1970-01-01T00:00:03+00:00"), ["store-full"]),
        (("--since", "1h"), []),
    ],
)
def test_which_events(data: Path, arguments: tuple[str, ...], codes: list[str]) -> None:
    assert [event["code"] for event in fairlead_log(data, *arguments)] == codes


def test_events_in_words(data: Path) -> None:
    out = CliRunner().invoke(main, ["log", "--data", str(data), "--code", "store-full"]).output
    assert "error" in out
    assert "store-full: about store-full (node=a)" in out


def test_following_goes_on_in_the_next_file(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(line("one"))
    found: list[str] = []
    done = threading.Event()

    def follow() -> None:
        for event in events_of(file, follow=True):
            found.append(event["code"])
            if event["code"] == "one":
                with file.open("a") as more:
                    more.write(line("two"))
            elif event["code"] == "two":
                file.rename(tmp_path / "events.jsonl.1")
                file.write_text(line("three"))
            else:
                break
        done.set()

    threading.Thread(target=follow, daemon=True).start()
    assert done.wait(10)
    assert found == ["one", "two", "three"]


def test_since_is_a_time_or_an_age() -> None:
    assert since_ms(None, NOW) == 0
    assert since_ms("90s", NOW) == int(NOW.timestamp() * 1000) - 90_000
    assert since_ms("2026-01-31T11:00:00+00:00", NOW) == int(NOW.timestamp() * 1000) - 3_600_000
    with pytest.raises(ConfigError, match="neither"):
        since_ms("yesterday", NOW)


def test_a_server_without_a_log_is_a_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["log", "--data", str(tmp_path)])
    assert done.exit_code == 2
