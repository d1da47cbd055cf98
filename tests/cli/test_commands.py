"""The command `fairlead` itself: quick help, clear refusals, and the commands that ask a running server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli import COMMANDS, main
from fairlead.cli.status import _known, _span
from tests.processes.stand_in_server import stand_in_server

LATER = {"bench"}  # its module is not part of every installation yet


def fairlead(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_help_names_every_command_without_importing_one() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from fairlead.cli import main; "
        "print(CliRunner().invoke(main, ['--help']).output); "
        "assert not {'rich', 'asyncio', 'fairlead.cli.serve'} & set(sys.modules), sorted(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in LATER])
def test_every_command_has_help(name: str) -> None:
    result = fairlead(name, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_a_mistyped_command_gets_the_nearest_one() -> None:
    result = fairlead("staus")
    assert result.exit_code == 2
    assert "Did you mean 'status'?" in result.output


def test_no_server_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    result = fairlead("status", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.startswith("fairlead: No server answers at")
    assert fairlead("status", "--server", "fairlead://far.example").exit_code == 2


def test_serve_refuses_bad_settings_with_2() -> None:
    for arguments in (["--set", "fairness.limits=3"], ["--set", "nonsense"], ["--listen", "nowhere"]):
        result = fairlead("serve", *arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


def test_spans_and_unknown_values_in_words() -> None:
    assert _span(3725.9) == "1:02:05"
    assert [_known(value) for value in (None, [1, 2], 1234)] == ["unknown", "2", "1,234"]


@pytest.mark.processes
@pytest.mark.requirement("SRV-80", "SRV-93", "SRV-127", state="half")
def test_status_update_drain_and_stop_of_a_running_server(tmp_path: Path) -> None:
    with stand_in_server(tmp_path) as server:
        client = server.connect()
        data = ["--data", str(server.data)]
        tables = fairlead("status", "--connections", *data)
        assert tables.exit_code == 0
        assert str(client.uid) in tables.output
        assert "0 accounting faults" in tables.output
        report = json.loads(fairlead("status", "--json", "--handle", "0x1000001", *data).output)
        assert report["message"] == {"handle": 0x1000001, "stored": False}
        updated = fairlead("update", "router", *data)
        assert (updated.exit_code, updated.output.split(",")[0]) == (0, "router: done")
        failed = fairlead("update", "dispatcher", "--python", "/bin/false", "--json", *data)
        assert failed.exit_code == 1
        assert not json.loads(failed.output)["ok"]
        assert fairlead("update", "nothing", *data).exit_code == 2
        assert fairlead("reload", *data).exit_code == 0
        moved = fairlead("drain", "0", "--move", *data)
        assert (moved.exit_code, moved.output.split(",")[0]) == (0, "manager 0: moved")
        assert fairlead("drain", "1", *data).exit_code == 0
        assert fairlead("drain", "7", *data).exit_code == 1
        assert fairlead("stop", *data).exit_code == 0
        assert server.process is not None
        assert server.process.wait(10) == 0


def test_the_server_meant_is_the_one_typed_else_the_data_directory_else_that_of_the_environment() -> None:
    runner = CliRunner()

    def said(environment: dict[str, str], *words: str) -> str:
        return runner.invoke(main, ["status", *words], env=environment).output

    url = {"FAIRLEAD_URL": "fairlead://127.0.0.1:7591"}
    both = url | {"FAIRLEAD_SERVER_DATA": "/nowhere/noted"}
    assert "on port 7591" in said(url)
    assert "/nowhere/typed" in said(url, "--data", "/nowhere/typed")
    assert "/nowhere/noted" in said(both)
    assert "on port 7592" in said(both, "--server", "fairlead://127.0.0.1:7592")
    assert "`fairlead serve` starts one" in said(url)
