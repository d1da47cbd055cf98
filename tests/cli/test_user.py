from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.user import user_group
from fairlead.security import users
from fairlead.security.rules import ACTIONS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


def run(path: Path, *arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(user_group, [*arguments, "--file", str(path)], input=typed)


def test_a_password_is_asked_for_twice_and_never_shown(path: Path) -> None:
    result = run(path, "add", "bob", typed="secret\nsecret\n")
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    assert users.read(path).verify("bob", "secret")


def test_a_script_may_pipe_it(path: Path) -> None:
    result = run(path, "add", "bob", "--password-stdin", "--json", typed="pass word\n")
    assert json.loads(result.output) == {"ok": True, "user": "bob", "file": str(path)}
    assert users.read(path).verify("bob", "pass word")
    assert run(path, "password", "bob", "--password-stdin", typed="other\n").exit_code == 0
    assert users.read(path).verify("bob", "other")


def test_no_password_is_no_password(path: Path) -> None:
    result = run(path, "add", "bob", "--password-stdin", typed="\n")
    assert result.exit_code == 1
    assert not path.exists()


def test_rights_are_given_and_taken(path: Path) -> None:
    run(path, "add", "bob", "--publish", "a.>", "--publish", "b", "--password-stdin", typed="x\n")
    assert users.read(path).entries["bob"].publish == ["a.>", "b"]
    assert "a.> b c.*" in run(path, "allow", "bob", "publish", "c.*", "b").output
    assert "z" in run(path, "allow", "bob", "publish", "z", "--only").output
    assert users.read(path).entries["bob"].publish == ["z"]
    assert "nothing" in run(path, "allow", "bob", "serve", "--nothing").output
    assert "everything" in run(path, "allow", "bob", "publish", "--everything").output
    entry = users.read(path).entries["bob"]
    assert (entry.publish, entry.subscribe, entry.serve) == (None, None, [])
    assert users.read(path).verify("bob", "x")


def test_list_shows_rights_and_no_hashes(path: Path) -> None:
    assert "There are no users" in run(path, "list").output
    run(path, "add", "bob", "--subscribe", "a", "--password-stdin", typed="x\n")
    shown = run(path, "list").output
    assert "bob" in shown
    assert "scrypt" not in shown
    report = json.loads(run(path, "list", "--json").output)
    assert report["users"] == [
        {"name": "bob", "groups": [], "tenant": "", "deny": {}, "quota": {}}
        | dict.fromkeys(ACTIONS)
        | {"subscribe": ["a"]}
    ]


def test_clients_without_a_name_have_an_entry_without_a_password(path: Path) -> None:
    assert run(path, "allow", "anonymous", "publish", "--nothing").exit_code == 0
    assert users.read(path).entries["anonymous"].publish == []
    assert run(path, "add", "anonymous", "--password-stdin", typed="x\n").exit_code == 2
    assert run(path, "password", "anonymous", "--password-stdin", typed="x\n").exit_code == 2


def test_remove(path: Path) -> None:
    run(path, "add", "bob", "--password-stdin", typed="x\n")
    assert run(path, "remove", "bob").exit_code == 0
    assert users.read(path).entries == {}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["remove", "eve"], 1, "there is no user eve"),
        (["password", "eve", "--password-stdin"], 1, "there is no user eve"),
        (["allow", "eve", "publish", "a"], 1, "there is no user eve"),
        (["allow", "bob", "publish"], 2, "either patterns"),
        (["allow", "bob", "publish", "a", "--nothing"], 2, "either patterns"),
        (["allow", "bob", "publish", "a..b"], 2, "not a pattern"),
        (["allow", "bob", "read", "a"], 2, "read"),
        (["add", "bob", "--password-stdin"], 1, "there is a user bob already"),
        (["add", " ", "--password-stdin"], 1, "cannot be a user name"),
    ],
)
def test_mistakes_get_a_sentence(path: Path, arguments: list[str], code: int, says: str) -> None:
    run(path, "add", "bob", "--password-stdin", typed="x\n")
    before = path.read_bytes()
    result = run(path, *arguments, typed="y\n")
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert path.read_bytes() == before


def test_the_data_directory_tells_where_the_file_is(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        user_group, ["add", "bob", "--password-stdin", "--data", str(tmp_path / "d")], input="x\n"
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "d" / "users.toml").is_file()
