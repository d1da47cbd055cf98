"""Every example, and the README's, runs against a real server and ends by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.testing import Server

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAID = {
    "broadcast": "and 10000 more, in order",
    "conversation": "has 42",
    "fan_out": "asked 4, answered 4, lost 0",
    "ipc": "by ",
    "queues": "worked off 1000 orders",
    "quotes": "put aside: b'EURUSD;oops;1'",
    "request_reply": "no-receiver",
    "sync_hello": "7 squared is 49",
    "transaction": "5 invoices, each once: True",
}


def run(*arguments: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], capture_output=True, text=True, timeout=30, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(shared: Server, example: Path) -> None:
    out, err = run(str(example), shared.url)
    assert SAID[example.stem] in out
    assert err == "" or "this handler always fails" in err  # one of them shows what a broken handler does


def test_the_example_of_the_readme(shared: Server, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "readme.py"
    file.write_text(program.replace("fairlead://localhost", shared.url))
    out, err = run(str(file))
    assert err == ""
    assert out.splitlines() == ["prices.eur.usd b'1.0843'", "b'1.0843'"]


def test_the_second_client_as_a_program(shared: Server) -> None:
    out, _ = run(str(ROOT / "tests/protocol/second_client.py"), "127.0.0.1", str(shared.port))
    assert "received 'hello from the second client' on second.hello" in out
