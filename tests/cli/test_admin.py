"""How `fairlead admin` asks first, and how it shows what came back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from fairlead.cli import admin
from fairlead.cli.admin import admin_group, show, text_of


class Asked:
    """Stands for the server: remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> None:
        self.questions: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer
        monkeypatch.setattr(admin, "answer_of", self.answer_of)

    def answer_of(self, run: object, command: str, *, timeout_s: float, name: str, args: dict[str, Any]) -> Any:
        assert command == "admin"
        self.questions.append((name, args))
        return {"ok": True, "result": self._answer}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch, {"dropped": 3})


def fairlead_admin(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(admin_group, [*arguments, "--data", "somewhere"])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete", "q"),
        ("purge", "q"),
        ("drop", "q", "7"),
        ("move", "q", "r"),
        ("redrive",),
        ("cancel", "q", "7"),
        ("unsubscribe", "shop", "audit"),
    ],
)
def test_what_destroys_asks_first(asked: Asked, arguments: tuple[str, ...]) -> None:
    code, out = fairlead_admin(*arguments)
    assert code == 2
    assert "--yes" in out
    assert asked.questions == []
    code, out = fairlead_admin(*arguments, "--yes")
    assert (code, len(asked.questions)) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (("list",), ("destinations", {})),
        (("list", "orders.*", "--sort", "depth"), ("destinations", {"pattern": "orders.*", "sort": "depth"})),
        (("show", "q"), ("destination", {"destination": "q"})),
        (
            ("create", "t", "--kind", "topic", "retain_s=60"),
            ("create", {"destination": "t", "kind": "topic", "parameters": {"retain_s": 60}}),
        ),
        (("set", "q", "paused=true"), ("set", {"destination": "q", "parameters": {"paused": True}})),
        (("drop", "q", "7", "8", "-y"), ("drop", {"destination": "q", "orders": [7, 8]})),
        (("redrive", "--dry-run"), ("redrive", {"destination": "_DMQ", "dry_run": True})),
        (("sessions",), ("sessions", {})),
        (("consumers", "q"), ("consumers", {"destination": "q"})),
        (("browse", "q", "--start", "7"), ("browse", {"destination": "q", "start": 7})),
        (("do", "anything", "n=5"), ("anything", {"n": 5})),
    ],
)
def test_a_command_becomes_a_question(asked: Asked, arguments: tuple[str, ...], question: tuple[str, Any]) -> None:
    assert fairlead_admin(*arguments)[0] == 0
    (found,) = asked.questions
    assert found == question


def test_answers_are_shown_as_json_or_tables(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = fairlead_admin("purge", "q", "-y", "--json")
    assert (code, json.loads(out)) == (0, {"dropped": 3})
    show({"total": 2, "destinations": [{"name": "a[b]", "depth": 1234}, {"name": "c", "paused": True}]}, False)
    out = capsys.readouterr().out
    assert "a[b]" in out
    assert "1,234" in out
    assert "yes" in out


def test_values_in_words() -> None:
    assert text_of("at_ms", 1_700_000_000_000).startswith("2023-11-1")
    assert text_of("size", 1_700_000_000_000) == "1,700,000,000,000"
    assert (text_of("x", None), text_of("x", []), text_of("x", 2.50), text_of("x", "y" * 500)[-1]) == (
        "-",
        "-",
        "2.5",
        "…",
    )
