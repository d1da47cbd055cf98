"""The same in a cluster: users are a setting, tenants reach all groups, and the log hears of it."""

from __future__ import annotations

import json

import pytest

import fairlead
from fairlead import errors
from fairlead.security.quotas import Quota
from fairlead.security.users import User, Users, to_toml
from fairlead.testing.cluster import Cluster
from tests.processes.access.conftest import HASH, PATIENCE_S, eventually

pytestmark = pytest.mark.processes

TWO = Users(
    {
        "root": User(hash=HASH, admin=["_ADMIN"], consume=[">", "_LOG"]),
        "red": User(hash=HASH, tenant="red", admin=["_ADMIN"], consume=[">", "_DMQ"]),
        "blue": User(hash=HASH, tenant="blue"),
    },
    {},
    {"red": Quota(destinations=4), "blue": Quota()},
)


@pytest.mark.long
async def test_tenants_and_live_changes_in_a_cluster() -> None:
    with Cluster(cms=1, groups=2, backups=0, settings={"users": to_toml(TWO)}) as cluster:

        def connect(user: str) -> fairlead.Connection:
            return fairlead.connect(cluster.url, user=user, password="secret")

        async with connect("red") as red, connect("blue") as blue:
            for name in ("one", "two", "three"):
                await red.queue(name).send(name)
                with pytest.raises(errors.NoDestination):
                    await blue.queue(name, create=False).send("x")
            found = {one["name"] for one in (await red.admin.destinations())["destinations"]}
            assert {"one", "two", "three"} <= found
            assert not any(name.startswith("_T") for name in found)
            async with red.queue("two").consume() as two:
                message = await two.receive(timeout=PATIENCE_S)
                assert message is not None
                message.reject()
            async with red.subscribe("chat") as inbox:
                await blue.publish("chat", b"no")
                await red.publish("chat", b"yes")
                assert (await inbox.next(timeout=PATIENCE_S)).body == b"yes"

        async def logged() -> bool:
            async with connect("root") as root:
                codes = {json.loads(one.body)["code"] async for one in root.topic("_LOG").replay()}
            return "login" in codes

        await eventually(logged)
        cluster.change(users=to_toml(TWO.without("blue")))

        async def is_out() -> bool:
            try:
                async with connect("blue"):
                    return False
            except errors.BadCredentials:
                return True

        await eventually(is_out)
