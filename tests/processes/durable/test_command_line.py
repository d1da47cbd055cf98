"""The commands for stored messages, as one types them, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.testing import Server

pytestmark = pytest.mark.processes


class Shell:
    """`fairlead …` against one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.environment = {**os.environ, "FAIRLEAD_URL": server.url}

    def __call__(self, *arguments: str, text: bytes = b"", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fairlead", *arguments],
            input=text,
            capture_output=True,
            timeout=60,
            env=self.environment,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return (done.stdout if code == 0 else done.stderr).decode()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def background(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "fairlead", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )


@pytest.fixture
def shell(durable_server: Server) -> Shell:
    return Shell(durable_server)


def test_send_browse_receive(shell: Shell, name: str) -> None:
    sent = shell.json("send", name, "first", "-p", "n=1", "-p", "region=eu", "--key", "k", "--priority", "7")
    assert (sent["sent"], sent["destination"], sent["duplicate"]) == (1, name, False)
    shell("send", name, "--lines", text=b"second\nthird\n")
    assert shell("browse", name) == "first\nsecond\nthird\n"
    found = shell.json("receive", name, "--selector", "region = 'eu' AND n = 1")
    assert (found["body"], found["key"], found["priority"]) == ("first", "k", 7)
    assert found["properties"] == {"n": 1, "region": "eu"}
    assert found["id"] == sent["id"]
    assert shell("receive", name, "--count", "1", "--no-ack") == "second\n"
    again = shell.json("receive", name)
    assert (again["body"], again["delivery_count"]) == ("second", 2)
    assert shell("receive", name) == "third\n"
    assert "no message came" in shell("receive", name, "--timeout", "0.2", code=3)


def test_follow_a_queue(shell: Shell, name: str) -> None:
    shell("send", name, "one")
    following = shell.background("receive", name, "--follow", "--count", "3")
    shell("send", name, "more", "--count", "2")
    assert following.communicate(timeout=20)[0] == b"one\nmore\nmore\n"


def test_a_large_file_goes_there_and_back(shell: Shell, name: str, tmp_path: Path) -> None:
    film = tmp_path / "film"
    film.write_bytes(os.urandom(3 << 20))
    shell("send", name, "--file", str(film))
    shell("receive", name, "--save", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == film.read_bytes()


def test_delay_ttl_and_schedules(shell: Shell, name: str) -> None:
    shell("send", name, "later", "--delay", "600")
    shell("send", name, "nightly", "--cron", "0 3 * * *")
    shell("send", name, "soon gone", "--ttl", "0.1")
    time.sleep(0.3)
    assert "no message came" in shell("receive", name, "--timeout", "0.2", code=3)
    schedules = shell.json("admin", "schedules", name)["schedules"]
    assert any(one.get("cron") == "0 3 * * *" for one in schedules)
    for one in schedules:
        if one.get("cron"):
            shell("admin", "cancel", name, str(one["order"]), "--yes")
    assert not any(one.get("cron") for one in shell.json("admin", "schedules", name)["schedules"])


def test_a_topic_from_the_shell(shell: Shell, name: str) -> None:
    assert "no message came" in shell("receive", name, "--topic", "--subscription", "audit", "--timeout", "0.2", code=3)
    shell("send", name, "news", "--topic")
    assert shell("receive", name, "--topic", "--subscription", "audit") == "news\n"
    assert any(one["name"] == "audit" for one in shell.json("admin", "subscriptions")["subscriptions"])


def test_administration(shell: Shell, name: str) -> None:
    shell("admin", "create", name, "delivery_limit=1")
    shell("send", name, "poison", "-p", f"of={name}")
    shell("send", name, "good")
    assert name in shell("admin", "list", name)
    shown = shell.json("admin", "show", name)
    assert shown["depth"] == 2
    shell("admin", "pause", name)
    assert "no message came" in shell("receive", name, "--timeout", "0.3", code=3)
    shell("admin", "resume", name)
    assert len(shell.json("admin", "browse", name)["messages"]) == 2
    shell("receive", name, "--no-ack")  # its only delivery
    mine = ("--selector", f"of = '{name}'")
    assert json.loads(shell("admin", "redrive", "--dry-run", "--json", *mine))
    shell("admin", "set", name, "delivery_limit=5")
    shell("admin", "redrive", "--yes", *mine)
    assert shell.json("admin", "show", name)["depth"] == 2
    assert "--yes" in shell("admin", "purge", name, code=2)
    shell("admin", "purge", name, "--yes")
    assert shell.json("admin", "show", name)["depth"] == 0
    shell("admin", "delete", name, "--yes")
    assert "no-destination" in shell("admin", "show", name, code=1) or name in shell("admin", "show", name, code=1)
    for command in ("status", "sessions", "flow", "tasks", "transactions", "journal", "commands", "counters"):
        assert shell("admin", command)


def test_administration_by_the_local_socket(shell: Shell, name: str) -> None:
    shell("send", name, "one")
    local = ("--data", str(shell.server.data))
    assert shell.json("admin", "show", name, *local)["depth"] == 1
    assert "no" in shell("admin", "show", f"{name}.absent", *local, code=1)


def test_the_log(shell: Shell, name: str) -> None:
    shell("admin", "create", name)
    assert shell("log", "--level", "debug", "--data", str(shell.server.data))
    assert shell("log", "--level", "debug", "--since", "1h")


def test_backup_restore_check_and_dump(shell: Shell, name: str, tmp_path: Path) -> None:
    shell("send", name, "kept", "--count", "100")
    copy = tmp_path / "copy"
    shell("backup", str(copy))
    shell("receive", name, "--count", "50")
    shell("journal", "check", str(shell.server.data))
    assert (
        shell("journal", "dump", str(shell.server.data), "--kind", "STORE", "--limit", "5", "--json").count("\n") == 5
    )
    data = tmp_path / "data"
    shell("restore", str(copy), "--data", str(data))
    assert "not empty" in shell("restore", str(copy), "--data", str(data), code=2)
    with Server(data=data) as restored:
        other = Shell(restored)
        assert other("receive", name, "--count", "100").count("kept") == 100
    segment = next(data.glob("mm-0/**/*.seg"))
    content = bytearray(segment.read_bytes())
    content[5000] ^= 255
    segment.write_bytes(content)
    assert (
        "damage"
        in subprocess.run(
            [sys.executable, "-m", "fairlead", "journal", "check", str(data)], capture_output=True, text=True
        ).stdout
    )
