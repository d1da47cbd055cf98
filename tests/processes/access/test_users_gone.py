"""A users file that vanishes lets nobody in whom it would not have: not by a reload, not by a death."""

from __future__ import annotations

import os
import signal

import pytest

import fairlead
from fairlead import errors
from fairlead.security import users
from tests.processes.access.conftest import Guarded, eventually

pytestmark = pytest.mark.processes


async def test_without_its_file_the_users_there_were_stay_in_force(guarded: Guarded) -> None:
    server = guarded.server
    guarded.file.unlink()

    async def said() -> bool:
        return "it is gone" in server.output()

    await eventually(said)
    server.ask("reload")
    await _nobody_new(guarded)
    victim = next(one for one in server.status()["components"] if one["role"] == "manager")
    os.kill(victim["pid"], signal.SIGKILL)

    async def buried() -> bool:
        here = {one["pid"] for one in server.status()["components"]}
        return victim["pid"] not in here and "there is no users file" in server.output()

    await eventually(buried)
    for _ in range(3):
        await _nobody_comes(guarded)

    users.write(guarded.file, guarded.users)  # and with the file it goes on

    async def whole() -> bool:
        active = [one for one in server.status()["components"] if one["role"] == "manager" and one["state"] == "active"]
        return len(active) == 2

    await eventually(whole)
    async with guarded.connect("root") as root:
        await root.publish("news.today", b"")


async def _nobody_new(guarded: Guarded) -> None:
    for _ in range(4):  # whichever manager takes it
        await _nobody_comes(guarded)
        async with guarded.connect("ann") as ann:
            with pytest.raises(errors.NotAllowed):
                await ann.subscribe("orders.x").start()


async def _nobody_comes(guarded: Guarded) -> None:
    """Who says no name is refused, or waits in vain for a manager that does not start."""
    with pytest.raises((errors.BadCredentials, errors.ConnectionLost)):
        async with fairlead.connect(guarded.server.url, name="anybody", connect_timeout_s=1.0):
            pass
