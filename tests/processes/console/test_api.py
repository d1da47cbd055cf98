"""The admin API on a real server: what an operator does with destinations, and what he sees of the server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import fairlead.sync
from fairlead.testing import Server

pytestmark = [pytest.mark.processes]

WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(console=True, **{"console.probe_s": 0.1}) as one:
        yield one


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.console_url, timeout=WAIT_S, headers={"X-Fairlead-CSRF": "1"}) as client:
        yield client


def get(http: httpx.Client, path: str, **query: Any) -> Any:
    answer = http.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def until(look: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.05)
    return found


def test_the_overview_names_every_process_and_who_talks_to_whom(server: Server, http: httpx.Client) -> None:
    found = get(http, "overview")
    assert {one["name"] for one in found["processes"]} >= {
        *("supervisor", "dispatcher", "router", "manager 0", "manager 1", "message-manager", "console"),
    }
    assert {one["pid"] for one in found["processes"]} == {one["pid"] for one in server.status()["components"]}
    assert [one["index"] for one in found["managers"]] == [0, 1]
    pairs = {(one["source"], one["target"], one["by"]) for one in found["talks"]}
    assert ("manager 0", "router", "ring") in pairs
    assert ("dispatcher", "manager 1", "hand-over") in pairs
    assert found["server"]["console"] == [server.console_url]
    assert not [one for one in found["alarms"] if one["level"] == "error"]


def test_rates_and_round_trips_become_known(http: httpx.Client) -> None:
    found = until(
        lambda: (one := get(http, "overview"))["latency"] and one["totals"]["messages_in"] is not None and one
    )
    assert 0 < found["latency"]["p50_ms"] <= found["latency"]["p99_ms"]
    shares = until(lambda: [one["share"] for one in get(http, "overview")["managers"] if one["share"] is not None])
    assert sum(shares) == pytest.approx(1.0, abs=0.01)


def test_the_life_of_a_queue(http: httpx.Client) -> None:
    assert post(http, "destinations/life", kind="queue") == {"name": "life", "existed": False}
    assert post(http, "destinations/life")["existed"]
    sent = post(http, "destinations/life/send", body='{"book": 1}', count=3, properties={"size": 2})
    assert len(set(sent["ids"])) == 3
    post(http, "destinations/life/send", body="AP8=", encoding="base64")
    page = get(http, "destinations/life/messages", limit=2)
    assert [one["shown_as"] for one in page["messages"]] == ["json", "json"]
    assert page["messages"][0]["properties"] == {"size": 2}
    rest = get(http, "destinations/life/messages", after=page["next"])
    assert [one["shown_as"] for one in rest["messages"]] == ["json", "hex"]
    assert rest["messages"][1]["body"].startswith("00000000  00 ff")
    order = page["messages"][0]["order"]
    one = get(http, f"destinations/life/messages/{order}", **{"as": "text"})
    assert one["body"] == '{"book": 1}'
    post(http, "destinations/life/pause")
    assert get(http, "destinations/life")["destination"]["paused"]
    post(http, "destinations/life/resume")
    detail = get(http, "destinations/life")
    assert detail["destination"]["depth"] == 4
    assert "send" in detail["may"]
    assert http.delete(f"/api/v1/destinations/life/messages/{order}").json() == {"messages": 1, "more": False}
    assert post(http, "destinations/life/purge", selector="size = 2")["messages"] == 2
    busy = http.delete("/api/v1/destinations/life", params={"unused": True})
    assert busy.status_code == 503
    assert "in use" in busy.json()["detail"]
    assert http.delete("/api/v1/destinations/life").json()["messages"] == 1
    gone = http.get("/api/v1/destinations/life")
    assert gone.status_code == 404
    assert gone.headers["content-type"] == "application/problem+json"
    assert gone.json()["code"] == "no-destination"


def test_a_name_with_a_slash_is_one_name(http: httpx.Client) -> None:
    post(http, "destinations/a%2Fb")
    assert get(http, "destinations/a%2Fb")["destination"]["name"] == "a/b"
    assert http.get("/api/v1/destinations/a/b").status_code == 404


def test_destinations_come_in_pages_in_every_order(http: httpx.Client) -> None:
    for number in range(5):
        post(http, f"destinations/page.{number}")
        if number:
            post(http, f"destinations/page.{number}/send", body="x", count=number)
    seen, after = [], ""
    while True:
        page = get(http, "destinations", pattern="page.*", sort="depth", limit=2, after=after)
        seen += [one["name"] for one in page["destinations"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == ["page.4", "page.3", "page.2", "page.1", "page.0"]
    assert page["total"] == 5
    assert [one["name"] for one in get(http, "destinations", pattern="AGE.3")["destinations"]] == ["page.3"]


def test_messages_are_moved_after_a_dry_run_that_moves_none(http: httpx.Client) -> None:
    post(http, "destinations/from")
    post(http, "destinations/to")
    post(http, "destinations/from/send", body="x", count=5)
    assert post(http, "destinations/from/move", to="to", dry_run=True, limit=3)["messages"] == 3
    assert get(http, "destinations/from")["destination"]["depth"] == 5
    assert post(http, "destinations/from/move", to="to")["messages"] == 5
    assert get(http, "destinations/to")["destination"]["depth"] == 5


def test_dead_messages_go_back_where_they_came_from(server: Server, http: httpx.Client) -> None:
    post(http, "destinations/mortal", parameters={"delivery_limit": 1})
    post(http, "destinations/mortal/send", body="x", count=2)
    with (
        fairlead.sync.connect(server.url, name="killer") as connection,
        connection.queue("mortal").consume(prefetch=1) as consumer,
    ):
        for _ in range(2):
            consumer.receive(timeout=WAIT_S).reject()
    page = until(lambda: (found := get(http, "dead", origin="mortal"))["total"] >= 2 and found)
    assert {one["origin"] for one in page["reasons"]} == {"mortal"}
    assert len(page["messages"]) == 2
    assert post(http, "dead/redrive", origin="mortal")["moved"] == 2  # dry_run unless said otherwise
    assert get(http, "destinations/mortal")["destination"]["depth"] == 0
    done = post(http, "dead/redrive", origin="mortal", dry_run=False)
    assert done["to"] == {"mortal": 2}
    assert get(http, "destinations/mortal")["destination"]["depth"] == 2


def test_schedules_are_listed_and_ended(server: Server, http: httpx.Client) -> None:
    post(http, "destinations/clock")
    with fairlead.sync.connect(server.url, name="scheduler") as connection:
        connection.queue("clock").send(b"tick", cron="0 9 * * *")
    (one,) = until(lambda: get(http, "schedules", destination="clock")["schedules"])
    assert one["cron"] == "0 9 * * *"
    assert http.delete(f"/api/v1/schedules/clock/{one['order']}").json() == {"ok": True}
    assert get(http, "schedules", destination="clock")["schedules"] == []
    assert http.delete(f"/api/v1/schedules/clock/{one['order']}").status_code == 404


def test_a_client_is_seen_and_can_be_cut_off(server: Server, http: httpx.Client) -> None:
    with fairlead.sync.connect(server.url, name="victim") as connection:
        connection.queue("victims").send(b"x")
        (one,) = until(lambda: get(http, "connections", text="victim")["connections"])
        assert one["type"] == "victim"
        assert any(session["connection"] == one["id"] for session in get(http, "sessions")["sessions"])
        assert http.delete(f"/api/v1/connections/{one['id']}").json() == {"ok": True}
        again = until(
            lambda: [c for c in get(http, "connections", text="victim")["connections"] if c["id"] != one["id"]]
        )
        assert again[0]["type"] == "victim"  # it came back by itself
        connection.queue("victims").send(b"y")
    assert http.delete("/api/v1/connections/1").status_code == 404


def test_what_is_not_there_says_so(http: httpx.Client) -> None:
    assert not get(http, "cluster")["clustered"]
    assert "no stream administration" in get(http, "feeds")["note"]
    assert "neither keeps a directory" in get(http, "directory")["note"]
    assert get(http, "tunnels")["note"]
    assert get(http, "pipelines")["cursors"] == []


def test_a_program_is_replaced_live_and_the_pause_is_in_the_history(http: httpx.Client) -> None:
    before = {one["pid"] for one in get(http, "overview")["processes"] if one["role"] == "router"}
    (done,) = post(http, "update", component="router")["updates"]
    assert done["outcome"] == "done"
    assert get(http, "overview")["updates"][0]["component"] == "router"
    routers = [one for one in get(http, "overview")["processes"] if one["role"] == "router"]
    assert {one["pid"] for one in routers if one["state"] == "active"} - before
    pauses = until(
        lambda: [v for v in get(http, "history", series="update.pause")["series"][0]["values"] if v is not None]
    )
    assert pauses[-1] == pytest.approx(done["pause_ms"], rel=0.01)
    assert http.post("/api/v1/update", json={"component": "console"}).status_code == 409
    assert http.post("/api/v1/update", json={"component": "nothing"}).status_code == 503


def test_what_people_change_is_in_the_event_log(http: httpx.Client) -> None:
    post(http, "destinations/audited")
    (one,) = until(lambda: get(http, "events", code="audit", text="audited")["events"])
    assert one["facts"] == {"action": "create", "object": "audited", "outcome": "done"}
    assert http.post("/api/v1/destinations/nowhere-to-be-found/pause", json={}).status_code == 404
    (one,) = until(lambda: get(http, "events", code="audit", text="nowhere-to-be-found")["events"])
    assert (one["level"], one["facts"]["outcome"]) == ("warning", "no-destination")


def test_history_is_told_in_steps(http: httpx.Client) -> None:
    wanted = {"messages.in", "manager/0/ring.up", "manager/1/ring.up"}
    until(lambda: set(get(http, "history")["names"]) >= wanted)
    found = get(http, "history", series="messages.in,manager/*")
    assert found["step_ms"] == 1000
    assert {one["name"] for one in found["series"]} >= wanted
    assert len({len(one["values"]) for one in found["series"]}) == 1
    assert get(http, "history", series="messages.in", step_s=60)["step_ms"] == 60_000
    late = http.get("/api/v1/history", params={"since_ms": 2**52})
    assert late.status_code == 422


def events_of(http: httpx.Client, **headers: str) -> Iterator[tuple[str, str, Any]]:
    with http.stream("GET", "/api/v1/live", headers=headers) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        kind = identity = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind, identity = line.removeprefix("event: "), ""
            elif line.startswith("id: "):
                identity = line.removeprefix("id: ")
            elif line.startswith("data: "):
                yield kind, identity, json.loads(line.removeprefix("data: "))


def test_who_looks_on_is_told_everything_and_what_he_missed(http: httpx.Client, server: Server) -> None:
    kinds: dict[str, Any] = {}
    stream = events_of(http)
    kinds[next(stream)[0]] = True  # from here on it listens
    with httpx.Client(base_url=server.console_url, timeout=WAIT_S, headers={"X-Fairlead-CSRF": "1"}) as other:
        post(other, "destinations/seen.live")
        last = ""
        for kind, identity, data in stream:
            kinds[kind] = data
            if kind == "event" and "seen.live" in data["text"]:
                last = identity
            if last and kinds.keys() >= {"overview", "destinations", "connections", "event", "history"}:
                break
        stream.close()
        assert kinds["history"]["values"]["connections"] >= 1
        post(other, "destinations/missed.live")
        until(lambda: get(other, "events", code="audit", text="missed.live")["events"])
        for kind, _, data in events_of(http, **{"Last-Event-ID": last}):
            if kind == "event" and "missed.live" in data["text"]:
                break


def test_too_many_who_look_on_are_turned_away(http: httpx.Client, server: Server) -> None:
    until(lambda: server.status(brief=True)["console"].get("looking_on") == 0)
    with httpx.Client(base_url=server.console_url, timeout=WAIT_S, limits=httpx.Limits(max_connections=64)) as many:
        streams = [many.stream("GET", "/api/v1/live") for _ in range(33)]
        answers = [stream.__enter__() for stream in streams]
        assert [one.status_code for one in answers] == [200] * 32 + [503]
        for stream in streams:
            stream.__exit__(None, None, None)
    until(lambda: server.status(brief=True)["console"].get("looking_on") == 0)


def test_health_says_whether_the_server_serves(http: httpx.Client) -> None:
    assert http.get("/health/live").json()["ok"]
    ready = http.get("/health/ready", headers={"Host": "anything.example"})
    assert ready.status_code == 200
    names = {"supervisor", "router", "dispatcher", "managers", "message-manager"}
    assert {one["name"] for one in ready.json()["checks"]} == names


def test_metrics_are_told_in_both_formats(http: httpx.Client) -> None:
    plain = http.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "fairlead_ready 1.0" in plain.text
    assert 'fairlead_process_up{index="0",role="console"} 1.0' in plain.text
    open_metrics = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.text.endswith("# EOF\n")
    assert http.post("/metrics").status_code in (403, 405)


def test_the_page_is_served_and_nothing_beside_it(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert http.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    for path in ("/static/../app.py", "/static/%2e%2e/%2e%2e/shapes.py", "/static/", "/static//etc/passwd", "/../x"):
        assert http.get(f"{http.base_url}{path}".replace("//static", "/static")).status_code == 404
