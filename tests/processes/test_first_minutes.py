"""docs/first-ten-minutes.md, followed: its commands are commands, and a shell that is given them says the same."""

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

PAGE = "docs/first-ten-minutes.md"
TEXT = (Path(__file__).resolve().parents[2] / PAGE).read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
PATIENCE_S = 240.0


def test_its_commands_are_understood() -> None:
    lines = [[word for word in words if word not in (">", "2>&1", "&")] for words in command_lines(PAGE)]
    assert len(lines) > 8
    for words in lines:
        cut = next((place for place, word in enumerate(words) if word in ("|", "||") or ".log" in word), len(words))
        understood(main, [word for word in words[:cut] if not word.endswith(".txt")])


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 60)
def test_typed_into_a_shell_they_say_what_the_page_says(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FAIRLEAD_URL": f"fairlead://{address}",
        "FAIRLEAD_SERVER_LISTEN": address,
    }
    said = tmp_path / "said.log"
    script = "\n".join(BLOCKS).replace("fairlead://localhost", f"fairlead://{address}")
    with open(said, "wb") as log:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        code: int | None = shell.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    out = said.read_text(encoding="utf-8")
    assert code == 0, out
    for line in ("demo.hello world", "demo.bye world", "ANYBODY THERE?", "one book", "two books", "exit code 3",
                 "fairlead: no message came from orders within 1 s",
                 "10000 orders, every one of them confirmed", "10000 orders, 0 missing, 0 twice"):  # fmt: skip
        assert line in out, line
        assert line in TEXT, line
    assert re.search(r"message-manager +active", out)
