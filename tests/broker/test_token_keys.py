"""`broker/edge/token_keys.py`: keys from files and URLs, within bounds, and what stays good when they fail."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.edge import token_keys
from fairlead.broker.edge.token_keys import KeySource
from fairlead.errors import ConfigError
from fairlead.security.keysets import KEYS_BYTES_MAX

JWKS = json.dumps(
    {"keys": [{"kty": "oct", "kid": "one", "k": "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE"}]}
).encode()

Respond = Callable[[http.server.BaseHTTPRequestHandler], None]


class Web:
    """Answers as it is told."""

    def __init__(self) -> None:
        self.respond: Respond = lambda request: answer(request, JWKS)
        self.paths: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.paths.append(self.path)
                web.respond(self)

            def log_message(self, *_: Any) -> None: ...

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_address[1]}/keys"


def answer(request: http.server.BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    web = Web()
    thread = threading.Thread(target=web.httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield web
    web.httpd.shutdown()
    web.httpd.server_close()
    thread.join()


@pytest.fixture
def web(served: Web) -> Web:
    served.respond = lambda request: answer(request, JWKS)
    served.paths.clear()
    return served


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_keys_of_a_url_are_read_now_and_then_and_stay_good_while_it_fails(web: Web) -> None:
    clock = Clock()
    source = KeySource(web.url, refresh_s=60, stale_s=600, now_s=clock)
    assert source.is_old()
    assert not source.keys().keys
    assert source.refresh()
    assert [key.kid for key in source.keys().keys] == ["one"]
    assert not source.is_old()
    assert not source.is_worth_a_try()
    clock.now_s = 61
    assert source.is_old()
    assert source.is_worth_a_try()
    web.respond = lambda request: answer(request, b"sorry", 503)
    assert not source.refresh()
    assert source.problem == "it answers with 503"
    assert not source.is_old(), "it was tried just now"
    assert source.keys().keys
    clock.now_s = 601
    assert not source.keys().keys, "nobody knows whether they are still the right ones"
    web.respond = lambda request: answer(request, JWKS)
    assert source.refresh()
    assert source.problem == ""


WRONG: dict[str, Respond] = {
    "another place": lambda request: answer(request, b"", 302, Location="/elsewhere"),
    "no keys": lambda request: answer(request, b"{}"),
    "no JSON": lambda request: answer(request, b"<html>"),
    "too long": lambda request: answer(request, b"{" + b" " * KEYS_BYTES_MAX),
    "not there": lambda request: answer(request, b"", 404),
}


@pytest.mark.parametrize("respond", WRONG.values(), ids=WRONG.keys())
def test_an_answer_that_is_none_leaves_what_there_was(web: Web, respond: Respond) -> None:
    source = KeySource(web.url)
    assert source.refresh()
    web.respond = respond
    assert not source.refresh()
    assert source.problem
    assert source.keys().keys
    assert set(web.paths) == {"/keys"}, "no redirect was followed"


def test_an_answer_that_never_ends_is_given_up(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "READ_S", 5.0)
    monkeypatch.setattr(token_keys, "WHOLE_S", 0.2)
    over = threading.Event()

    def drip(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while not over.wait(0.02):
                request.wfile.write(b" ")
        except OSError:
            pass

    web.respond = drip
    source = KeySource(web.url)
    assert not source.refresh()
    over.set()
    assert "did not come within" in source.problem


def test_nobody_there_is_a_problem_and_no_error() -> None:
    source = KeySource("http://127.0.0.1:9/keys")
    assert not source.refresh()
    assert source.problem


@pytest.mark.parametrize(
    "url", ["http://example.org/keys", "ftp://example.org/", "https://", "https://a:b@example.org/", "http://["]
)
def test_a_url_where_others_could_put_in_keys_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        KeySource(url)


def test_a_file_is_read_again_when_it_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(JWKS)
    file.chmod(0o600)
    source = KeySource(str(file))
    assert source.is_worth_a_try()
    assert source.refresh()
    assert not source.is_worth_a_try()
    file.write_bytes(JWKS.replace(b"one", b"another"))
    assert source.is_worth_a_try()
    assert source.refresh()
    assert [key.kid for key in source.keys().keys] == ["another"]
    file.unlink()
    assert source.is_worth_a_try()
    assert not source.refresh()
    assert source.keys().keys


def test_a_secret_that_everybody_can_read_is_none(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"s" * 40)
    file.chmod(0o644)
    source = KeySource(str(file))
    assert not source.refresh()
    assert "chmod 600" in source.problem
    assert "sss" not in source.problem


def test_a_new_source_goes_on_with_what_the_old_one_had(web: Web) -> None:
    before = KeySource(web.url)
    assert before.refresh()
    web.respond = lambda request: answer(request, b"", 500)
    after = KeySource(web.url)
    after.take_over(before)
    assert not after.refresh()
    assert after.keys().keys
