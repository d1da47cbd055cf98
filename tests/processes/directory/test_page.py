"""The examples of docs/directory.md run as they stand, and its commands are commands."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import fairlead
from fairlead.cli import main
from fairlead.errors import BadCredentials
from fairlead.testing.directory_world import World
from tests.processes.directory.sealed_parts import in_a_loop

PAGE = Path(__file__).resolve().parents[3] / "docs" / "directory.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.S)
COMMANDS = [
    line.removeprefix("$ ").partition(" # ")[0]
    for console in re.findall(r"```console\n(.*?)```", TEXT, re.S)
    for line in console.replace("\\\n", " ").splitlines()
    if line.startswith("$ fairlead")
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World("AB", servers=0, clusters={"sales": "AB"}) as world:
        yield world


@pytest.mark.processes
@in_a_loop
async def test_the_examples_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    async def gone() -> bool:
        return not await world.rows("AX")

    names: dict[str, Any] = {}
    url = world.url("sales")
    (connecting, *others) = (example.replace("fairlead+directory://localhost/sales", url) for example in EXAMPLES)
    await asyncio.to_thread(exec, compile(connecting, PAGE, "exec"), names)  # it has a loop of its own
    assert "AX at broker A as AX-1" in capsys.readouterr().out
    for example in others:
        exec(compile(example, PAGE, "exec"), names)
    reading = asyncio.create_task(names["az"](23))
    await world.labelled("AZ", 1)
    await names["ax"]()
    await names["many"]()
    assert await asyncio.to_thread(names["in_a_thread"]) == "good evening yourself"
    await reading
    shown = capsys.readouterr().out
    assert "hello" in shown
    assert "good morning yourself" in shown
    assert "20 call 0 yourself" in shown
    await world.until(gone, "AX has closed its connections")
    assert await names["look"]() == 0
    assert re.search(r"^A 127\.0\.0\.1 \d+ True$", capsys.readouterr().out, re.M)


@pytest.mark.processes
def test_the_rights_of_the_section_about_security_are_enough(tmp_path: Path) -> None:
    """AX and AZ with users of their own, at brokers with users of their own; the commands are the page's."""
    users, password = tmp_path / "users.toml", tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    added = [shlex.split(line)[1:] for line in COMMANDS if line.startswith("fairlead user add")]
    assert len(added) == 3
    others = {"ax": "az", "app.AX": "app.AZ", "broker-a": "broker-b", "_BROKER.A": "_BROKER.B"}
    for arguments in added + [[others.get(word, word) for word in words] for words in added[:2]]:
        named = [str(users) if word == "users.toml" else word for word in arguments]
        result = CliRunner().invoke(main, [*named, "--password-stdin"], input="secret\n")
        assert result.exit_code == 0, result.output
    own = {name: {"directory.user": f"broker-{name.lower()}", "directory.password_file": password} for name in "AB"}

    async def talk(world: World) -> None:
        az = fairlead.connect(world.url("only-B"), name="AZ", user="az", password="secret")
        async with az, await az.serve_app(lambda message: f"{message.text()}!"):
            async with fairlead.connect(world.url("only-A"), name="AX", user="ax", password="secret") as ax:
                assert (await ax.call("AZ", "hello")).text() == "hello!"
            for wrong in ({"name": "AZ", "user": "ax"}, {"name": "AX", "user": "ax", "password": "Secret"}):
                with pytest.raises(BadCredentials, match="application name, user id or password"):
                    await fairlead.connect(world.url("only-A"), **{"password": "secret"} | wrong)

    settings = {"security.users": users}
    with World("AB", servers=0, settings=settings, own=own, admin=("chief", "secret")) as world:
        asyncio.run(talk(world))


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_one(line: str) -> None:
    """Its name and its options are known; it is not carried out."""
    words = shlex.split(line)[1:]
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    command.make_context("fairlead", words, parent=context, resilient_parsing=False)
