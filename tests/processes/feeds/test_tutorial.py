"""docs/feeds-tutorial.md, followed: its program runs and draws, and its commands are typed into a shell in turn."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.runtime.local_cluster import free_ports
from tests.pipeline.test_command_lines import command_lines, understood

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "feeds-tutorial.md").read_text(encoding="utf-8")
PATIENCE_S = 150.0


def run(arguments: list[str], directory: Path) -> str:
    """What it printed; everything it started is gone afterwards."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    said = directory / "said.log"
    with (
        open(said, "wb") as log,
        subprocess.Popen(
            arguments, cwd=directory, env=environment, start_new_session=True, stdout=log, stderr=log
        ) as process,
    ):
        try:
            code: int | None = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    out = said.read_text(encoding="utf-8")
    assert code == 0, out
    return out


@pytest.mark.timeout(PATIENCE_S + 30)
@pytest.mark.requirement("STR-28")
@pytest.mark.requirement("STR-76")
def test_the_program_reads_the_day_through_the_failover_and_draws_it(tmp_path: Path) -> None:
    program = ROOT / "examples" / "feeds" / "trading_day.py"
    out = run([sys.executable, "-W", "error", str(program), "--output", "day", "--messages", "12000"], tmp_path)
    assert "each once and in order: True" in out
    assert re.search(r"FailedOver\(old='(\w)', new='(?!\1)\w', why='\1 closed the line", out)
    assert "BackupAgain" in out.split("FailedOver", 1)[1]
    assert (tmp_path / "day" / "day.png").read_bytes().startswith(b"\x89PNG")
    assert "FailedOver" in (tmp_path / "day" / "day.svg").read_text(encoding="utf-8")


def test_the_commands_of_the_page_exist() -> None:
    lines = command_lines("docs/feeds-tutorial.md")
    assert len(lines) >= 6
    for words in lines:
        understood(main, words)


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 30)
def test_the_commands_do_what_the_page_says(tmp_path: Path) -> None:
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    printed = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", shell)))
    ports = dict(zip(printed, map(str, free_ports(len(printed))), strict=True))
    shell = re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", shell)
    out = run(["bash", "-e", "-c", shell], tmp_path)
    assert "-- FailedOver" in out
    assert "20,610 messages in" in out

    (python,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    said = run([sys.executable, "-c", python], tmp_path).splitlines()
    assert said[:2] == re.findall(r"#> (.*)", python)
    assert said[2] == "symbol"
    assert len(said) == 7  # three symbols, and what pandas says of the column
