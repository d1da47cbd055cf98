"""Everything started by one command behaves as it does when each part is started by itself (DIR-1)."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from fairlead.cli import main
from fairlead.testing.directory_world import View
from tests.directory_requirements.cases import case_1, case_2, case_3, case_4, case_5
from tests.directory_requirements.tools import Stage

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]

START_S = 90.0


class Commanded(View):
    """What `fairlead directory up` made."""

    def __init__(self, url: str, pid: int) -> None:
        super().__init__()
        self._authorities = url.partition("://")[2].partition("/")[0].split(",")
        self._command = psutil.Process(pid)

    @property
    def authorities(self) -> list[str]:
        return self._authorities

    def _family(self, *words: str) -> list[psutil.Process]:
        """Processes of those children of the command that have been started with these words."""
        chosen = [child for child in self._command.children() if set(words) <= set(child.cmdline())]
        assert chosen
        return [*chosen, *(one for child in chosen for one in child.children(recursive=True))]

    async def pause(self) -> None:
        """All directory servers stand still."""
        for process in self._family("directory", "serve"):
            process.suspend()

    async def resume(self) -> None:
        for process in reversed(self._family("directory", "serve")):
            process.resume()

    def kill(self, name: str) -> None:
        for process in self._family(f"directory.name={name}"):
            process.kill()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commanded]:
    home = tmp_path_factory.mktemp("up")
    words = [sys.executable, "-m", "fairlead", "directory", "up", "--data", str(home), "--servers", "2"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield Commanded(url_of(process, home), process.pid)
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest.decode()


def url_of(process: subprocess.Popen[bytes], home: Path) -> str:
    """What it says when all brokers serve."""
    assert process.stdout is not None
    until_s = time.monotonic() + START_S
    while select.select([process.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
        line = process.stdout.readline().decode()
        if "fairlead+directory://" in line:
            return line.split()[-1]
        assert line, f"it ended: {[file.read_text() for file in home.glob('*/output.txt')]}"
    raise AssertionError(f"it did not come up in {START_S:g} s")


@pytest.mark.requirement("DIR-1")
async def test_the_cases_come_out_as_with_separate_commands(world: Commanded, stage: Stage, app: str) -> None:
    """All five, with the same tables; the broker of case 3 is lost for good, so it comes last."""
    async with world.open() as directory:
        for name in "BC":
            await directory.join_cluster(cluster=f"only-{name}", broker=name)
    await case_1(world, stage, f"{app}.1")
    await case_2(world, stage, f"{app}.2")
    await case_4(world, stage, f"{app}.4")
    await case_5(world, stage, f"{app}.5", world.pause, world.resume)
    world.kill("B")
    await case_3(world, stage, f"{app}.3")


@pytest.mark.parametrize("brokers", ["", "A,A", " , "])
def test_brokers_need_names_of_their_own(tmp_path: Path, brokers: str) -> None:
    done = CliRunner().invoke(main, ["directory", "up", "--data", str(tmp_path), "--brokers", brokers])
    assert done.exit_code == 2
    assert "--brokers" in done.output
