"""`fairlead acl`, `tenant` and `user join`, on a users file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


def run(path: Path, *arguments: str, status: int = 0) -> Result:
    done = CliRunner().invoke(main, [*arguments, "--file", str(path)], input="secret\n")
    assert done.exit_code == status, done.output
    return done


def facts(path: Path, *arguments: str, status: int = 0) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(path, *arguments, "--json", status=status).output)
    return found


def test_lines_are_added_listed_tested_and_removed(path: Path) -> None:
    run(path, "user", "add", "ann", "--no-password")
    run(path, "acl", "allow", "@desk", "subscribe", "prices.>")
    run(path, "acl", "deny", "@desk", "subscribe", "prices.secret.>")
    run(path, "user", "join", "ann", "desk")
    assert "deny subscribe" in run(path, "acl", "test", "ann", "consume", "prices.secret.x", status=1).output
    verdict = facts(path, "acl", "test", "ann", "subscribe", "prices.eur")
    assert (verdict["allowed"], verdict["line"]) == (True, "group desk: allow subscribe prices.>")
    run(path, "acl", "test", "ann", "administer", "prices.eur", status=1)
    lines = facts(path, "acl", "list", "ann")["lines"]
    assert lines == [
        {"who": "@desk", "verb": "deny", "action": "subscribe", "pattern": "prices.secret.>"},
        {"who": "@desk", "verb": "allow", "action": "subscribe", "pattern": "prices.>"},
    ]
    assert "prices.secret.>" in run(path, "acl", "list").output
    run(path, "acl", "remove", "deny", "@desk", "subscribe", "prices.secret.>")
    run(path, "acl", "test", "ann", "consume", "prices.secret.x")
    run(path, "acl", "remove", "allow", "@desk", "subscribe")
    run(path, "acl", "test", "ann", "subscribe", "anything")
    run(path, "user", "join", "ann", "desk", "--leave")
    assert facts(path, "user", "list")["users"][0]["groups"] == []  # type: ignore[index]


def test_what_is_not_there_is_said(path: Path) -> None:
    run(path, "user", "add", "ann", "--no-password")
    assert "no user bob" in run(path, "acl", "allow", "bob", "publish", "x", status=1).output
    assert "no group @none" in run(path, "acl", "list", "@none", status=1).output
    assert "no line" in run(path, "acl", "remove", "deny", "ann", "publish", "x", status=1).output
    assert "there is no [groups.none]" in run(path, "user", "join", "ann", "none", status=1).output
    assert "tenant" in run(path, "user", "add", "eve", "--no-password", "--tenant", "none", status=1).output
    assert "pattern" in run(path, "acl", "allow", "ann", "publish", "a.*b", status=2).output


def test_tenants_are_added_limited_listed_and_removed_when_empty(path: Path) -> None:
    run(path, "tenant", "add", "acme", "--connections", "10")
    run(path, "tenant", "add", "acme", status=1)
    run(path, "tenant", "set", "acme", "--messages-per-s", "500")
    run(path, "tenant", "set", "acme", status=2)
    run(path, "user", "add", "ann", "--no-password", "--tenant", "acme")
    (one,) = facts(path, "tenant", "list")["tenants"]  # type: ignore[misc]
    assert (one["users"], one["connections"], one["messages_per_s"]) == (["ann"], 10, 500)
    assert "acme" in run(path, "tenant", "list").output
    assert "still belong" in run(path, "tenant", "remove", "acme", status=1).output
    run(path, "acl", "test", "ann", "publish", "orders")
    run(path, "user", "remove", "ann")
    run(path, "tenant", "remove", "acme")
    assert "no tenants" in run(path, "tenant", "list").output
