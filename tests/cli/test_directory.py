"""`fairlead directory` with a real server: look at the tables, change them, and be told what to do when it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console, RenderableType

import fairlead.sync
from fairlead.cli import directory_view, main
from fairlead.cli.directory import directory_group
from fairlead.directory.answers import Apps, Brokers, Clusters, Counted, Found, Status
from fairlead.directory.rows import Application, Broker, Cluster, Link
from fairlead.testing import Server


# --- Tables -----------------------------------------------------------------------------------------------------
def shown(what: RenderableType) -> list[list[str]]:
    """The words of each line."""
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(what)
    return [line.split() for line in capture.get().splitlines()]


def test_brokers_with_what_makes_them_unavailable() -> None:
    rows = (
        Broker(name="A", ip="::1", port=7400, available=True, clusters=("x", "y"), connections=3, limit=5),
        Broker(name="[B]", ip="10.0.0.2", port=0, secure_port=7443, state="draining"),
        Broker(name="C", ip="", port=0, missing=True),
    )
    lines = shown(directory_view.brokers(Brokers(revision=1, brokers=rows)))
    assert ["A", "::1", "7400", "up", "yes", "x,", "y", "3", "0", "5"] in lines
    assert ["[B]", "10.0.0.2", "7443", "draining", "no", "0", "0", "2000"] in lines
    assert ["C", "missing", "no", "0", "0", "2000"] in lines


def test_clusters_in_order() -> None:
    rows = (Cluster(name="x", brokers=("B", "A")), Cluster(name="y", heuristic="auto", rule="least_connections"))
    lines = shown(directory_view.clusters(Clusters(revision=1, clusters=rows)))
    assert ["x", "B,", "A", "default", "default"] in lines
    assert ["y", "auto", "least_connections"] in lines


def test_applications_row_by_row() -> None:
    links = tuple(Link(identity=str(n), broker=b, label=f"AX-{n}", client="ui/1") for n, b in enumerate("AB", 1))
    apps = (Application(name="AX", kind="dynamic", links=links), Application(name="AZ", kind="static", broker="C"))
    lines = shown(directory_view.apps(Apps(revision=1, apps=apps)))
    assert ["AX", "dynamic", "AX-1", "A", "asynchronous", "no", "ui/1"] in lines
    assert ["AX-2", "B", "asynchronous", "no", "ui/1"] in lines
    assert ["AZ", "static", "none", "C"] in lines
    assert not directory_view.found(Found(revision=1))


def test_totals_and_status() -> None:
    lines = shown(directory_view.totals("AX", Counted(revision=1, total=9, brokers={"A": 4, "B": 5})))
    assert ["A", "4"] in lines
    assert lines[-1] == ["total", "9"]
    facts = {
        "revision": 7,
        "picks": 3,
        "operations": {"renew": 12},
        "suspects": {},
        "rotations": [{"app": "AX", "last": "B", "owed": {"C": 1}}],
        "failures_by_broker": {"B": {"failures": 2, "reason": "[x]"}},
        "leases": {"A": 12.3456},
    }
    text = [line for table in directory_view.status(Status(revision=7, facts=facts)) for line in shown(table)]
    for line in (["picks", "3"], ["renew", "12"], ["1", "AX", "B", "C", "1"], ["B", "2", "[x]"], ["A", "12.346"]):
        assert line in text
    assert ["suspects"] not in text


def test_rows_for_programs_have_all_fields() -> None:
    found = directory_view.plain(Brokers(revision=1, brokers=(Broker(name="A", ip="::1", port=1),)))
    assert found["brokers"][0]["limit"] == 2000
    assert found["stale"] is False
    json.dumps(found)


# --- Commands ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings: dict[str, Any] = {"directory.serve": "true", "directory.lease_s": 600}
    with Server(managers=1, **settings) as found:
        with fairlead.sync.open_directory(found.url) as directory:
            for name in "ABC":
                directory.put_broker(Broker(name=name, ip="127.0.0.1", port=7400, identity=name))
            directory.join_cluster("cluster-A", "A")
            for number, name in enumerate("AAB"):
                link = Link(identity=f"{number:032x}", broker=name, cluster="cluster-A" if name == "A" else "")
                directory.connection_opened(app="AX", link=link)
            directory.register_app(app="AZ", kind="static", broker="C")
        yield found


def run(server: Server, *arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(main, ["directory", *arguments, "--server", server.url], **options)


def ok(server: Server, *arguments: str) -> Any:
    result = run(server, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.processes
@pytest.mark.requirement("DIR-81", state="half", note="the tables and counters of the directory; others show theirs")
def test_the_tables_can_be_looked_at(server: Server) -> None:
    assert [broker["name"] for broker in ok(server, "brokers")["brokers"]] == ["A", "B", "C"]
    assert ok(server, "apps")["apps"][0]["links"][2]["label"] == "AX-3"
    assert [app["name"] for app in ok(server, "apps", "AZ")["apps"]] == ["AZ"]
    assert ok(server, "lookup", "AX")["brokers"][0]["port"] == 7400
    assert ok(server, "totals", "AX")["brokers"] == {"A": 2, "B": 1}
    assert ok(server, "totals", "AX", "cluster-A")["total"] == 2
    assert ok(server, "status")["facts"]["connections"] == 3
    for command, words in {
        "brokers": ["A", "127.0.0.1"],
        "clusters": ["cluster-A"],
        "apps": ["AX-1", "static"],
        "status": ["picks", "leases"],
        "lookup AX": ["AX-2", "7400"],
        "totals AX": ["total"],
    }.items():
        result = run(server, *command.split())
        assert result.exit_code == 0, result.output
        for word in words:
            assert word in result.output


@pytest.mark.processes
@pytest.mark.requirement("DIR-32", state="half", note="by hand, at run time; what is picked then is shown elsewhere")
def test_clusters_are_changed(server: Server) -> None:
    def members(name: str) -> list[str]:
        found: dict[str, list[str]] = {row["name"]: row["brokers"] for row in ok(server, "clusters")["clusters"]}
        return found.get(name, [])

    assert "B is in made" in run(server, "join", "B", "made").output
    ok(server, "join", "C", "made", "--position", "0")
    assert members("made") == ["C", "B"]
    ok(server, "leave", "C", "made")
    assert members("made") == ["B"]
    refused = run(server, "join", "Q", "made")
    assert refused.exit_code == 1
    assert "no broker 'Q'" in refused.output


@pytest.mark.processes
@pytest.mark.requirement("DIR-54", state="half", note="the settings; who obeys them is shown with placing")
def test_how_brokers_are_chosen_is_set_piece_by_piece(server: Server) -> None:
    def chosen() -> tuple[Any, Any]:
        (row,) = [row for row in ok(server, "clusters")["clusters"] if row["name"] == "cluster-A"]
        return row["heuristic"], row["rule"]

    ok(server, "set", "cluster-A", "--heuristic", "centralised")
    ok(server, "set", "cluster-A", "--rule", "least_connections")
    assert chosen() == ("centralised", "least_connections"), "what is not said stays"
    ok(server, "set", "cluster-A", "--heuristic", "default", "--rule", "default")
    assert chosen() == (None, None)
    nothing = run(server, "set", "cluster-A")
    assert nothing.exit_code == 2
    assert "--heuristic" in nothing.output
    with fairlead.sync.open_directory(server.url) as directory:
        ok(server, "set", "--heuristic", "decentralised")
        ok(server, "set", "--rule", "least_connections")
        view = directory.get_cluster("cluster-A")
        assert (view.heuristic, view.rule) == ("decentralised", "least_connections")
        ok(server, "set", "--heuristic", "default", "--rule", "default")
        view = directory.get_cluster("cluster-A")
        assert (view.heuristic, view.rule) == ("auto", "rotation")


@pytest.mark.processes
def test_rebalancing_says_what_it_asks_for(server: Server) -> None:
    assert "none, it is even" in run(server, "rebalance", "cluster-A").output
    ok(server, "join", "C", "cluster-A")
    assert ok(server, "rebalance", "cluster-A")["moves"] == {"A": 1}
    assert "asked to move: 1 from A" in run(server, "rebalance", "cluster-A").output
    ok(server, "leave", "C", "cluster-A")


@pytest.mark.processes
@pytest.mark.requirement("DIR-29", state="half", note="explicit deregistration by hand")
def test_what_is_lost_is_asked_for_first(server: Server) -> None:
    with fairlead.sync.open_directory(server.url) as directory:
        directory.put_broker(Broker(name="D", ip="127.0.0.1", port=7400, identity="D"))
        directory.register_app(app="AS", kind="static", broker="B")
        directory.connection_opened(app="AS", link=Link(identity="f" * 32, broker="B"), kind="static")
    for words in (["remove-broker", "D"], ["deregister", "AS"]):
        result = run(server, *words)
        assert result.exit_code == 2
        assert "--yes" in result.output
    ok(server, "remove-broker", "D", "--yes")
    assert "D" not in [broker["name"] for broker in ok(server, "brokers")["brokers"]]
    refused = run(server, "deregister", "AS", "--yes")
    assert refused.exit_code == 1
    assert "open connections" in refused.output
    ok(server, "deregister", "AS", "--close", "--yes")
    with fairlead.sync.open_directory(server.url) as directory:
        assert "f" * 32 in directory.renew("B", identity="B").close, "its broker is told to close it"
        directory.connection_closed(app="AS", identity="f" * 32, broker="B")
    assert "AS" not in [app["name"] for app in ok(server, "apps")["apps"]]


@pytest.mark.processes
def test_an_application_nobody_knows(server: Server) -> None:
    result = run(server, "lookup", "nobody")
    assert result.exit_code == 1
    assert "fairlead directory apps" in result.output


def heed_interrupts() -> None:
    """A suite that was started in the background of a shell ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.processes
def test_watching_goes_on_until_it_is_interrupted(server: Server) -> None:
    words = [sys.executable, "-m", "fairlead", "directory", "brokers", "--watch", "--interval", "0.2"]
    process = subprocess.Popen(
        [*words, "--server", server.url],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"TERM": "dumb"},
        preexec_fn=heed_interrupts,
    )  # fmt: skip
    try:
        with fairlead.sync.open_directory(server.url) as directory:
            before = directory.status().facts["operations"].get("list_brokers", 0)
            while directory.status().facts["operations"].get("list_brokers", 0) < before + 3:
                assert process.poll() is None
                time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "Brokers" in text
        assert "revision" in text
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    both = run(server, "brokers", "--watch", "--json")
    assert both.exit_code == 2


def test_nobody_there_says_what_to_do() -> None:
    words = ["directory", "brokers", "--server", "fairlead+directory://127.0.0.1:1,localhost:1", "--wait", "0"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 3
    assert "directory unreachable: fairlead://127.0.0.1:1: Cannot connect" in result.output
    assert "fairlead directory serve" in result.output
    result = CliRunner().invoke(main, ["directory", "brokers", "--server", "amqp://x"])
    assert result.exit_code == 2
    assert "does not begin with" in result.output


def test_every_command_has_examples() -> None:
    assert {"serve", "brokers", "clusters", "apps", "status", "join", "leave", "set"} <= set(directory_group.commands)
    for name in directory_group.commands:
        result = CliRunner().invoke(main, ["directory", name, "--help"])
        assert result.exit_code == 0
        assert f"fairlead directory {name}" in result.output, name
