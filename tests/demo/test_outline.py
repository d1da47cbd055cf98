"""The steps there are, and that what they show can be typed."""

from __future__ import annotations

import shlex
from importlib.util import find_spec

import pytest

from fairlead.cli import main
from fairlead.demo.outline import SPARK, STEPS, Step, chosen
from fairlead.errors import ConfigError
from tests.pipeline.test_command_lines import understood


def names(steps: list[Step]) -> list[str]:
    return [step.name for step in steps]


def test_all_in_order_unless_some_are_named() -> None:
    assert chosen([]) == list(STEPS)
    assert names(chosen(["router", "server"])) == ["server", "router"]


def test_spark_can_be_left_out() -> None:
    assert SPARK in names(chosen([]))
    assert SPARK not in names(chosen([], spark=False))


def test_a_step_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no step 'rooter'.*router"):
        chosen(["rooter"])


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_is_there_and_its_commands_are_commands(step: Step) -> None:
    assert find_spec(step.module) is not None
    assert step.sentence.endswith(".")
    for command in step.commands:
        assert all(len(line) <= 72 for line in command.splitlines()), "it has to fit beside its indentation"
        words = shlex.split(command.replace("\\\n", " "))
        if words[0] == "fairlead":
            understood(main, words[1:])
        else:
            assert words[0] == "kill"
