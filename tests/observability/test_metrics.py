"""From a status report to the text Prometheus reads, checked with Prometheus's own parsers."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fairlead.journal.sync_times import SyncTimes
from fairlead.observability.catalogue import everything
from fairlead.observability.facts import Facts
from fairlead.observability.metrics import OPENMETRICS, render
from tests.observability.given import destination, facts, status


def read(found: Facts) -> dict[str, Family]:
    body, _ = render(found)
    return {family.name: family for family in parse_text(body.decode())}


def value(found: Facts, name: str, **labels: str) -> float:
    for family in read(found).values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"{name} {labels} is not there")


def test_both_formats_are_given_by_what_is_accepted() -> None:
    plain, plain_type = render(facts(), "*/*")
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert render(facts(), "") == (plain, plain_type)
    text, text_type = render(facts(), f"{OPENMETRICS}, text/plain;version=0.0.4;q=0.5")
    assert text_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    families = {family.name: family for family in parse_openmetrics(text.decode())}
    assert families["fairlead_build"].type == "info"
    assert families["fairlead_journal_sync_seconds"].type == "histogram"
    assert len(families) == len(list(parse_text(plain.decode())))


def test_each_metric_has_the_kind_and_the_sentence_of_the_catalogue() -> None:
    known = {metric.name: metric for metric in everything()}
    body, _ = render(facts(), OPENMETRICS)
    families = list(parse_openmetrics(body.decode()))
    assert families
    for family in families:
        metric = known[family.name]
        assert (family.type, family.documentation) == (metric.kind, metric.sentence)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_counters_count_and_times_are_seconds() -> None:
    found = facts()
    assert value(found, "fairlead_manager_messages_in_total", manager="1") == 200
    assert value(found, "fairlead_manager_connections_open", manager="0") == 2
    assert value(found, "fairlead_router_last_pause_seconds") == 0.0015
    assert value(found, "fairlead_process_restarts_total", role="manager", index="1") == 1
    assert value(found, "fairlead_start_time_seconds") == 900.0
    assert value(found, "fairlead_manager_ring_bytes", manager="0", ring="up") == 512
    assert value(found, "fairlead_ready") == 1


def test_processes_of_the_same_place_and_state_are_added_up() -> None:
    assert value(facts(), "fairlead_process_cpu_seconds_total", role="router", state="standby") == 1.0
    assert value(facts(), "fairlead_process_cpu_seconds_total", role="router", state="active") == 0.5


def test_flushes_are_a_histogram() -> None:
    found = facts()
    assert value(found, "fairlead_journal_sync_seconds_bucket", le="0.001") == 3
    assert value(found, "fairlead_journal_sync_seconds_bucket", le="+Inf") == 4
    assert value(found, "fairlead_journal_sync_seconds_count") == 4
    assert value(found, "fairlead_journal_sync_seconds_sum") == 0.008
    assert value(found, "fairlead_journal_sync_seconds_bucket", le="0.002") == 3, "torn while it was read: never less"


def test_pauses_are_a_histogram_for_each_component() -> None:
    replaced = {
        "outcomes": [["router", "done", 2]],
        "pauses": {"router": {"spans": [1, 0, 1] + [0] * 11, "total_ms": 4.5}},
    }
    found = facts(status=status(replaced=replaced))
    assert value(found, "fairlead_updates_total", component="router", outcome="done") == 2
    assert value(found, "fairlead_update_pause_seconds_bucket", component="router", le="0.002") == 1
    assert value(found, "fairlead_update_pause_seconds_bucket", component="router", le="0.005") == 2
    assert value(found, "fairlead_update_pause_seconds_sum", component="router") == 0.0045


def test_destinations_by_name_and_the_rest_as_one() -> None:
    found = facts(destinations=[destination("orders", depth=5, oldest_ms=990_000), destination("b", depth=0)])
    assert value(found, "fairlead_destination_depth", destination="orders", kind="queue", group="a") == 5
    assert value(found, "fairlead_destination_oldest_seconds", destination="orders") == 10.0
    assert value(found, "fairlead_destination_oldest_seconds", destination="b") == 0.0
    assert value(found, "fairlead_destination_depth", destination="_other") == 1
    assert value(found, "fairlead_destinations_unnamed", group="a") == 2


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "ünïcode.✓", "a b{c}", "x" * 255])
def test_a_strange_name_is_a_label_like_others(name: str) -> None:
    found = facts(destinations=[destination(name, depth=5)])
    assert value(found, "fairlead_destination_depth", destination=name) == 5
    body, _ = render(found, OPENMETRICS)
    assert any(
        sample.labels.get("destination") == name
        for family in parse_openmetrics(body.decode())
        for sample in family.samples
    )


def test_a_server_without_a_message_manager_has_no_lines_of_one() -> None:
    known = status()
    known["messages"]["enabled"] = False
    families = read(facts(status=known, destinations=[], others=[]))
    assert not any(
        name.startswith(("fairlead_messages", "fairlead_journal", "fairlead_destination")) for name in families
    )


def test_an_older_server_that_counts_less_is_shown_without_what_it_lacks() -> None:
    known = status()
    for name in [name for name in known["messages"] if name.startswith("sync_") or name == "syncs_timed"]:
        del known["messages"][name]
    del known["managers"][0]["counters"]["turned_away"]
    families = read(facts(status=known))
    assert "fairlead_journal_sync_seconds" not in families
    assert len(families["fairlead_manager_turned_away"].samples) == 1


def test_links_streams_and_the_directory_where_there_are_some() -> None:
    link = {
        "parent": "fairlead://u:secret@far:7400",
        "state": "up",
        "messages_in": 1,
        "messages_out": 2,
        "queued": 3,
        "dropped": 4,
    }
    streams = {
        "state": "active",
        "streams": 2,
        "adapters": 3,
        "clients": 1,
        "without_active": 0,
        "without_backup": 1,
        "failovers": 5,
        "switches": 6,
    }
    registrar = {
        "state": "active",
        "name": "b1",
        "registered": True,
        "connections": 4,
        "limit": 9,
        "applications_total": 2,
        "pending": 0,
    }
    found = facts(status=status(links=[link], streams=streams, registrar=registrar))
    assert value(found, "fairlead_link_up", parent="far:7400") == 1
    assert b"secret" not in render(found)[0]
    assert value(found, "fairlead_stream_failovers_total") == 5
    assert value(found, "fairlead_broker_connections_limit") == 9


def test_groups_of_a_cluster_with_their_members() -> None:
    times = SyncTimes()
    times.took(3_000_000)
    journal = {"syncs": 1, "disk_bytes": 4096, "sync_times": times.numbers()}
    member: dict[str, Any] = {
        "node": "mm1", "serving": True, "in_sync": True, "lag": None, "depth": 8, "stored": 5, "journal": journal,
    }  # fmt: skip
    old = {"syncs": 2, "disk_bytes": 1}
    behind = member | {"node": "mm2", "serving": False, "in_sync": False, "lag": 12, "depth": 7, "journal": old}
    group = {
        "group": "a",
        "primary": "mm1",
        "epoch": 3,
        "in_sync": ["mm1.1"],
        "copies": 2,
        "degraded": True,
        "members": [member, behind],
    }
    found = facts(cluster={"nodes": [{}, {}], "missing": ["mm3"], "groups": [group]})
    assert value(found, "fairlead_group_epoch", group="a") == 3
    assert value(found, "fairlead_group_degraded", group="a") == 1
    assert value(found, "fairlead_member_lag_records", group="a", node="mm2") == 12
    assert len(read(found)["fairlead_member_lag_records"].samples) == 1, "nobody knows how far the leader is behind"
    assert value(found, "fairlead_cluster_nodes_missing") == 1
    assert value(found, "fairlead_member_stored_total", node="mm1") == 5
    assert value(found, "fairlead_member_journal_syncs_total", node="mm2") == 2
    assert value(found, "fairlead_member_journal_sync_seconds_bucket", node="mm1", le="0.005") == 1
    assert value(found, "fairlead_member_journal_sync_seconds_bucket", node="mm1", le="0.002") == 0


def test_an_agent_tells_what_it_counts_and_nothing_of_messages_it_does_not_keep() -> None:
    known = status()
    known["posts"][2]["role"] = "agent"
    of_agent, of_manager = read(facts(status=known)), read(facts())
    assert "fairlead_messages_groups_up" in of_agent
    assert "fairlead_messages_commands" in of_agent
    assert not {"fairlead_messages_stored", "fairlead_journal_syncs", "fairlead_journal_sync_seconds"} & of_agent.keys()
    assert "fairlead_messages_groups_up" not in of_manager
    assert "fairlead_messages_commands" in of_manager
