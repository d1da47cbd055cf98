"""`fairlead streams`: its tables, its help, and what it says to a real administration and to none."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import fairlead
from fairlead.cli import main, streams_view
from fairlead.cli.streams import streams_group
from fairlead.feeds import words
from fairlead.runtime.local_cluster import free_ports
from fairlead.testing import Server
from tests.processes.feeds.administration_parts import STREAM, WAIT_S, ScriptedAdapter, ScriptedClient


# --- Tables -----------------------------------------------------------------------------------------------------
def shown(streams: list[dict[str, Any]]) -> list[list[str]]:
    """The words of each line."""
    console = Console(width=250, highlight=False)
    with console.capture() as capture:
        for one in streams_view.status(streams):
            console.print(one)
    return [line.split() for line in capture.get().splitlines()]


def adapter(name: str, **facts: Any) -> dict[str, Any]:
    usual = {
        "name": name,
        "role": "backup",
        "alive": True,
        "address": "h:1",
        "synchronised": True,
        "source_alive": True,
        "last": 1000,
        "lag": 0,
        "positions": {},
    }
    return usual | facts


def stream(*adapters: dict[str, Any], **facts: Any) -> dict[str, Any]:
    usual = {
        "name": "prices",
        "epoch": 3,
        "adapters": list(adapters),
        "clients": [],
        "clients_total": 0,
        "failovers": 2,
        "gaps": 1,
        "settling": False,
        "switching_to": "",
        "barred_clients": [],
        "barred_users": [],
    }
    return usual | facts


def test_adapters_with_what_is_the_matter_with_them() -> None:
    lines = shown(
        [
            stream(
                adapter("a", role="active", positions={"x:1": [41, 1, 1], "x:2": [1234, 1, 1]}),
                adapter("b", last=990, lag=10),
                adapter("c", synchronised=False),
                adapter("d", alive=False),
                adapter("[e]", source_alive=False),
                adapter("f"),
                switching_to="f",
            )
        ]
    )
    assert ["prices", "3", "a", "active", "alive", "h:1", "1,000", "x:1", "41,", "x:2", "1,234", "2", "1", "0"] in lines
    assert ["b", "backup", "synchronised", "h:1", "990", "10"] in lines
    assert ["c", "backup", "not", "synchronised", "h:1", "1,000", "0"] in lines
    assert ["d", "backup", "gone", "h:1", "1,000", "0"] in lines
    assert ["[e]", "backup", "no", "source", "h:1", "1,000", "0"] in lines
    assert ["f", "backup", "switching", "h:1", "1,000", "0"] in lines


def test_clients_and_those_who_may_not_be_any() -> None:
    client = {
        "client": "desk",
        "user": "u",
        "line": "b",
        "local": True,
        "counters": {"delivered": 5000, "duplicates": 7, "gaps_found": 3, "failovers": 1},
    }
    lines = shown([stream(adapter("a"), clients=[client], clients_total=9, barred_users=["eve"])])
    assert ["prices", "desk", "u", "b", "(by", "itself)", "5,000", "7", "3", "0", "1"] in lines
    assert ["prices", "and", "8", "more"] in lines
    assert ["prices:", "revoked", "users:", "eve"] in lines


def test_nothing_yet() -> None:
    assert "fairlead feed run" in " ".join(shown([])[0])


# --- Commands ---------------------------------------------------------------------------------------------------
def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["streams", *arguments])


@pytest.mark.parametrize("name", ["serve", "status", "switch", "send", "revoke", "permit", "forget"])
def test_every_command_has_examples_and_exit_codes(name: str) -> None:
    command = streams_group.get_command(click.Context(streams_group), name)
    assert command is not None
    assert "Example" in (command.help or "")
    assert "Exit codes" in (command.help or "")
    assert run(name, "--help").exit_code == 0


def test_without_an_administration_one_is_told_what_to_do() -> None:
    found = run("status", "--server", "fairlead://127.0.0.1:1", "--wait", "0.2")
    assert found.exit_code == 3
    assert "fairlead streams serve" in found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("revoke", "x", "--yes"),
        ("revoke", "x", "--client", "a", "--of-user", "b", "--yes"),
        ("permit", "x"),
        ("send", "x"),
        ("send", "x", "m", "--kind", "switch"),
        ("status", "--watch", "--json"),
        ("serve", "--data", "d", "--set", "nonsense"),
        ("serve", "--data", "d", "--set", "streams.relations=nonsense"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with Server(command=("streams", "serve"), managers=1, **{"messages.enabled": "false"}) as one:
        yield one


def test_a_server_that_was_started_just_now_is_waited_for(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = Server(
        command=("streams", "serve"),
        managers=1,
        listen=f"127.0.0.1:{port}",
        data=tmp_path,
        **{"messages.enabled": "false"},
    )
    starting = threading.Thread(target=server.start)
    starting.start()
    try:
        found = run("status", "--server", f"fairlead://127.0.0.1:{port}", "--wait", "30")
        assert found.exit_code == 0, found.output
    finally:
        starting.join()
        server.stop()


@pytest.fixture(scope="module")
def pair(served: Server) -> Iterator[None]:
    """Two scripted adapters and a client, alive in a thread of their own."""
    ready, stop = threading.Event(), threading.Event()

    async def work() -> None:
        async with (
            fairlead.connect(served.url) as first,
            fairlead.connect(served.url) as second,
            ScriptedAdapter(first, "a") as a,
        ):
            await a.is_now("active", 1)
            async with ScriptedAdapter(second, "b") as b, ScriptedClient(first, "desk") as client:
                a.group = b.group = {"a": a, "b": b}
                await b.hears(words.Role)
                await client.has_lines("a", "b")
                ready.set()
                await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(WAIT_S)
    yield
    stop.set()
    thread.join()


def status(served: Server) -> dict[str, Any]:
    found = run("status", STREAM, "--server", served.url, "--json")
    assert found.exit_code == 0, found.output
    (only,) = json.loads(found.stdout)
    return dict(only)


def await_synchronised(served: Server) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not all(one["synchronised"] for one in status(served)["adapters"]):
        assert time.monotonic() < deadline_s


def test_look_switch_send_revoke_and_permit(served: Server, pair: None) -> None:
    where = ("--server", served.url)
    seen = run("status", *where)
    assert seen.exit_code == 0
    assert STREAM in seen.stdout
    await_synchronised(served)
    active = status(served)["active"]
    done = run("switch", STREAM, *where)
    assert done.exit_code == 0, done.output
    other = "b" if active == "a" else "a"
    assert f"{other} is active on {STREAM}, epoch 2" in done.stdout
    assert run("switch", STREAM, "--to", other, *where).exit_code == 1
    assert run("send", STREAM, "maintenance", *where).exit_code == 0
    assert run("revoke", STREAM, "--client", "desk", "--yes", *where).exit_code == 0
    after = status(served)
    assert (after["clients"], after["barred_clients"]) == ([], ["desk"])
    assert run("permit", STREAM, "--client", "desk", *where).exit_code == 0
    assert run("forget", STREAM, "--yes", *where).exit_code == 1


def test_an_unknown_stream(served: Server, pair: None) -> None:
    found = run("switch", "nobody", "--server", served.url)
    assert found.exit_code == 1
    assert "No adapter has ever registered" in found.stderr


def test_a_server_without_an_administration() -> None:
    with Server(managers=1, **{"messages.enabled": "false"}) as plain:
        found = run("status", "--server", plain.url, "--wait", "0.2")
        assert found.exit_code == 3
        assert "[streams] serve = true" in found.stderr
