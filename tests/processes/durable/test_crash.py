"""The crash harness itself, for some seconds: do the books balance, and do they notice each planted bug?"""

from __future__ import annotations

import pytest

from tests.processes.durable import power
from tests.processes.durable.crash import MM, crash, run, server_for

pytestmark = pytest.mark.processes

SEEDS = (3, 4, 5, 6)
needs_compiler = pytest.mark.skipif(power.compiler() is None, reason="needs a C compiler")


@pytest.mark.requirement(
    "CLU-114", "CLU-116", "CLU-119", "CLU-123", "CLU-155",
    state="scaled", note="some rounds; `python -m tests.processes.durable.crash` runs for as long as one likes",
)  # fmt: skip
async def test_some_rounds_of_kills_end_with_balanced_books() -> None:
    with server_for() as (server, _):
        report = await crash(server, seed=11, rounds=3)
    assert report.faults.found == []
    assert report.rounds == 3
    assert sum(report.kills.values()) >= 3
    assert report.counts["soak.numbers confirmed"] > 100
    assert report.counts["transactions committed"] > 3


@needs_compiler
@pytest.mark.requirement("CLU-114", "CLU-115", state="scaled", note="some losses of power")
async def test_some_losses_of_power_end_with_balanced_books() -> None:
    names = ("numbers", "transfers", "news")
    with server_for(managers=1, with_disk=True) as (server, disk):
        report = await crash(server, seed=12, rounds=1, managers=1, names=names, victims={"power": 1}, disk=disk)
    assert report.faults.found == []
    assert report.kills["power"] >= 2


PLANTED = {
    "double_delivery": (("numbers",), {MM: 1}, {"delivered again without the mark"}),
    "forget_resend_keys": (("numbers",), {MM: 1, "manager": 1}, {"stored twice"}),
    "fail_unforeseen": (("numbers",), {MM: 1}, {"a command failed in the server"}),
    "lose_acknowledgements": (("numbers",), {MM: 1}, {"came back after its acknowledgement"}),
    "visible_before_commit": (
        ("transfers",),
        {MM: 1},
        {"visible before its commit", "visible though rolled back", "coin doubled"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_noticed(plant: str) -> None:
    """A kill has to meet the bug: where it is luck whether one does, there is more than one seed."""
    names, victims, expected = PLANTED[plant]
    for seed in SEEDS:
        report = run(seed, 8, plant=plant, managers=1, names=names, victims=victims, patience_s=5)
        if expected & set(report.faults.counts):
            return
    pytest.fail(f"{plant} was not noticed with the seeds {SEEDS}: {report.faults}")


@pytest.mark.slow
@needs_compiler
def test_a_confirm_before_the_sync_is_noticed_when_the_power_fails() -> None:
    for seed in SEEDS:
        report = run(seed, 8, way="power", plant="confirm_before_sync", managers=1, names=("numbers",), patience_s=3)
        if {"confirmed and lost", "came back after its acknowledgement"} & set(report.faults.counts):
            return
    pytest.fail(f"confirming before the sync was not noticed with the seeds {SEEDS}: {report.faults}")
