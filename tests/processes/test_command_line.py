"""`fairlead pub`, `sub`, `request`, `respond` against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from fairlead.testing import Server

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as one:
        yield one


def start(server: Server, *arguments: str, text: str | None = None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAIRLEAD_URL": server.url},
    )
    if text is not None:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.flush()
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def run(server: Server, *arguments: str, text: str | None = None) -> tuple[int, str, str]:
    return finish(start(server, *arguments, text=text))


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def wait_for(server: Server, what: str, count: int) -> None:
    """Until the router knows of so many subscriptions or registrations."""
    until(lambda: server.status()[what] == count)


def test_what_is_published_is_printed(server: Server) -> None:
    listening = start(server, "sub", "demo.>", "other", "--count", "4", "--timeout", "10", "--json")
    wait_for(server, "subscriptions", 2)
    assert run(server, "pub", "demo.hello", "world", "-H", "a=b") == (0, "", "")
    code, out, _ = run(server, "pub", "demo.lines", "--json", text="one\ntwo\n")
    assert (code, json.loads(out)) == (0, {"published": 2, "topic": "demo.lines"})
    run(server, "pub", "other", "--file", "-", text="all\nof it")
    code, out, err = finish(listening)
    messages = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(one["topic"], one["body"]) for one in messages] == [
        ("demo.hello", "world"),
        ("demo.lines", "one"),
        ("demo.lines", "two"),
        ("other", "all\nof it"),
    ]
    assert messages[0]["headers"] == {"a": "b"}
    wait_for(server, "subscriptions", 0)


def test_plain_output_has_topic_and_body_or_the_body_alone(server: Server) -> None:
    both = [start(server, "sub", "plain.*", "--count", "2", *more) for more in ([], ["--raw"])]
    wait_for(server, "subscriptions", 2)
    run(server, "pub", "plain.x", "body", "--count", "2")
    assert [finish(one)[1] for one in both] == ["plain.x body\n" * 2, "body\n" * 2]


def test_requests_are_answered_by_text_echo_or_program(server: Server) -> None:
    serving = [
        start(server, "respond", "price", "1.0843", "--count", "1"),
        start(server, "respond", "mirror", "--echo", "--count", "2"),
        start(server, "respond", "upper", "--command", "tr a-z A-Z", "--count", "1"),
        start(server, "respond", "broken", "--command", "false", "--count", "1"),
    ]
    wait_for(server, "registrations", 4)
    assert run(server, "request", "price", "EURUSD")[:2] == (0, "1.0843\n")
    assert run(server, "request", "mirror", text="a\nb\n")[:2] == (0, "a\nb\n")
    code, out, _ = run(server, "request", "upper", "hello", "--all", "--json")
    assert (code, json.loads(out)["body"]) == (0, "HELLO")
    code, _, err = run(server, "request", "broken", "x")
    assert code == 1
    assert "The program ended with status 1" in err
    assert [finish(one)[0] for one in serving] == [0, 0, 0, 0]


def test_nobody_there_and_no_answer_in_time_have_exit_code_3(server: Server) -> None:
    code, _, err = run(server, "request", "nobody", "x")
    assert (code, err.count("\n")) == (3, 1)
    code, _, err = run(server, "sub", "silence", "--timeout", "0.2")
    assert (code, err.count("\n")) == (3, 1)
    code, _, err = run(server, "sub", "silence", "silence.too", "--timeout", "0.2")
    assert code == 3


def test_errors_of_the_user_have_exit_code_1_or_2(server: Server) -> None:
    assert run(server, "pub", "not..a.topic", "x")[0] == 1
    assert run(server, "pub", "a", "x", "--file", "y")[0] == 2
    code, _, err = run(server, "pub", "a", "x", "--server", "gopher://localhost")
    assert (code, err.count("\n")) == (2, 1)
