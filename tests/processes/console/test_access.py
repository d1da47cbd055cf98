"""Who gets in at the console of a real server with users, and what others may not make his browser do."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.testing import Server

pytestmark = [pytest.mark.processes]

WAIT_S = 60.0
USERS = {
    "root": {"admin": ["_ADMIN"], "consume": [">", "_DMQ", "_LOG"]},
    "clerk": {"send": ["orders.>"], "browse": ["orders.in"], "consume": [], "create": ["orders.new"], "admin": []},
    "keeper": {"send": [], "browse": [], "consume": [], "create": [], "admin": ["orders.>"]},
    "monitor": {"send": [], "browse": ["_METRICS"], "consume": [], "create": [], "admin": []},
    "nobody": {"send": [], "browse": [], "consume": [], "create": [], "admin": []},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("guarded")
    hash_ = hash_password("right")
    users.write(
        data / "users.toml", users.Users({name: users.User(hash=hash_, **lists) for name, lists in USERS.items()})
    )
    with Server(console=True, managers=1, data=data) as one:
        with httpx.Client(base_url=one.console_url, timeout=WAIT_S, auth=("root", "right")) as root:
            for name in ("orders.in", "orders.out", "secret"):
                assert root.post(f"/api/v1/destinations/{name}", json={}).status_code == 200
        yield one


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.console_url, timeout=WAIT_S) as client:
        yield client


def log_in(http: httpx.Client, user: str, password: str = "right") -> httpx.Response:
    return http.post("/api/v1/login", json={"user": user, "password": password}, headers={"X-Fairlead-CSRF": "login"})


def as_user(user: str) -> dict[str, Any]:
    return {"auth": (user, "right")}


@pytest.mark.parametrize(
    "path",
    ["overview", "destinations", "destinations/secret", "live", "events", "history", "connections", "pipelines"],
)
def test_who_is_not_logged_in_sees_nothing(http: httpx.Client, path: str) -> None:
    answer = http.get(f"/api/v1/{path}")
    assert answer.status_code == 401
    assert answer.json()["code"] == "bad-credentials"
    assert "secret" not in answer.json()["detail"]
    assert "Basic" not in answer.headers["www-authenticate"]  # no browser asks with a window of its own


def test_health_and_the_page_are_for_everybody_and_metrics_are_not(http: httpx.Client) -> None:
    assert http.get("/health/ready").status_code == 200
    assert http.get("/").status_code == 200
    assert http.get("/metrics").status_code == 401
    metrics = http.get("/metrics", **as_user("nobody"))
    assert metrics.status_code == 403
    for user in ("root", "monitor"):
        assert "fairlead_" in http.get("/metrics", **as_user(user)).text
    assert http.get("/api/v1/overview", **as_user("monitor")).status_code == 403
    me = http.get("/api/v1/me").json()
    assert (me["logged_in"], me["open"], me["csrf"]) == (False, False, "")


def test_a_login_is_a_cookie_that_no_script_reads_and_a_token_for_changes(http: httpx.Client) -> None:
    answer = log_in(http, "root")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "; secure" not in cookie  # this one is not TLS
    me = answer.json()
    assert (me["user"], me["admin"], me["logged_in"]) == ("root", True, True)
    assert http.get("/api/v1/overview").status_code == 200
    bare = http.post("/api/v1/destinations/made", json={})
    assert (bare.status_code, bare.json()["code"]) == (403, "not-allowed")
    assert http.post("/api/v1/destinations/made", json={}, headers={"X-Fairlead-CSRF": "1"}).status_code == 403
    with_token = {"X-Fairlead-CSRF": me["csrf"]}
    assert http.post("/api/v1/destinations/made", json={}, headers=with_token).status_code == 200
    assert http.post("/api/v1/logout", headers=with_token).status_code == 200
    assert http.get("/api/v1/overview").status_code == 401


def test_a_token_that_ended_with_logout_does_not_come_back(http: httpx.Client, server: Server) -> None:
    answer = log_in(http, "root")
    token = answer.cookies["fairlead-console"]
    http.post("/api/v1/logout", headers={"X-Fairlead-CSRF": answer.json()["csrf"]})
    stolen = httpx.get(f"{server.console_url}/api/v1/overview", cookies={"fairlead-console": token}, timeout=WAIT_S)
    assert stolen.status_code == 401
    guessed = httpx.get(
        f"{server.console_url}/api/v1/overview", headers={"Authorization": f"Bearer {token}"}, timeout=WAIT_S
    )
    assert guessed.status_code == 401


def test_a_program_uses_its_token_or_its_password(http: httpx.Client) -> None:
    token = log_in(http, "root").cookies["fairlead-console"]
    http.cookies.clear()
    answer = http.post("/api/v1/destinations/programmed", json={}, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert http.delete("/api/v1/destinations/programmed", **as_user("root")).status_code == 200


@pytest.mark.parametrize("value", ["Basic !!!", "Basic", "Basic cm9vdA==", "Bearer", "Bearer x", "Digest abc"])
def test_what_is_no_login_is_none(http: httpx.Client, value: str) -> None:
    assert http.get("/api/v1/overview", headers={"Authorization": value}).status_code in (400, 401)


def test_wrong_passwords_cost_pauses_and_the_right_one_does_not_help_during_one(http: httpx.Client) -> None:
    answers = [log_in(http, "victim", f"guess {number}").status_code for number in range(5)]
    assert answers[:3] == [401] * 3
    assert answers[-1] == 429
    refused = log_in(http, "victim", "right")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert log_in(http, "root").status_code == 200  # others are not locked out


def test_the_servers_own_users_cannot_log_in(http: httpx.Client) -> None:
    assert log_in(http, "_console", "right").status_code == 401


def test_a_user_sees_and_does_what_his_rights_say_and_no_more(http: httpx.Client) -> None:
    clerk = as_user("clerk")

    def status(method: str, path: str, **body: Any) -> int:
        given = {"json": body} if method == "POST" else {}
        return http.request(method, f"/api/v1/{path}", **given, **clerk).status_code

    seen = http.get("/api/v1/destinations", **clerk).json()["destinations"]
    assert {one["name"] for one in seen} == {"orders.in", "orders.out"}
    assert status("GET", "destinations/orders.in") == 200
    assert status("GET", "destinations/secret") == 403
    assert status("GET", "destinations/orders.in/messages") == 200
    assert status("GET", "destinations/orders.out/messages") == 403
    assert status("GET", "destinations/secret/messages/1") == 403
    assert status("POST", "destinations/orders.in/send", body="x") == 200
    assert status("POST", "destinations/secret/send", body="x") == 403
    assert status("POST", "destinations/orders.new") == 200
    assert status("POST", "destinations/orders.other") == 403
    for path in ("pause", "purge", "resume"):
        assert status("POST", f"destinations/orders.in/{path}") == 403
    assert status("POST", "destinations/orders.in/move", to="orders.out") == 403
    assert status("DELETE", "destinations/orders.in") == 403
    assert status("DELETE", "destinations/orders.in/messages/1") == 403
    assert status("DELETE", "connections/1") == 403
    assert status("POST", "update", component="router") == 403
    assert status("POST", "dead/redrive") == 403
    for path in ("overview", "events", "connections", "sessions", "history", "live", "dead", "cluster", "directory"):
        assert status("GET", path) == 403
    assert http.get("/api/v1/me", **clerk).json()["admin"] is False
    assert http.get("/api/v1/destinations", **as_user("nobody")).json()["destinations"] == []


def test_who_administers_some_destinations_does_so_with_these_alone(http: httpx.Client) -> None:
    keeper = as_user("keeper")

    def status(method: str, path: str, **body: Any) -> int:
        given = {"json": body} if method == "POST" else {}
        return http.request(method, f"/api/v1/{path}", **given, **keeper).status_code

    assert status("POST", "destinations/orders.in/pause") == 200
    assert status("POST", "destinations/orders.in/resume") == 200
    assert status("GET", "destinations/orders.out/messages") == 200
    assert status("POST", "destinations/orders.in/move", to="orders.out", limit=1) == 200
    assert status("POST", "destinations/orders.in/move", to="secret", dry_run=True) == 403
    assert status("POST", "destinations/orders.in/move", to="secret") == 403
    assert status("POST", "destinations/secret/purge") == 403
    assert status("GET", "overview") == 403


def test_who_uses_a_destination_is_shown_to_its_administrators_only(http: httpx.Client) -> None:
    for user, sees in (("root", True), ("clerk", False)):
        found = http.get("/api/v1/destinations/orders.in", **as_user(user)).json()
        assert ("admin" in found["may"]) is sees
        assert found["consumers"] == []
    log = http.get("/api/v1/destinations/_LOG", **as_user("root")).json()
    assert [one["user"] for one in log["consumers"]] == ["_console"]


def test_an_administrator_without_the_right_to_send_cannot_send(http: httpx.Client, server: Server) -> None:
    entries = users.read(server.data / "users.toml")
    changed = entries.with_user("warden", users.User(hash=entries.entries["root"].hash, send=[], admin=["_ADMIN"]))
    users.write(server.data / "users.toml", changed)
    server.ask("reload")
    deadline_s = time.monotonic() + WAIT_S
    while http.get("/api/v1/overview", **as_user("warden")).status_code == 401:
        assert time.monotonic() < deadline_s
        time.sleep(1.0)  # wrong passwords cost pauses, also ours
    refused = http.post("/api/v1/destinations/secret/send", json={"body": "x"}, **as_user("warden"))
    assert refused.status_code == 403
    logged = http.get("/api/v1/events", params={"code": "audit", "text": "warden"}, **as_user("root")).json()
    assert logged["events"][0]["facts"] == {"action": "send", "object": "secret", "outcome": "not-allowed"}


def test_a_login_ends_with_its_user(http: httpx.Client, server: Server) -> None:
    entries = users.read(server.data / "users.toml")
    users.write(server.data / "users.toml", entries.with_user("guest", entries.entries["root"]))
    server.ask("reload")
    deadline_s = time.monotonic() + WAIT_S
    while log_in(http, "guest").status_code != 200:
        assert time.monotonic() < deadline_s
        time.sleep(1.0)
    assert http.get("/api/v1/overview").status_code == 200
    users.write(server.data / "users.toml", users.read(server.data / "users.toml").without("guest"))
    server.ask("reload")
    while http.get("/api/v1/overview").status_code == 200:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert http.get("/api/v1/overview").status_code == 401


# --- Other sites, and names that are not ours -------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1"])
def test_a_name_that_is_not_ours_is_refused(http: httpx.Client, host: str) -> None:
    for path in ("/", "/api/v1/me", "/api/v1/overview", "/metrics"):
        answer = http.get(path, headers={"Host": host}, **as_user("root"))
        assert answer.status_code in (400, 421)


def test_localhost_and_addresses_are_ours(http: httpx.Client) -> None:
    for host in ("localhost:1234", "127.0.0.1", "[::1]:80"):
        assert http.get("/api/v1/me", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_pages_of_other_sites_change_nothing(http: httpx.Client, headers: dict[str, str]) -> None:
    csrf = {"X-Fairlead-CSRF": log_in(http, "root").json()["csrf"]}
    answer = http.post("/api/v1/destinations/forged", json={}, headers=headers | csrf)
    assert (answer.status_code, answer.json()["code"]) == (403, "not-allowed")
    assert http.get("/api/v1/destinations/forged").status_code == 404


def test_another_site_cannot_read_a_stream_or_log_somebody_in(http: httpx.Client) -> None:
    log_in(http, "root")
    assert http.get("/api/v1/live", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert http.get("/api/v1/overview", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    forged = http.post("/api/v1/login", json={"user": "root", "password": "right"})
    assert forged.status_code == 403
    options = http.options("/api/v1/overview", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in options.headers


def test_a_link_from_another_site_opens_the_page(http: httpx.Client) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert http.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_is_no_body(http: httpx.Client, kind: str) -> None:
    answer = http.post("/api/v1/destinations/formed", content=b"{}", headers={"Content-Type": kind}, **as_user("root"))
    assert answer.status_code == 415


def test_every_answer_says_what_browsers_must_not_do(http: httpx.Client) -> None:
    for path in ("/", "/api/v1/me", "/nothing"):
        headers = http.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert http.get("/api/v1/me").headers["cache-control"] == "no-store"


# --- Too much ---------------------------------------------------------------------------------------------------------


def test_bodies_and_addresses_that_are_too_long_are_refused(http: httpx.Client) -> None:
    long = http.post("/api/v1/destinations/orders.in/purge", json={"selector": "x" * 70_000}, **as_user("root"))
    assert long.status_code == 413
    chunks = (b'{"body": "' + b"x" * 100_000 for _ in range(40))
    endless = http.post(
        "/api/v1/destinations/orders.in/send",
        content=chunks,
        headers={"Content-Type": "application/json"},
        **as_user("clerk"),
    )
    assert endless.status_code == 413
    assert http.get("/api/v1/history", params={"series": "x" * 40_000}, **as_user("root")).status_code in (400, 414)
    deep = http.post(
        "/api/v1/destinations/orders.in/move",
        content=b"[" * 60_000,
        headers={"Content-Type": "application/json"},
        **as_user("root"),
    )
    assert deep.status_code in (400, 422)


@pytest.mark.long
def test_a_connection_that_says_nothing_is_ended(server: Server) -> None:
    port = int(server.console_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as sock:
        sock.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert sock.recv(1) == b""


def test_secrets_are_in_no_log(server: Server) -> None:
    basic = base64.b64encode(b"root:right").decode()
    for file in (server.data / "log").iterdir():
        text = file.read_text(errors="replace")
        assert "guess 1" not in text
        assert basic not in text


def test_the_history_is_for_its_owner_only(server: Server) -> None:
    file: Path = server.data / "console" / "history"
    assert file.stat().st_mode & 0o077 == 0
