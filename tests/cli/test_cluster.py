"""`fairlead cluster` with a real cluster: look at it, move it, change it, hurt it, and all messages are still there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fairlead.sync
from fairlead.cli import main
from fairlead.cluster.configuration.overview import differing, overview
from fairlead.errors import BadCredentials
from fairlead.runtime.local_cluster import LocalCluster
from fairlead.testing import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cms=1, groups=2, backups=1, faults=True, secret=True) as found:
        found.wait_in_sync("a", 2)
        found.wait_in_sync("b", 2)
        yield found


def run(cluster: Cluster, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *arguments, "--data", str(cluster.directory)])


def ok(cluster: Cluster, *arguments: str) -> Any:
    result = run(cluster, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.requirement("CLU-147", state="half", note="the warning; no witness is added")
@pytest.mark.requirement("CLU-44", state="half", note="the status names the carrier")
def test_status_shows_nodes_groups_and_warnings(cluster: Cluster) -> None:
    found = json.loads(run(cluster, "status", "--json").output)
    assert {node["node"]: node["kind"] for node in found["nodes"]} == {"cm1": "cm", "mm1": "mm", "mm2": "mm"}
    assert {group["group"]: len(group["in_sync"]) for group in found["groups"]} == {"a": 2, "b": 2}
    assert len({node["essential"] for node in found["nodes"]}) == 1
    assert any("on one machine" in warning for warning in found["warnings"]), "all on this host: CLU-147"
    shown = run(cluster, "status")
    assert shown.exit_code == 4, "there is that warning"
    assert "mm2" in shown.output
    assert "primary" in shown.output


@pytest.mark.requirement("CLU-185", state="half", note="every node answers; the group of _ADMIN is up")
def test_every_node_answers_on_its_local_socket(cluster: Cluster) -> None:
    for node in ("cm1", "mm1", "mm2"):
        words = ["cluster", "status", "--json", "--data", str(cluster.data(node))]
        assert len(json.loads(CliRunner().invoke(main, words).output)["nodes"]) == 3


def test_by_url_with_the_rights_of_a_client(cluster: Cluster) -> None:
    result = CliRunner().invoke(main, ["cluster", "status", "--json", "--server", cluster.url])
    assert len(json.loads(result.output)["nodes"]) == 3, result.output


@pytest.mark.requirement("CLU-184", "CLU-192", state="half", note="one change, on all nodes")
@pytest.mark.requirement("CLU-188", state="half", note="no essential value changes online")
def test_a_setting_is_changed_on_all_nodes(cluster: Cluster) -> None:
    answer = ok(cluster, "set", "removal_s", "6.5")
    assert answer["missing"] == []
    for node in cluster.nodes:
        assert cluster.local.files(node).settings.removal_s == 6.5
    refused = run(cluster, "set", "detection_s", "1.0")
    assert refused.exit_code == 1
    assert "essential" in refused.output


@pytest.mark.requirement(
    "CLU-192", state="half", note="members that run take it at once, or it is said that they do not"
)
def test_a_setting_reaches_members_that_run_or_it_is_said_that_it_does_not(cluster: Cluster) -> None:
    def everywhere(name: str, value: object) -> bool:
        return all(cluster.facts(node, group)[name] == value for node in ("mm1", "mm2") for group in ("a", "b"))

    ok(cluster, "set", "removal_s", "7.5")
    cluster.wait_until(lambda: everywhere("removal_s", 7.5), "every member has it")
    assert ok(cluster, "set", "messages.quota_bytes", str(1 << 33))["at_start"] == []
    cluster.wait_until(lambda: everywhere("quota_bytes", 1 << 33), "every member has it")
    assert ok(cluster, "set", "messages.cache_bytes", str(1 << 24))["at_start"] == ["messages.cache_bytes"]
    assert "next start" in run(cluster, "set", "messages.cache_bytes", str(1 << 25)).output


def test_primaries_move_and_messages_stay(cluster: Cluster) -> None:
    with fairlead.sync.connect(cluster.url) as connection:
        queue = connection.queue("moved")
        for number in range(20):
            queue.send(str(number).encode())
        for group in ("a", "b"):
            before = cluster.primary(group)
            after = next(node for node in ("mm1", "mm2") if node != before)
            cluster.wait_in_sync(group, 2)
            assert ok(cluster, "move-primary", group, after)["primary"] == after
            assert cluster.primary(group) == after
        got = []
        with queue.consume() as messages:
            for message in messages:
                got.append(int(message.body))
                message.ack()
                if len(got) == 20:
                    break
    assert got == list(range(20))


def test_a_scrub_reads_everything(cluster: Cluster) -> None:
    def equal() -> bool:
        """A member that has just handed over builds its state again, and says so: exit code 1."""
        compared = json.loads(run(cluster, "scrub", "--json").output)["differing"]
        assert not any(compared.values()), "not yet compared is fine, different is not"
        return bool(compared == {"a": [], "b": []})

    cluster.wait_until(equal, "all copies are equal")
    found = ok(cluster, "scrub", "a")
    assert [row["member"] for row in found["members"]] == ["mm1", "mm2"]
    assert found["damaged"] == 0
    shown = run(cluster, "scrub")
    assert shown.exit_code == 0
    assert "group b: all copies are equal" in shown.output


def test_copies_that_differ_are_named_and_those_that_moved_are_not_compared() -> None:
    one = {"began": 7, "ended": 7, "digests": {"q": "1", "r": "2"}}
    assert differing({"mm1": one, "mm2": one}) == []
    assert differing({"mm1": one, "mm2": {**one, "digests": {"q": "1", "r": "3"}}}) == ["r"]
    assert differing({"mm1": one, "mm2": {**one, "digests": {"q": "1"}}}) == ["r"]
    assert differing({"mm1": one, "mm2": {**one, "began": 6}}) is None
    assert differing({"mm1": {"error": "x"}, "mm2": one}) is None


def test_faults_are_set_and_healed(cluster: Cluster) -> None:
    assert run(cluster, "fault", "delay", "--from", "mm1", "--to", "mm2", "--value", "0.01").exit_code == 0
    assert run(cluster, "fault", "heal").exit_code == 0


@pytest.mark.requirement("CLU-145", state="half", note="a voter out and in; never two majorities: tests/replication")
@pytest.mark.requirement("CLU-8", state="half", note="members and groups come and go")
def test_voters_and_members_change_online(cluster: Cluster) -> None:
    assert run(cluster, "remove-voter", "cm1").exit_code == 2, "without a terminal it wants --yes"
    ok(cluster, "remove-voter", "cm1", "--yes")
    votes = {group["group"]: group["votes"] for group in cluster.status()["groups"]}
    assert votes == {"a": ["mm1.0", "mm2.0"], "b": ["mm1.0", "mm2.0"]}
    ok(cluster, "add-voter", "cm1")
    assert all("cm1.0" in group["votes"] for group in cluster.status()["groups"])
    assert "does not run" in run(cluster, "add-voter", "nobody").output
    ok(cluster, "grow", "c", "mm1")
    ok(cluster, "grow", "c", "mm2")
    cluster.wait_in_sync("c", 2)
    leader = cluster.primary("c")
    ok(cluster, "shrink", "c", leader, "--yes")
    cluster.wait_until(lambda: cluster.primary("c") not in ("", leader), "the other one leads c alone")
    assert "only member" in run(cluster, "shrink", "c", cluster.primary("c"), "--yes").output


@pytest.mark.requirement("CLU-11", state="half", note="one node, to the same version")
def test_an_update_of_one_node_waits_until_it_is_in_sync(cluster: Cluster) -> None:
    before = cluster.facts("mm2")["pid"]
    words = ["cluster", "update", "--data", str(cluster.directory), "--node", "mm2"]
    subprocess.run([sys.executable, "-m", "fairlead", *words], check=True, timeout=120)
    assert cluster.facts("mm2")["pid"] != before
    assert all("mm2" in {member["node"] for member in group["members"] if member["in_sync"]}
               for group in cluster.status()["groups"] if group["group"] != "c")  # fmt: skip


def test_a_killed_primary_is_followed_by_the_backup(cluster: Cluster) -> None:
    before = cluster.primary("a")
    cluster.kill(before)
    cluster.wait_until(lambda: cluster.primary("a") not in ("", before), "another one leads a")
    found = json.loads(run(cluster, "status", "--json").output)
    assert any("fewer copies" in warning for warning in found["warnings"])
    cluster.start(before)
    cluster.wait_in_sync("a", 2)
    cluster.wait_in_sync("b", 2)


@pytest.mark.requirement("CLU-206", state="half", note="who may connect; a withdrawn right: processes/durable")
def test_users_are_a_setting_of_all_client_managers(cluster: Cluster, tmp_path: Path) -> None:
    file = str(tmp_path / "users.toml")
    words = ["user", "add", "bob", "--password-stdin", "--file", file]
    assert CliRunner().invoke(main, words, input="secret\n").exit_code == 0
    assert ok(cluster, "set", "users", f"@{file}")["missing"] == []

    def refused() -> bool:
        try:
            with fairlead.sync.connect(cluster.url, reconnect_limit_s=0):
                return False
        except BadCredentials:
            return True

    cluster.wait_until(refused, "clients without a name are refused", 10)
    with fairlead.sync.connect(cluster.url, user="bob", password="secret") as connection:
        connection.queue("of-bob").send(b"x")


def test_up_in_the_foreground_ends_with_everything_it_started(tmp_path: Path) -> None:
    words = ["cluster", "up", "--data", str(tmp_path), "--cm", "1", "--groups", "1", "--backups", "0", "--port", "0"]
    with subprocess.Popen([sys.executable, "-m", "fairlead", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = ""
        for line in process.stdout:
            shown += line
            if "Ctrl-C" in line:
                break
        local = LocalCluster(tmp_path)
        assert local.url in shown
        pids = [local.pid(name) for name in local.names()]
        assert None not in pids
        again = CliRunner().invoke(main, words)
        assert again.exit_code == 2
        assert "run already" in again.output
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert local.running() == []


def test_an_answer_that_is_an_error_is_a_warning() -> None:
    found = overview({"nodes": {"a1": {"ok": False, "error": "no"}}, "missing": ["a2"], "expected": 2})
    assert found["warnings"] == ["a2 did not answer", "a1: no"]
