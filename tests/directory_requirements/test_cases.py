"""The acceptance cases of the specification, on directory servers and brokers that are each started by themselves."""

from __future__ import annotations

import pytest

from fairlead.testing.directory_world import World
from tests.directory_requirements.cases import case_1, case_2, case_3, case_4, case_5
from tests.directory_requirements.tools import Stage, off

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


@pytest.mark.requirement("DIR-46", state="half", note="case 1; the 300 clients are in another test")
@pytest.mark.requirement("DIR-12", "DIR-14")
async def test_case_1_each_client_rotates_by_itself(world: World, stage: Stage, app: str) -> None:
    await case_1(world, stage, app)


@pytest.mark.requirement("DIR-2")
@pytest.mark.requirement("DIR-49", state="half", note="one after another; the concurrent ones are in another test")
async def test_case_2_the_directory_rotates_for_all(world: World, stage: Stage, app: str) -> None:
    await case_2(world, stage, app)


@pytest.mark.requirement("DIR-6")
async def test_case_2_through_http(world: World, stage: Stage, app: str) -> None:
    """The brokers of this world speak to the directory through the tunnel, and these clients do too."""
    await case_2(world, stage, app, "http+directory")


@pytest.mark.requirement("DIR-60", state="half", note="the order of the attempts is in another test")
async def test_case_3_a_broker_that_refuses_gets_nothing(world: World, stage: Stage, app: str) -> None:
    await off(world.kill, "B")
    try:
        await case_3(world, stage, app)
    finally:
        await off(world.start_again, "B")
        await world.until(lambda: available(world, "B"), "B is available again")


async def available(world: World, name: str) -> bool:
    async with world.open() as directory:
        return any(row.available for row in (await directory.list_brokers()).brokers if row.name == name)


@pytest.mark.requirement("DIR-73", "DIR-74", "DIR-76")
async def test_case_4_two_conversations_at_once(world: World, stage: Stage, app: str) -> None:
    await case_4(world, stage, app)


@pytest.mark.requirement("DIR-56", state="half", note="the fixed choice; auto is in another test")
async def test_case_5_what_goes_on_without_any_directory_server(world: World, stage: Stage, app: str) -> None:
    directories = world.directories
    assert directories is not None
    await case_5(world, stage, app, lambda: off(directories.stop), lambda: off(directories.start))
