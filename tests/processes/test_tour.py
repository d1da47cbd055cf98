"""`fairlead demo`, all of it for real and once; and that nothing of it is left, however it ends."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli import main
from fairlead.demo.edge import load, talking
from fairlead.demo.edge.load import Flow
from fairlead.demo.outline import STEPS
from fairlead.store.edge.segment import TMPFS

pytestmark = pytest.mark.processes

MARK = "TEST_OF_THE_TOUR"
LOOK_S = 0.5


class Watched:
    """A tour in a process of its own: which processes it has, and which stores of shared memory they map."""

    def __init__(self, temporary: Path, *arguments: str) -> None:
        self.mark = secrets.token_hex(8)
        self.temporary = temporary
        self.stores: set[str] = set()
        self.most = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "demo", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {MARK: self.mark, "TMPDIR": str(temporary)}, start_new_session=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while self.process.poll() is None:
            family = self.family()
            self.most = max(self.most, len(family))
            for pid in family:
                with suppress(OSError):
                    self.stores |= set(re.findall(r"fairlead-\d+-[0-9a-f]+", Path(f"/proc/{pid}/maps").read_text()))
            time.sleep(LOOK_S)

    def family(self) -> list[int]:
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (place / "environ").read_bytes():
                    found.append(int(place.name))
        return found

    def ended(self) -> tuple[int, str]:
        out, _ = self.process.communicate()
        self._thread.join()
        return self.process.returncode, out

    def left_behind(self) -> list[str]:
        """Processes, files and shared memory that should be gone."""
        return [
            *(f"process {pid}" for pid in self.family()),
            *(f"file {one}" for one in self.temporary.iterdir()),
            *(f"store {name}" for name in self.stores if (TMPFS / name).exists()),
        ]

    def end(self) -> None:
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._thread.join()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """As short a name as temporary directories have: sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_whole_tour(temporary: Path, tmp_path: Path) -> None:
    page = tmp_path / "tour.html"
    tour = Watched(temporary, "--output", str(page), "--json")
    try:
        code, out = tour.ended()
        facts = json.loads(out)
        steps = {one["name"]: one for one in facts["steps"]}
        assert {name: (one["state"], one["why"]) for name, one in steps.items()} == {
            step.name: ("passed", "")
            for step in STEPS  # without a Java, too, this test fails: it is part of it
        }
        assert code == 0
        counts = [count for one in steps.values() for count in one["findings"]["counts"]]
        assert sum(count["sent"] for count in counts) > 50_000
        assert all(count["lost"] == count["doubled"] == 0 for count in counts)
        hurt = ("router", "manager", "cluster", "proxy", "feed")
        assert all(steps[name]["findings"]["charts"][0]["pauses"] for name in hurt)
        html = page.read_text(encoding="utf-8")
        assert html.count("<svg") == 2 + len(hurt)
        assert f"{sum(count['sent'] for count in counts):,}" in html
        assert (tmp_path / "tour-archive.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        assert tour.most > 8
        assert len(tour.stores) >= 3, "the server's, the cluster's and the administration's were seen"
        assert tour.left_behind() == []
    finally:
        tour.end()


def test_ctrl_c_leaves_nothing_behind(temporary: Path, tmp_path: Path) -> None:
    """As a terminal does it: everybody in the foreground gets the signal, some of them twice."""
    tour = Watched(temporary, "--step", "server", "--step", "router", "--output", str(tmp_path / "tour.html"))
    try:
        deadline_s = time.monotonic() + 60
        while not tour.stores or tour.most < 9:
            assert time.monotonic() < deadline_s, "the server does not come"
            assert tour.process.poll() is None
            time.sleep(0.05)
        os.killpg(tour.process.pid, signal.SIGINT)
        time.sleep(0.2)
        with suppress(ProcessLookupError):
            os.killpg(tour.process.pid, signal.SIGINT)
        code, out = tour.ended()
        assert code == 130, out
        assert "everything that was started has ended" in out
        assert "Traceback" not in out
        assert tour.left_behind() == []
        assert not (tmp_path / "tour.html").exists()
    finally:
        tour.end()


def test_a_message_that_is_lost_makes_the_tour_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send = Flow._send

    async def careless(flow: Flow, first: int, count: int) -> None:
        """Says that it sent number 17, and did not."""
        for number in range(first, first + count):
            if number != 17:
                await send(flow, number, 1)
        flow.sent = first + count

    monkeypatch.setattr(Flow, "_send", careless)
    monkeypatch.setattr(load, "SILENCE_S", 0.5)
    monkeypatch.setattr(talking, "BROADCASTS", 100)
    monkeypatch.setattr(talking, "REQUESTS", 20)
    monkeypatch.setattr(talking, "QUEUED", 100)
    result = CliRunner().invoke(main, ["demo", "--step", "messages", "--output", str(tmp_path / "tour.html")])
    assert result.exit_code == 1, result.output
    assert "not so: broadcast: 1 lost" in " ".join(result.output.split())
    assert "1 failed in" in result.output
    assert "FAILED" in (tmp_path / "tour.html").read_text(encoding="utf-8")
