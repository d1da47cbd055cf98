"""The command line against a real server: status, config, user, bench, update, stop; see test_command_line.py too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.testing import Server

pytestmark = pytest.mark.processes


def fairlead(*arguments: str, text: str | None = None, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


def test_help_and_version() -> None:
    code, out, _ = fairlead("--help")
    assert code == 0
    for command in ("serve", "status", "update", "pub", "sub", "request", "respond", "bench", "config", "user"):
        assert command in out
    assert fairlead("--version")[0] == 0
    assert fairlead("nonsense")[0] == 2


@pytest.mark.requirement("SRV-127")
def test_status_in_words_and_as_json(shared: Server) -> None:
    code, out, err = fairlead("status", "--connections", "--server", shared.url)
    assert (code, err) == (0, "")
    assert "0 accounting faults" in out
    assert "dispatcher" in out
    code, out, err = fairlead("status", "--json", "--data", str(shared.data))
    assert (code, err) == (0, "")
    assert json.loads(out)["data"] == str(shared.data)
    code, out, err = fairlead("status", "--server", "fairlead://127.0.0.1:1")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_publish_subscribe_request_respond(shared: Server) -> None:
    environment = {**os.environ, "FAIRLEAD_URL": shared.url}
    command = [sys.executable, "-m", "fairlead"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    listening = subprocess.Popen([*command, "sub", "cli.>", "--count", "1", "--json"], **pipes)  # type: ignore[call-overload]
    serving = subprocess.Popen([*command, "respond", "cli.ask", "--echo", "--count", "1"], **pipes)  # type: ignore[call-overload]
    shared.wait_until(lambda report: (report["subscriptions"], report["registrations"]) == (1, 1))
    assert fairlead("pub", "cli.news", "hello", FAIRLEAD_URL=shared.url) == (0, "", "")
    assert json.loads(listening.communicate(timeout=20)[0])["body"] == "hello"
    code, out, _ = fairlead("request", "cli.ask", "echo", "--json", FAIRLEAD_URL=shared.url)
    assert (code, json.loads(out)["body"]) == (0, "echo")
    assert serving.communicate(timeout=20)[1] == ""
    assert fairlead("request", "cli.ask", "x", FAIRLEAD_URL=shared.url)[0] == 3
    assert (listening.returncode, serving.returncode) == (0, 0)


def test_config_and_user(tmp_path: Path) -> None:
    code, out, _ = fairlead("config", "show", "--json", FAIRLEAD_FAIRNESS_LIMIT="77")
    assert code == 0
    assert "77" in out
    assert fairlead("config", "check")[0] == 0
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[server]\nmanagerz = 4\n")
    code, _, err = fairlead("config", "check", "--config", str(wrong))
    assert code == 1
    assert "managers" in err
    data = ("--data", str(tmp_path))
    assert fairlead("user", "add", "dora", "--password-stdin", *data, text="secret\n")[0] == 0
    code, out, _ = fairlead("user", "list", "--json", *data)
    assert (code, [one["name"] for one in json.loads(out)["users"]]) == (0, ["dora"])
    assert "secret" not in (tmp_path / "users.toml").read_text()
    assert fairlead("user", "remove", "nobody", *data)[0] == 1


def test_bench_measures_something(shared: Server) -> None:
    code, out, _ = fairlead("bench", "--help")
    assert (code, "Usage" in out) == (0, True)
    code, out, err = fairlead(
        "bench", "broadcast", "--seconds", "0.5", "--repeats", "1", "--json", "--server", shared.url
    )
    assert (code, err) == (0, "")
    assert json.loads(out)


def test_update_drain_and_stop() -> None:
    with Server(managers=2) as server:
        data = ("--data", str(server.data))
        code, out, _ = fairlead("update", "router", "--json", *data)
        assert (code, json.loads(out)["ok"]) == (0, True)
        assert fairlead("update", "nonsense", *data)[0] == 2
        assert fairlead("drain", "9", *data)[0] == 1
        assert fairlead("stop", *data)[0] == 0
        assert server.process is not None
        assert server.process.wait(10) == 0
