"""The status report (section 4.14 of docs/spec/server.md)."""

from __future__ import annotations

import time

import pytest

from fairlead.testing import Server
from tests.processes.tools import placed, reported, suspended

pytestmark = pytest.mark.processes


@pytest.mark.requirement("SRV-127")
async def test_the_report_has_everything_also_while_all_components_stand_still(shared: Server) -> None:
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe("seen.>") as seen:
        await receiver.respond("asked", lambda request: b"")
        await reported(shared, lambda report: all(one["instructions"] for one in report["managers"]))
        roles = ("router", "dispatcher", "manager")
        with suspended(*shared.pids("router")):
            await sender.publish("seen.x", b"12345")
            await reported(shared, lambda report: report["stored"] == 1)
            with suspended(*(pid for role in roles[1:] for pid in shared.pids(role))):
                report = shared.status()
                handle = next(handle for one in report["managers"] for handle in one["handles"])
                message = shared.status(handle=handle)["message"]
        components = {(one["role"], one["state"]) for one in report["components"]}
        assert components >= {("supervisor", "serving"), *((role, "active") for role in roles)}
        for one in report["components"]:
            assert one["version"]
            assert one["pid"] > 1
            assert 0 < time.time_ns() - one["started_ns"] < 3600e9
        entry = next(one for one in report["connections"] if one["uid"] == receiver.uid)
        assert (entry["instance"], entry["manager"], entry["state"]) == (receiver.instance, 1, "live")
        attached = next(one for one in report["attachments"] if one["uid"] == receiver.uid)
        assert (attached["subscriptions"], attached["registrations"]) == (["seen.>"], ["asked"])
        assert (report["subscriptions"], report["registrations"], report["requests_open"]) == (1, 1, 0)
        for manager in report["managers"]:
            assert manager["connections"] == 1
            assert manager["reading"] is True
            assert manager["instructions"] > 0
        source = report["managers"][0]
        assert (source["counted"], source["stored"], source["stored_bytes"]) == (1, 1, 5)
        assert source["queue"] >= 1  # the end of a round may be an entry of its own
        assert (report["stored"], report["stored_bytes"]) == (1, 5)
        assert message["uid"] == sender.uid
        assert (message["body_bytes"], message["relinquish_count"], message["relinquish_limit"]) == (5, 0, -1)
        assert {"deliveries", "deletes", "messages_routed"} <= report["router"].keys()
        assert (report["accounting_faults"], report["notes"]) == (0, [])
        assert report["messages_given_up"] >= 0
        await seen.next(timeout=5)
        assert shared.status(handle=handle)["message"] == {"handle": handle, "stored": False}


@pytest.mark.requirement("SRV-128")
async def test_suspending_and_resuming_has_no_lasting_effect(shared: Server) -> None:
    before = shared.status(brief=True)["components"]
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe("after") as after:
        for role in ("router", "dispatcher", "manager"):
            for pid in shared.pids(role):
                with suspended(pid):
                    await sender.publish("after", role)
                assert (await after.next(timeout=5)).body == role.encode()
    assert shared.status(brief=True)["components"] == before
