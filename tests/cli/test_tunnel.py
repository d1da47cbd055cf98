"""`fairlead tunnel`: a gateway from the command line, and what it shows of itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli import main
from fairlead.cli.tunnel import both, seconds
from fairlead.tunnel.packets import Kind
from tests.tunnel.gateway_parts import SOON_S, Broker, Running, certificate, opened

SECRET = "0123456789abcdef0123456789abcdef"


def fairlead(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tunnel", *arguments])


@contextmanager
def serving(*arguments: str, exit_code: int = 0) -> Iterator[tuple[str, int, subprocess.Popen[str]]]:
    """A gateway in a process of its own: its URL, and the port of its links."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "fairlead", "tunnel", "serve", "--ready-fd", str(writing), *arguments]
    started = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.PIPE, text=True)
    os.close(writing)
    try:
        with open(reading) as pipe:
            said = pipe.readline().split()
        assert said[:1] == ["READY"], started.communicate()
        yield said[1], int(said[2].rpartition(":")[2]), started
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=SOON_S)
        assert started.returncode == exit_code, errors
        assert "Traceback" not in errors
    finally:
        if started.poll() is None:
            started.kill()
            started.communicate()


def here(url: str, link_port: int) -> Running:
    class Outside(Running):
        link_port = 0

    outside = Outside(None, int(url.rpartition(":")[2].partition("/")[0]))  # type: ignore[arg-type]
    outside.link_port = link_port  # type: ignore[misc]
    return outside


@pytest.mark.processes
@pytest.mark.requirement("TUN-102", state="half", note="the gateway's part")
def test_a_gateway_and_its_status(tmp_path: Path) -> None:
    async def use(url: str, link_port: int) -> tuple[Result, Result]:
        gateway = here(url, link_port)
        broker = await Broker.linked(gateway, "orders", secret=SECRET.encode())
        client = await opened(gateway, broker, "orders")
        for number in (1, 2, 3):
            broker.data(client.connection_id, number, b"x")
        assert (await client.push(client.data(1, b"y"))).status_code == 200
        await broker.expect(Kind.DATA)
        tables = await asyncio.to_thread(fairlead, "status", "--url", url)
        found = await asyncio.to_thread(fairlead, "status", "--json", "--url", url)
        await client.http.aclose()
        await broker.close()
        assert str(client.connection_id) in tables.output
        return tables, found

    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    arguments = ["--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--secret-file", str(secret), "--server", "orders"]
    with serving(*arguments) as (url, link_port, _):
        tables, found = asyncio.run(use(url, link_port))
    assert tables.exit_code == 0, tables.output
    for words in ("orders", "push/pull", "last pull", "window", "edge", "resends", "CRC failures", "1 opened"):
        assert words in tables.output
    (tunnel,) = json.loads(found.output)["tunnels"]
    assert (tunnel["server"], tunnel["state"], tunnel["waiting_packets"]) == ("orders", "open", 3)
    assert fairlead("status", "--url", url).output.startswith("fairlead: No gateway answers at")


@pytest.mark.processes
@pytest.mark.requirement("TUN-64", state="half", note="the gateway's side")
def test_over_https_with_a_status_token(tmp_path: Path) -> None:
    pem, _ = certificate(tmp_path)
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    for file, text in ((token, "t" * 32), (wrong, "w" * 32)):
        file.write_text(text)
        file.chmod(0o600)
    arguments = ["--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--certificate", str(pem), "--key", str(pem)]
    with serving(*arguments, "--status-token-file", str(token)) as (url, _, _):
        assert url.startswith("https://")
        assert fairlead("status", "--url", url, "--ca", str(pem), "--token-file", str(token)).exit_code == 0
        assert fairlead("status", "--url", url, "--ca", str(pem)).exit_code == 0, "from this host it is not needed"
        unknown = fairlead("status", "--url", url)
        assert (unknown.exit_code, "certificate" in unknown.output.lower()) == (1, True), unknown.output


def test_what_cannot_be_used_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in (
            (["--link", "0.0.0.0:7401"], "give a certificate and its key"),
            (["--listen", "nowhere"], "HOST:PORT"),
            (["--workers", "2"], "--workers can only be 1"),
            (["--listen", "127.0.0.1:0", "--secret-file", str(tmp_path / "none")], "cannot read"),
            (["--listen", f"127.0.0.1:{port}", "--link", "127.0.0.1:0"], f"cannot listen on 127.0.0.1:{port}"),
            (
                ["--listen", "127.0.0.1:0", "--link", f"127.0.0.1:{port}"],
                f"cannot listen for links on 127.0.0.1:{port}",
            ),
        ):
            refused = fairlead("serve", *arguments)
            assert (refused.exit_code, words in refused.output) == (2, True), refused.output
            assert "Traceback" not in refused.output


def test_status_of_what_is_no_gateway() -> None:
    assert fairlead("status", "--url", "ftp://x").exit_code == 2
    assert fairlead("status", "--url", "http://127.0.0.1:1/tunnel").exit_code == 1


def test_help_has_examples() -> None:
    for arguments in ((), ("serve",), ("status",)):
        shown = fairlead(*arguments, "--help")
        assert shown.exit_code == 0
        assert not arguments or "Examples:" in shown.output


def test_importing_the_client_loads_no_web_server() -> None:
    script = "import sys, fairlead, fairlead.cli; print({'uvicorn', 'websockets', 'httptools'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set()"


def test_numbers_in_words() -> None:
    assert [seconds(value) for value in (0.25, 99.94, 12345.6)] == ["0.2 s", "99.9 s", "12,346 s"]
    assert [both(1, 2), both(None, 3), both(0, None)] == ["1/2", "-/3", "0/-"]
