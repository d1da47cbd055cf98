"""`fairlead directory serve` says what is wrong before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.directory import directory_group


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peers", "d1=127.0.0.1:7412,d2=127.0.0.1:7422"], "--name"),
        (["--name", "d3", "--peers", "d1=127.0.0.1:7412,d2=127.0.0.1:7422"], "d3"),
        (["--set", "directory.lease_s=none"], "lease_s"),
        (["--set", "directory.nonsense=1"], "nonsense"),
        (["--listen", "0.0.0.0:7402"], "anybody on the network"),
        (["--name", "d1", "--peers", "d1=10.0.0.1:7412,d2=10.0.0.2:7412"], "secret"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    result = CliRunner().invoke(directory_group, ["serve", "--data", str(tmp_path / "data"), *words])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output


def test_help_has_examples() -> None:
    result = CliRunner().invoke(directory_group, ["serve", "--help"])
    assert result.exit_code == 0
    assert "fairlead directory serve --name d1" in result.output
    assert "--faults" not in result.output
