"""The cluster harness itself, for some rounds: do the books balance, and do they notice each planted bug?"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.cluster.crashing import cluster_for, crash, run

pytestmark = pytest.mark.processes

ROUNDS = [["hand-over", "kill-primary", "kill-agent"], ["freeze-primary"]]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.requirement(
    "CLU-10", "CLU-21", "CLU-34", "CLU-116", "CLU-119", "CLU-121", "CLU-123", "CLU-142", "CLU-143", "CLU-149",
    "CLU-155",
    state="scaled", note="some rounds; `make soak-cluster` runs for as long as one likes",
)  # fmt: skip
async def test_a_cluster_that_is_hurt_loses_nothing_and_becomes_whole_again() -> None:
    with cluster_for(members=2) as cluster:
        report = await crash(cluster, seed=7, rounds=len(ROUNDS), hurts=[], plan=ROUNDS)
    assert report.faults.found == []
    assert report.rounds == len(ROUNDS)
    assert {name for name, count in report.hurts.items() if count} == {one for chosen in ROUNDS for one in chosen}
    assert report.counts["soak.pulse.a confirmed"] > 20
    assert report.counts["soak.numbers.b confirmed"] > 20
    assert report.counts["transactions committed"] > 3
    assert report.counts["scrubs"] == 2, "the copies of both groups were compared"


PLANTED = {
    "confirm_alone": ("cut-kill", {"confirmed and lost", "coin lost", "came back after its acknowledgement"}),
    "forget_resend_keys": ("kill-primary,hand-over", {"stored twice"}),
    "roll_back_prepared": ("slow-kill", {"coin lost", "coin doubled", "transaction torn"}),
}


@pytest.mark.long
def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "example.py").write_text(example)
    subprocess.run([sys.executable, "-W", "error", str(tmp_path / "example.py")], check=True, timeout=100)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_noticed(plant: str) -> None:
    hurts, expected = PLANTED[plant]
    report = run(1, 40, hurts.split(","), plant=plant)
    assert expected & set(report.faults.counts), report.faults
