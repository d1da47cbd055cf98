"""Nodes as processes: killed, frozen, thawed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.bus.rig import Town

NODE = """
import select, sys, time
from fairlead.bus.edge import BusAddress, BusConfig, open_bus
carrier, directory, group, seed = sys.argv[1:]
listen = directory if carrier == "local" else "127.0.0.1:0"
bus = open_bus(BusConfig("z", time.time_ns(), "test", carrier, [BusAddress("main", listen, group)],
                         {"main": [seed]}, detection_s=1.0))
bus.join("all")
bus.listen("p", lambda sender, message: bus.send(sender, "p", b"echo ", message))
while True:
    select.select([bus], [], [], bus.patience_s(time.monotonic()))
    bus.turn(time.monotonic())
"""


@pytest.fixture(params=["tcp", "local", "udp"])
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    with Town(request.param) as town:
        yield town


@pytest.mark.processes
@pytest.mark.requirement("CLU-40", state="half", note="views converge, they are not decided together")
def test_a_process_is_frozen_thawed_and_killed(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    arguments = [town.carrier, town.directory.name, town.group_of("main"), a.bus.addresses()["main"]]
    process = subprocess.Popen([sys.executable, "-c", NODE, *arguments])
    try:
        town.until(lambda: a.sees() == b.sees() == {"a", "b", "z"})
        a.bus.send("z", "p", b"1")
        town.until(lambda: a.got == [("z", b"echo 1")])
        os.kill(process.pid, signal.SIGSTOP)
        took_s = town.until(lambda: a.sees() == b.sees() == {"a", "b"})
        assert 0.7 < took_s < 3
        assert a.bus.view.number == b.bus.view.number
        os.kill(process.pid, signal.SIGCONT)
        town.until(lambda: a.sees() == b.sees() == {"a", "b", "z"})
        town.until(lambda: a.bus.view.peers["z"].rank == b.bus.view.peers["z"].rank == 2)
        a.got.clear()
        a.bus.cast("all", "p", b"2")
        town.until(lambda: a.got == [("z", b"echo 2")])
        assert a.broken == b.broken == ["z"]
        process.kill()
        took_s = town.until(lambda: a.sees() == b.sees() == {"a", "b"})
        assert took_s < 0.7
        assert a.broken == b.broken == ["z", "z"]
    finally:
        process.kill()
        process.wait()


@pytest.mark.processes
def test_the_descriptor_wakes_whoever_waits(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    for _ in range(20):
        town.turn()
    b.bus.send("a", "p", b"x")
    b.bus.flush()
    begun_s = time.monotonic()
    while not a.got:
        assert select.select([a.bus], [], [], 20)[0]
        a.bus.turn(time.monotonic())
    assert time.monotonic() - begun_s < 10
