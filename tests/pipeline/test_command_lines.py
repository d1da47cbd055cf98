"""Every command line in the pages about the pipeline exists, with its options; those of the jobs run as printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

import fairlead
import fairlead.sync
from fairlead.cli import main
from fairlead.testing import Server
from tests.pipeline.test_cluster_master import taken

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


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.processes
def test_the_commands_of_the_page_about_jobs_run_one_after_another(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "quotes.py", tmp_path)
    with Server(managers=1) as server:
        with fairlead.sync.connect(server.url, name="feeder") as client:
            topic = client.topic("trades.fx", parameters={"retain_messages": -1})
            topic.send_many([b"EURUSD;1.0731;%d" % n for n in range(500)] + [b"EURUSD;oops;1"])
        environment = os.environ | {"FAIRLEAD_URL": server.url, "XDG_STATE_HOME": str(tmp_path / "state")}

        def start(words: list[str]) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-m", "fairlead", *words], cwd=tmp_path, env=environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip

        def run(words: list[str]) -> str:
            with start(words) as process:
                out = process.communicate(timeout=600)[0]
            assert process.returncode == 0, f"fairlead {shlex.join(words)}\n{out[-4000:]}"
            return out

        going: list[subprocess.Popen[str]] = []
        said = {}
        try:
            for words in command_lines("docs/jobs.md"):
                if "--every" not in words:
                    said[" ".join(words[:3])] = run(words)
                    continue
                going.append(start(words))
                while '"state": "running"' not in run(["pipeline", "status", "--json"]):
                    assert going[-1].poll() is None, going[-1].communicate()[0]
        finally:
            for process in going:
                process.terminate()
                process.communicate(timeout=100)
        assert [process.returncode for process in going] == [0], "asked to stop, it ended in order"
        assert "archive: done, 501 rows" in said["pipeline run archive"]
        assert "archive has ended" in said["pipeline stop archive"]
        assert "trades.fx" in said["pipeline sql --lake"]
        assert "replay: done, 501 rows" in said["pipeline run replay"]
        assert any((tmp_path / "quotes").rglob("*.parquet"))
        assert (tmp_path / "project" / "spark-pipeline.yml").is_file()
        assert len(taken(server, "test.trades.fx")) == 501
