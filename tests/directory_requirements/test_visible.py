"""What can be seen from outside: the path of a connection, and the state of clients, brokers and directory servers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psutil
import pytest

from fairlead.testing.directory_world import World
from tests.directory_requirements.tools import Stage, off, picks

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


def remote_ports() -> list[int]:
    """Where the sockets of this process lead to."""
    sockets = psutil.Process().net_connections("tcp")
    return sorted(one.raddr.port for one in sockets if one.status == psutil.CONN_ESTABLISHED)


@pytest.mark.requirement("DIR-48", "DIR-58")
@pytest.mark.parametrize("placement", ["centralised", "decentralised"])
async def test_a_connection_leads_straight_to_its_broker(world: World, stage: Stage, app: str, placement: str) -> None:
    client = stage.client(1, placement=placement)
    warm = await client.open(f"{app}.warm")
    before, picked = remote_ports(), await picks(world)
    opened = [await client.open(app) for _ in range(3)]
    assert await picks(world) - picked == (3 if placement == "centralised" else 0)
    await world.labelled(app, 3)
    more = remote_ports()
    for port in before:
        more.remove(port)
    assert [connection.broker for connection in opened] == ["A", "B", "C"]
    assert more == sorted(world.brokers[name].port for name in "ABC")
    await warm.labelled()


@pytest.mark.requirement("DIR-81")
@pytest.mark.requirement("DIR-7", state="half", note="that the counts follow the traffic is shown elsewhere")
@pytest.mark.requirement("DIR-40")
async def test_clients_brokers_and_directory_servers_tell_their_state(world: World, stage: Stage, app: str) -> None:
    central = stage.client(1, placement="centralised")
    local = stage.client(2, placement="decentralised")
    connections = [await central.open(app), await central.open(app), await local.open(app)]
    await world.labelled(app, 3)
    facts = connections[2].directory_status()
    json.dumps(facts)  # for programs
    (copy,) = [one for one in facts["clusters"] if one["cluster"] == "cluster-A"]
    assert [row["name"] for row in copy["brokers"]] == ["A", "B", "C"]
    assert [row["port"] for row in copy["brokers"]] == [world.brokers[name].port for name in "ABC"]
    assert copy["revision"] > 0
    assert copy["age_s"] >= 0
    assert facts["mode"] == "decentralised"
    assert facts["unsettled"] == 0
    assert connections[0].directory_status()["mode"] == "centralised"

    told = (await world.status()).facts
    rotation = next(one for one in told["rotations"] if (one["app"], one["cluster"]) == (app, "cluster-A"))
    assert rotation["last"] == "B"
    assert told["operations"]["pick_broker"] >= 2
    assert set(told["leases"]) >= set("ABCD")

    registrar: dict[str, Any] = {}

    def told_all() -> bool:
        registrar.update(world.brokers["A"].status()["registrar"])
        here = registrar["applications"].get(app)
        return registrar["pending"] == 0 and here == {"kind": "dynamic", "connections": 2}

    await world.until(lambda: off(told_all), "the registrar tells of both connections at A")
    assert (registrar["name"], registrar["registered"], registrar["broker_state"]) == ("A", True, "up")
    assert registrar["error"] == ""


def command(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "directory", *words, "--wait", "30", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.requirement("DIR-81", state="half", note="the application table; each command has tests of its own")
async def test_the_command_line_shows_the_tables(world: World, stage: Stage, app: str) -> None:
    await (await stage.client(1).open(app, "only-B")).labelled()
    apps = await off(command, "apps", "--server", world.url(server=1))
    (row,) = [one for one in apps["apps"] if one["name"] == app]
    assert [(link["label"], link["broker"]) for link in row["links"]] == [(f"{app}-1", "B")]
