"""Metrics, health and logs of a real server under a little traffic."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from starlette.applications import Starlette

from fairlead import sync
from fairlead.observability.catalogue import everything
from fairlead.observability.edge.scrape import gather
from fairlead.observability.edge.web import Pages
from fairlead.observability.metrics import OPENMETRICS, render
from fairlead.testing import Server
from tests.observability.shipped import OF_CLUSTERS, names
from tests.processes.tools import NEVER_FROZEN, suspended

pytestmark = pytest.mark.processes
NAMED = 5


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One through which everything has gone once: transient and kept, redelivered, rejected, expired."""
    settings = {"streams.serve": True, "log.format": "json", "log.level": "debug", "metrics.destinations": NAMED}
    settings |= NEVER_FROZEN
    with Server(**settings) as one, sync.connect(one.url, name="tester") as connection:
        with connection.subscribe("seen.>") as seen:
            connection.publish("seen.it", b"x")
            seen.next(timeout=30)
        orders = connection.queue("orders")
        for number in range(4):
            orders.send(str(number))
        with orders.consume(prefetch=1) as consumer:
            consumer.receive(timeout=30).ack()
            consumer.receive(timeout=30).retry()
            consumer.receive(timeout=30).reject()
            consumer.receive(timeout=30).ack()
        connection.queue("short", parameters={"ttl_s": 0.001}).send(b"x")
        for number in range(5):
            connection.queue(f"many.{number}").send(b"x")
        until(one, "orders", "redelivered", 1)
        until(one, "orders", "acknowledged", 2)
        yield one


def samples(server: Server, accept: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = render(gather(server.data / "run"), accept)
    parse = parse_openmetrics if accept else parse_text
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in parse(body.decode())
        for one in family.samples
    }


def of(server: Server, name: str, **labels: str) -> float:
    return sum(
        value
        for (known, given), value in samples(server).items()
        if known == name and labels.items() <= dict(given).items()
    )


def until(server: Server, destination: str, figure: str, wanted: int) -> None:
    deadline_s = time.monotonic() + 30
    while (found := of(server, f"fairlead_destination_{figure}_total", destination=destination)) < wanted:
        assert time.monotonic() < deadline_s, f"{figure} of {destination} is {found}"
        time.sleep(0.05)


def fairlead(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


def test_every_metric_of_dashboard_and_rules_is_exposed(server: Server) -> None:
    exposed = {name for name, _ in samples(server)}
    assert {name for name in names() - exposed if not OF_CLUSTERS.match(name)} == set()


def test_what_is_exposed_is_in_the_catalogue_with_its_kind_and_sentence(server: Server) -> None:
    known = {metric.name: metric for metric in everything()}
    body, _ = render(gather(server.data / "run"), OPENMETRICS)
    for family in parse_openmetrics(body.decode()):
        assert (family.type, family.documentation) == (known[family.name].kind, known[family.name].sentence)


def test_the_figures_are_those_of_the_traffic(server: Server) -> None:
    assert of(server, "fairlead_destination_stored_total", destination="orders") == 4
    assert of(server, "fairlead_destination_acknowledged_total", destination="orders") == 2
    assert of(server, "fairlead_destination_redelivered_total", destination="orders") >= 1
    assert of(server, "fairlead_destination_dead_total", destination="orders") == 1
    assert of(server, "fairlead_destination_depth", destination="_DMQ") == 1
    assert of(server, "fairlead_messages_dead_total") == 1
    assert of(server, "fairlead_manager_messages_in_total") >= 1
    assert of(server, "fairlead_journal_sync_seconds_count") >= 1
    assert of(server, "fairlead_journal_sync_seconds_sum") > 0
    assert of(server, "fairlead_journal_last_sync_seconds") > 0
    assert of(server, "fairlead_process_resident_memory_bytes", role="manager") > 1 << 20
    assert of(server, "fairlead_ready") == 1


def test_destinations_beyond_the_bound_are_one(server: Server) -> None:
    found = samples(server)
    shown = {dict(labels)["destination"] for name, labels in found if name == "fairlead_destination_depth"}
    assert len(shown) == NAMED + 1
    assert "_other" in shown
    assert of(server, "fairlead_destinations_unnamed") + NAMED == of(server, "fairlead_messages_destinations")


def test_the_command_prints_the_same(server: Server) -> None:
    done = fairlead("status", "--prometheus", "--server", server.url)
    assert done.returncode == 0
    assert {family.name for family in parse_text(done.stdout)} == {
        family.name for family in parse_text(render(gather(server.data / "run"))[0].decode())
    }


def test_a_probe_says_ready_and_says_why_not(server: Server, tmp_path: Path) -> None:
    done = fairlead("status", "--check", "--data", str(server.data))
    assert (done.returncode, done.stdout) == (0, "The server is ready.\n")
    away = fairlead("status", "--check", "--data", str(tmp_path))
    assert away.returncode == 1
    assert "No server answers" in away.stderr


async def test_the_pages_for_probes_and_scrapers(server: Server) -> None:
    run = server.data / "run"
    pages, away = Pages.of(run), Pages.of(run / "nowhere")
    async with asking(pages) as client:
        told = await client.get("/metrics")
        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "fairlead_ready 1.0" in told.text
        assert "# EOF" in (await client.get("/metrics", headers={"accept": OPENMETRICS})).text
        assert (await client.get("/health/live")).json()["ok"] is True
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["ok"]) == (200, True)
        assert {check["name"] for check in ready.json()["checks"]} >= {"router", "dispatcher", "managers"}
        assert (await client.post("/metrics")).status_code == 405
    async with asking(away) as client:
        assert (await client.get("/metrics")).status_code == 503
        assert (await client.get("/health/live")).status_code == 503
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["checks"][0]["text"]) == (503, "The supervisor does not answer.")


def asking(pages: Pages) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=pages.routes()))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def test_updates_and_their_pauses_and_restarts_are_counted(server: Server) -> None:
    done = of(server, "fairlead_updates_total", component="router", outcome="done")
    server.update("router")
    assert of(server, "fairlead_updates_total", component="router", outcome="done") == done + 1
    assert of(server, "fairlead_update_pause_seconds_count", component="router") >= 1
    died = of(server, "fairlead_process_restarts_total", role="manager", index="1")
    server.kill("manager", 1)
    server.wait_until(lambda report: sum(post["restarts"] for post in report["posts"]) > died, timeout_s=30)
    assert of(server, "fairlead_process_restarts_total", role="manager", index="1") == died + 1
    server.wait_until(lambda report: all(post["up"] for post in report["posts"] if post["needed"]), timeout_s=30)


def test_every_line_of_the_log_is_an_object(server: Server) -> None:
    lines = [json.loads(text) for text in (server.data / "log" / "fairlead.log").read_text().splitlines()]
    assert all({"time", "level", "role", "message"} <= line.keys() for line in lines)
    assert any(line["role"] == "manager" and line.get("connection") and line["pid"] for line in lines)
    assert any("is ready on" in line["message"] for line in lines)


def test_a_frozen_message_manager_costs_its_lines_and_not_the_scrape(server: Server) -> None:
    (pid,) = server.pids("message-manager")
    with suspended(pid):
        facts = gather(server.data / "run", timeout_s=0.5)
    assert len(facts.unanswered) == 1
    assert facts.destinations == []
    assert b"fairlead_scrape_unanswered 1.0" in render(facts)[0]


class Screen:
    """`fairlead top` on a terminal of 80 by 24."""

    def __init__(self, *arguments: str) -> None:
        self._fd, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        command = [sys.executable, "-m", "fairlead", "top", "--interval", "0.3", *arguments]
        environment = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        self.theirs = theirs
        self.seen = ""

    def press(self, keys: str) -> None:
        self.seen = ""
        os.write(self._fd, keys.encode())

    def until(self, text: str) -> None:
        deadline_s = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < deadline_s, f"{text!r} is not in {self.seen[-3000:]!r}"
            if select.select([self._fd], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    self.seen += re.sub(
                        r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(self._fd, 65536).decode(errors="replace")
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
        os.close(self.theirs)


def test_top_on_a_terminal_changes_views_and_leaves_it_as_it_was(server: Server) -> None:
    with Screen("--data", str(server.data)) as shown:
        shown.until("[o]verview")
        shown.until("orders")
        shown.press("d")
        shown.until("in/s▼")
        shown.press("\x1b[C")
        shown.until("out/s▼")
        shown.press("c")
        shown.until("tester-")
        shown.press("p")
        shown.until("message-manager")
        shown.press("q")
        assert shown.process.wait(30) == 0
        assert termios.tcgetattr(shown.theirs)[3] & termios.ICANON
        assert termios.tcgetattr(shown.theirs)[3] & termios.ECHO


def test_top_without_a_server_says_what_to_do_and_goes_on_looking(tmp_path: Path) -> None:
    with Screen("--data", str(tmp_path)) as shown:
        shown.until("fairlead serve")
        shown.press("q")
        assert shown.process.wait(30) == 0
    once = fairlead("top", "--once", "--data", str(tmp_path))
    assert once.returncode == 1
    assert "No server answers" in once.stderr


def test_top_prints_one_screen_for_scripts(server: Server) -> None:
    done = fairlead("top", "--once", "--interval", "0.2", "--view", "destinations", "--server", server.url)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Fairlead ")
    assert "ready" in lines[0]
    assert any(line.startswith("orders ") for line in lines)


def test_the_commands_of_the_page_do_what_it_says(server: Server) -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    ran = 0
    for block in re.findall(r"```console\n(.*?)```", page, re.S):
        command, *answer = block.splitlines()
        if command.startswith("$ fairlead serve"):
            (line,) = answer
            assert {"time", "level", "role", "message"} <= json.loads(line).keys()
            continue
        shell = command.removeprefix("$ ").replace("fairlead ", f"{sys.executable} -m fairlead ")
        environment = {**os.environ, "FAIRLEAD_SERVER_DATA": str(server.data)}
        done = subprocess.run(
            shell, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert not answer or done.stdout.splitlines() == answer
        ran += 1
    assert ran >= 2
    asked = re.findall(r"`(?:[a-z]+\()?(fairlead_[a-z_]+)", page)
    exposed = {name for name, _ in samples(server)}
    histograms = {metric.name for metric in everything() if metric.kind == "histogram"}
    assert {name for name in asked if name not in exposed | histograms and not OF_CLUSTERS.match(name)} == set()
