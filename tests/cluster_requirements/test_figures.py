"""What a client manager of a cluster tells a monitoring system of the groups behind it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from fairlead.observability.edge.scrape import gather
from fairlead.observability.health import ready
from fairlead.observability.metrics import render
from fairlead.testing.cluster import Cluster
from tests.cluster_requirements.conftest import Join
from tests.observability.shipped import OF_CLUSTERS, names

pytestmark = [pytest.mark.processes, pytest.mark.nodes]


async def test_groups_members_and_destinations_are_told_at_any_client_manager(
    cluster: Cluster, join: Join, name: str
) -> None:
    async with join() as connection:
        await connection.queue(name).send(b"x")
    for node in [node for node in cluster.nodes if node.startswith("cm")][:2]:
        facts = gather(cluster.data(node) / "run", destinations=1000)
        found = [one for family in parse(render(facts)[0].decode()) for one in family.samples]
        assert facts.unanswered == []
        verdict = ready(facts.status)
        assert verdict.ok, verdict.sentence
        assert "agent" in {check.name for check in verdict.checks}
        assert {wanted for wanted in names() if OF_CLUSTERS.match(wanted)} <= {one.name for one in found}
        depths = [
            one for one in found if one.name == "fairlead_destination_depth" and one.labels["destination"] == name
        ]
        assert [one.value for one in depths] == [1]
        serving = {
            (one.labels["group"], one.labels["node"])
            for one in found
            if one.name == "fairlead_member_serving" and one.value
        }
        assert serving == {(group, cluster.primary(group)) for group in {group for group, _ in serving}}
        assert len(serving) == 2
