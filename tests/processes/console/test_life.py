"""The console's process comes and goes; its address and its past stay."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.testing import Server
from tests.processes.test_access import certificate

pytestmark = [pytest.mark.processes]

WAIT_S = 60.0


def until(look: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.05)
    return found


def values(url: str, series: str) -> list[float]:
    answer = httpx.get(f"{url}/api/v1/history", params={"series": series}, timeout=WAIT_S).json()
    return [value for value in answer["series"][0]["values"] if value is not None]


def test_a_killed_console_comes_back_at_its_address_with_its_past(tmp_path: Path) -> None:
    with Server(managers=1, console=True, data=tmp_path) as server:
        url = server.console_url
        until(lambda: len(values(url, "connections")) >= 3)
        before = len(values(url, "connections"))
        pid = server.kill("console")
        # Whoever asks now waits in the socket, which the supervisor holds.
        assert httpx.get(f"{url}/health/live", timeout=WAIT_S).json()["ok"]
        assert server.pids("console") != [pid]
        assert len(values(url, "connections")) >= before
        server.update("console")
        assert httpx.get(f"{url}/health/live", timeout=WAIT_S).json()["ok"]
        kept = len(values(url, "connections"))
        assert kept >= before
    with Server(managers=1, console=True, data=tmp_path) as server:
        assert len(values(server.console_url, "connections")) >= kept


def test_the_console_outlives_its_supervisor(tmp_path: Path) -> None:
    with Server(managers=1, console=True, data=tmp_path) as server:
        url = server.console_url
        assert httpx.get(f"{url}/health/live", timeout=WAIT_S).json()["ok"]
        (pid,) = server.pids("console")
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        assert httpx.get(f"{url}/health/live", timeout=WAIT_S).json()["ok"]
        assert httpx.get(f"{url}/health/ready", timeout=WAIT_S).status_code in (200, 503)
        server.start()
        assert server.pids("console") == [pid]
        assert server.console_url == url
        assert until(lambda: httpx.get(f"{url}/health/ready", timeout=WAIT_S).status_code == 200)


def test_readiness_falls_with_the_message_manager_and_returns(tmp_path: Path) -> None:
    with Server(managers=1, console=True, data=tmp_path, **{"limits.frozen_s": 1}) as server:
        url = server.console_url
        assert until(lambda: httpx.get(f"{url}/health/ready", timeout=WAIT_S).status_code == 200)
        pid = server.kill("message-manager", number=signal.SIGSTOP)
        stuck = httpx.get(f"{url}/api/v1/destinations/x", timeout=WAIT_S)
        assert stuck.status_code in (503, 504, 404)  # killed for standing still, or in time
        until(lambda: server.pids("message-manager") not in ([pid], []))
        assert until(lambda: httpx.get(f"{url}/health/ready", timeout=WAIT_S).status_code == 200)


def serve(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "fairlead", "serve", "--data", str(tmp_path), "--managers", "1"]
    return subprocess.Popen(
        [*words, "--listen", "127.0.0.1:0", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_taken_port_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = serve(tmp_path, "--console", f"127.0.0.1:{port}")
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert f"[console] The address 127.0.0.1:{port} is in use" in errors


def test_beyond_this_host_it_needs_users(tmp_path: Path) -> None:
    process = serve(tmp_path, "--console", "0.0.0.0:0")
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "would let anybody on the network in" in errors


def test_over_the_network_it_speaks_tls_and_its_cookie_goes_nowhere_else(tmp_path: Path) -> None:
    pem, trusting = certificate(tmp_path)
    users.write(
        tmp_path / "users.toml",
        users.Users({"root": users.User(hash=hash_password("right"), admin=["_ADMIN"])}),
    )
    settings = {"security.tls_certificate": pem, "security.tls_key": pem, "console.listen": "0.0.0.0:0"}
    with Server(managers=1, console=True, data=tmp_path, **settings, **{"messages.enabled": "false"}) as server:
        url = server.console_url
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=url.replace("127.0.0.1", "localhost"), verify=trusting, timeout=WAIT_S) as http:
            answer = http.post(
                "/api/v1/login", json={"user": "root", "password": "right"}, headers={"X-Fairlead-CSRF": "1"}
            )
            assert answer.status_code == 200
            assert "; secure" in answer.headers["set-cookie"].lower()
            assert http.get("/api/v1/overview").status_code == 200
            assert http.get("/api/v1/destinations").status_code == 503  # there is no message manager
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http"), timeout=WAIT_S)


def test_servers_of_tests_have_none_unless_asked(tmp_path: Path) -> None:
    with Server(managers=1, data=tmp_path, **{"messages.enabled": "false"}) as server:
        assert server.console_url == ""
        assert not server.pids("console", state=None)
