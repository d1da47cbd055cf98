"""`cli/login.py`: where commands take secrets from, and what is warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from fairlead.cli.login import login
from fairlead.cli.options import one_sentence
from fairlead.cli.traffic import connecting

SAID: list[dict[str, Any]] = []


@click.command()
@connecting
@one_sentence
def command(server: str, user: str | None, password: str | None, ca: str | None) -> None:
    SAID.append(login(password, ca))


def run(*arguments: str, typed: str = "", **environment: str) -> Result:
    SAID.clear()
    return CliRunner(env=environment).invoke(command, list(arguments), input=typed)


def test_a_password_comes_from_a_file_standard_input_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\nand a comment\n")
    for arguments, typed, environment, wanted in (
        (("--password-file", str(file)), "", {}, "from the file"),
        (("--password-file", "-"), "typed\n", {}, "typed"),
        ((), "", {"FAIRLEAD_PASSWORD": "from outside"}, "from outside"),
        ((), "", {"FAIRLEAD_PASSWORD_FILE": str(file)}, "from the file"),
    ):
        result = run(*arguments, typed=typed, **environment)
        assert result.exit_code == 0, result.output
        assert "warning" not in result.output
        assert SAID[0]["password"] == wanted


def test_a_token_in_a_file_is_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    run("--token-file", str(file))
    fresh = SAID[0]["token"]
    assert fresh() == "one"
    file.write_text("two\n")
    assert fresh() == "two"
    run(FAIRLEAD_TOKEN="three")
    assert SAID[0]["token"] == "three"
    run("--token-file", "-", typed="four\n")
    assert SAID[0]["token"] == "four"
    run()
    assert SAID[0]["token"] is None


@pytest.mark.parametrize(
    "arguments", [("--user", "a", "--password", "p"), ("--server", "fairlead://a:p@h"), ("--server", "https://a:p@h/t")]
)
def test_a_secret_that_everybody_can_see_is_warned_of(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    assert "everybody on this host can see the password" in result.output
    assert ":p@" not in result.output


def test_what_is_no_secret_is_not_warned_of() -> None:
    for arguments in (("--server", "fairlead://h:7400"), ("--server", "fairlead://a@h:7400"), ("--user", "a")):
        assert "warning" not in run(*arguments).output
    assert "warning" not in run(FAIRLEAD_URL="fairlead://a:p@h").output


def test_two_passwords_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty"
    file.write_text("\n")
    assert "not both" in run("--password", "p", "--password-file", str(file)).output
    assert "nothing in the first line" in run("--password-file", str(file)).output
    assert "Cannot read" in run("--password-file", str(tmp_path / "none")).output
