"""The console of a client manager: the nodes and groups of its cluster, and all groups' destinations in one list."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fairlead.runtime import admin
from fairlead.testing import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.slow]

WAIT_S = 60.0


def until(look: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.1)
    return found


def test_a_cluster_is_seen_from_its_client_manager() -> None:
    cluster = Cluster(cms=1, groups=2, backups=0)
    with (cluster.directory / "cm1" / "node.toml").open("a") as file:
        file.write('\n[console]\nlisten = ["127.0.0.1:0"]\n')
    with cluster:
        report = admin.answer_of(cluster.local.data("cm1") / "run", "status", brief=True)["status"]
        (url,) = report["console"]["urls"]
        with httpx.Client(base_url=url, timeout=WAIT_S, headers={"X-Fairlead-CSRF": "1"}) as http:
            seen = until(lambda: (one := http.get("/api/v1/cluster").json())["clustered"] and one)
            assert {one["node"] for one in seen["nodes"]} == {"cm1", "mm1"}
            assert {one["group"]: one["primary"] for one in seen["groups"]} == {"a": "mm1", "b": "mm1"}
            for name in ("one", "two", "three", "four"):
                assert http.post(f"/api/v1/destinations/{name}", json={}).status_code == 200
            rows = http.get("/api/v1/destinations").json()["destinations"]
            assert {one["group"] for one in rows} == {"a", "b"}
            sent = http.post("/api/v1/destinations/one/send", json={"body": "x"})
            assert sent.json()["messages"] == 1
            until(lambda: http.get("/api/v1/me").json()["node"] == "cm1")
            assert http.get("/api/v1/dead").json()["queues"] == ["_DMQ", "_DMQ.b"]
            events = until(
                lambda: http.get("/api/v1/events", params={"text": "'two'", "code": "audit"}).json()["events"]
            )
            assert len(events) == 1
