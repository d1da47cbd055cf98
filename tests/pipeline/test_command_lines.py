"""Every command line in the pages about the pipeline is one that exists, with options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from fairlead.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("jobs", "reconcile", "insights", "pipeline-tutorial", "pipeline")),
)


def command_lines(page: str) -> list[list[str]]:
    """The words of each, without what a page says about it behind two blanks or a hash."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if kind not in ("", "sh", "console"):
            continue
        for line in re.findall(r"^(?:\$ )?(fairlead (?:\\\n|\"[^\"]*\"|[^\n\"])*)", block, re.MULTILINE):
            line = re.sub(r"(\\\n\s*)", " ", line)
            words = shlex.split(re.split(r"\s{2,}(?=[a-z])(?![^\"]*\"$)|\s#|\s&$", line)[0])
            found.append(words[1:])
    return found


def understood(command: click.Command, words: list[str]) -> None:
    """Go down to the command that is meant and hand it its options; UsageError if it has no such."""
    name = "fairlead"
    while isinstance(command, click.Group):
        context = command.make_context(name, list(words))
        rest = [*context._protected_args, *context.args]
        found, sub, words = command.resolve_command(context, rest)
        assert found is not None
        assert sub is not None
        name, command = found, sub
    command.make_context(name, list(words))


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_are_understood(page: str) -> None:
    lines = command_lines(page)
    assert lines or page == "docs/pipeline.md"
    for words in lines:
        try:
            understood(main, words)
        except click.UsageError as error:
            pytest.fail(f"fairlead {shlex.join(words)}: {error.format_message()}")


def test_a_command_that_is_none_is_seen() -> None:
    with pytest.raises(click.UsageError):
        understood(main, ["pipeline", "run", "archive", "--lake", "./lake", "--destination", "x", "--colour", "red"])
