"""The examples of docs/access.md do what the page says, and its tables are the code's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from fairlead.broker.edge.durable import COMMANDS as ASKED
from fairlead.cli import main
from fairlead.security.administering import COMMANDS
from fairlead.security.quotas import KINDS
from fairlead.security.rules import ACTIONS

PAGE = Path(__file__).parents[3] / "docs" / "access.md"


def test_the_examples_run_in_order_and_say_what_they_are_said_to(tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ran = 0
    for block in blocks:
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, expected = step.partition("\n")
            arguments = [*shlex.split(line)[1:], "--file", str(tmp_path / "users.toml")]
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code in ((0, 1) if "acl test" in line else (0,)), (line, done.output)
            assert expected.strip() in done.output, line
            ran += 1
    assert ran >= 10


def test_the_tables_are_whole() -> None:
    text = PAGE.read_text()
    for name in (*ACTIONS, *COMMANDS, *KINDS, *(name for name in ASKED if name != "directory")):
        assert f"`{name}`" in text, name
