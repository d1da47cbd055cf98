"""The pieces of the page, each on its own, in a real browser: no server, the files straight from the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, Route, expect

import fairlead
from fairlead.console.shapes import Me
from fairlead.console.shapes_users import Directory, Feeds, Pipelines, Tunnels
from tests.console.browser.pages import Look

STATIC = Path(fairlead.__file__).parent / "console" / "static"
BASE = "http://127.0.0.1:1"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
BLANK = """<!doctype html><title>pieces</title><link rel=icon href=static/icon.svg>
<div id=app></div><div id=announce></div>"""


def serve(route: Route) -> None:
    name = route.request.url.removeprefix(f"{BASE}/")
    if not name:
        route.fulfill(body=BLANK, content_type="text/html")
        return
    path = STATIC / name.removeprefix("static/")
    route.fulfill(body=path.read_bytes(), content_type=TYPES[path.suffix])


@pytest.fixture(scope="module")
def page(browser: Any) -> Page:
    made: Page = browser.new_context().new_page()
    made.route("**/*", serve)
    made.goto(BASE)
    return made


def test_figures_are_short_and_have_their_unit(page: Page) -> None:
    found = page.evaluate("""async () => {
        const f = await import("/static/format.js");
        return [f.count(1234567), f.count(null), f.short(12345), f.short(0.25), f.rate(0), f.rate(3.25), f.rate(12000),
            f.bytes(1536), f.bytes(0), f.span(0.25), f.span(90), f.span(7300), f.millis(0.4217), f.millis(12345),
            f.percent(0.734), f.many(1, "message"), f.many(2, "switch", "switches"), f.brief("abcdefghijklmnop", 4)];
    }""")
    assert found == [
        *("1,234,567", "–", "12.3k", "0.25", "0", "3.3", "12k"),
        *("1.5 KiB", "0 B", "250 ms", "90 s", "2 h", "0.42 ms", "12.3 s"),
        *("73 %", "1 message", "2 switches", "abcd…"),
    ]


def test_a_chart_has_round_steps_and_finds_the_nearest_point(page: Page) -> None:
    found = page.evaluate("""async () => {
        const { ticks, timeTicks, path, nearest } = await import("/static/chart.js");
        const same = (v) => v;
        return [ticks(87), ticks(0), ticks(0.3, 2), timeTicks(61000, 299000, 4),
            path([0, 1, 2, 3], [1, null, 2, 3], same, same),
            nearest([0, 10, 20, 30], 14), nearest([0, 10, 20, 30], 99), nearest([5], 1)];
    }""")
    assert found[0] == [0, 25, 50, 75, 100]
    assert found[1] == [0, 1]
    assert found[2] == [0, 0.2, 0.4]
    assert found[3] == [120_000, 180_000, 240_000]
    assert found[4] == "M0.0 1.0M2.0 2.0L3.0 3.0"
    assert found[5:] == [1, 3, 0]


def test_patching_keeps_nodes_and_what_is_typed_and_moves_by_key(page: Page) -> None:
    found = page.evaluate("""async () => {
        const { h, render } = await import("/static/dom.js");
        const app = document.getElementById("app");
        const item = (name) => h("li", { key: name, id: name }, name);
        const draw = (names, note) => render(app, note ? h("p", null, note) : null,
            h("input", { value: "a" }), h("ul", null, names.map(item)));
        draw(["x", "y", "z"], null);
        const input = app.querySelector("input");
        const y = document.getElementById("y");
        input.value = "typed";
        input.focus();
        draw(["z", "y", "w"], "a note");
        return [input === app.querySelector("input"), input.value, document.activeElement === input,
            y === document.getElementById("y"), [...app.querySelectorAll("li")].map((one) => one.textContent).join(""),
            app.querySelector("p").textContent];
    }""")
    assert found == [True, "typed", True, True, "zyw", "a note"]


def test_a_key_that_comes_twice_leaves_nothing_behind(page: Page) -> None:
    found = page.evaluate("""async () => {
        const { h, render } = await import("/static/dom.js");
        const list = document.createElement("ul");
        for (let turn = 0; turn < 3; turn += 1) {
            render(list, h("li", { key: "x" }, "a"), h("li", { key: "x" }, `b${turn}`), h("li", { key: "y" }, "c"));
        }
        return [...list.children].map((one) => one.textContent);
    }""")
    assert found == ["a", "b2", "c"]


@pytest.mark.parametrize(
    "wish",
    [
        'h("a", { href: "javascript:alert(1)" })',
        'h("a", { href: "//elsewhere.example" })',
        'h("a", { href: "data:text/html,x" })',
        'h("p", { onclick: "alert(1)" })',
        'h("p", { innerHTML: "<b>x</b>" })',
        'h("iframe", { srcdoc: "<b>x</b>" })',
    ],
)
def test_no_markup_and_no_way_out_can_be_built(page: Page, wish: str) -> None:
    refused = page.evaluate(f"""async () => {{
        const {{ h, render }} = await import("/static/dom.js");
        try {{
            render(document.createElement("div"), {wish});
            return false;
        }} catch (fault) {{
            return fault instanceof TypeError;
        }}
    }}""")
    assert refused


def test_text_stays_text(page: Page) -> None:
    found = page.evaluate("""async () => {
        const { h, render } = await import("/static/dom.js");
        const app = document.getElementById("app");
        render(app, h("p", { title: "<b>t</b>" }, "<img src=x onerror=alert(1)>"));
        return [app.querySelectorAll("img").length, app.textContent, app.firstChild.title];
    }""")
    assert found == [0, "<img src=x onerror=alert(1)>", "<b>t</b>"]


def test_properties_are_read_as_what_they_look_like(page: Page) -> None:
    found = page.evaluate("""async () => {
        const { properties } = await import("/static/acts.js");
        return [properties("a=1 b=two c=true d=1.5 e=x=y f="), properties("oops"), properties("  ")];
    }""")
    assert found == [{"a": 1, "b": "two", "c": True, "d": 1.5, "e": "x=y", "f": ""}, None, {}]


def test_what_changed_is_told_and_pointed_out_for_a_while(page: Page) -> None:
    found = page.evaluate("""async () => {
        const { Changes } = await import("/static/changes.js");
        const one = (pid, state, name = "router") => ({ pid, state, name, role: name, index: 0, version: "0.1.0" });
        const changes = new Changes();
        changes.onOverview({ processes: [one(1, "active"), one(2, "standby")] }, 0);
        const quiet = changes.lines.length;
        changes.onOverview({ processes: [one(2, "active"), one(3, "standby")] }, 1000);
        const seen = [[...changes.gone.keys()], [...changes.fresh.keys()], changes.lines.map((line) => line.text)];
        changes.onOverview({ processes: [one(2, "active"), one(3, "standby")] }, 20000);
        const groups = (primary, epoch, nodes) =>
            ({ clustered: true, nodes, groups: [{ group: "a", primary, epoch }] });
        changes.onCluster(groups("mm1", 1, [{ node: "mm1", pid: 5 }]), 21000);
        changes.onCluster(groups("", 1, []), 22000);
        changes.onCluster(groups("mm2", 2, [{ node: "mm1", pid: 6 }]), 23000);
        const last = changes.lines.slice(0, 4).map((line) => line.text);
        return [quiet, ...seen, changes.gone.size + changes.fresh.size, last];
    }""")
    assert found == [
        0,
        [1],
        [2, 3],
        ["router: process 1 is gone.", "router: process 2 is active now (it was standby)."],
        0,
        [
            "Group a: mm2 leads at epoch 2.",
            "Node mm1 is there again: process 6.",
            "Group a: nobody leads it (before: mm1).",
            "Node mm1 does not answer.",
        ],
    ]


def test_a_cluster_is_drawn_with_who_leads_and_who_is_behind(page: Page) -> None:
    page.evaluate("""async () => {
        const { render } = await import("/static/dom.js");
        const { Changes } = await import("/static/changes.js");
        const { clusterDrawing } = await import("/static/cluster.js");
        const node = (name, kind) => ({ node: name, kind, state: "up", pid: 7 });
        const member = (name, role, in_sync, lag) => ({ node: name, role, epoch: 4, serving: true, in_sync, lag });
        const members = [member("mm1", "backup", false, 812), member("mm2", "primary", true, 0)];
        const cluster = {
            clustered: true, missing: ["mm3"], warnings: [],
            nodes: [node("cm1", "client-manager"), node("mm1", "message-manager"), node("mm2", "message-manager")],
            groups: [{ group: "a", primary: "mm2", epoch: 4, copies: 2, degraded: true, members }],
        };
        render(document.getElementById("app"), clusterDrawing(cluster, new Changes(), 700));
    }""")
    drawing = page.get_by_role("img", name="Group a: mm2 leads at epoch 4")
    expect(drawing.locator("[data-name=mm1]")).to_contain_text("a backup")
    expect(drawing.locator("[data-name=mm1]")).to_contain_text("epoch 4, 812 behind")
    expect(drawing.locator("[data-name=mm2]")).to_contain_text("a primary")
    expect(drawing.locator("[data-name=mm3].none")).to_contain_text("does not answer")
    expect(drawing.locator("path.copy.behind")).to_have_count(1)


def test_fields_the_server_chooses_are_shown_by_their_unit(page: Page) -> None:
    found = page.evaluate("""async () => {
        const { value, words } = await import("/static/words.js");
        return [words("last_seen_ms"), value("age_s", 90), value("bytes_in", 2048), value("up", true), value("x", null),
            value("list", ["a", { b: 1 }]), value("n", 12345)];
    }""")
    assert found == ["Last seen", "90 s", "2.0 KiB", "yes", "–", 'a, {"b":1}', "12,345"]


def test_feeds_tunnels_pipelines_and_tables_of_the_directory_are_shown(look: Look) -> None:
    """Feeds and tunnels are answers of a real server, pipelines and directory written by hand; all must fit the API."""
    answers = json.loads((Path(__file__).parent / "answers.json").read_bytes())
    for name, shape in (("feeds", Feeds), ("tunnels", Tunnels), ("pipelines", Pipelines), ("directory", Directory)):
        msgspec.convert(answers[name], shape)
    msgspec.convert(answers["me"], Me)
    page = look("about:blank", forgives="reached out to about:|ERR_|404", viewport={"width": 1280, "height": 860})
    page.route("**/*", lambda route: serve_page(route, answers))
    page.goto(f"{BASE}/#/feeds")
    rows = page.get_by_role("table", name="Adapters").locator("tbody tr")
    expect(rows.filter(has_text="active")).to_contain_text("14,642")
    expect(rows.filter(has_text="backup")).to_contain_text("dead")
    expect(rows.filter(has_text="backup")).to_contain_text("day:DAY0000001 7,979")
    page.goto(f"{BASE}/#/tunnels")
    expect(page.get_by_role("table", name="Tunnels")).to_contain_text("87609057")
    page.goto(f"{BASE}/#/pipelines")
    expect(page.get_by_role("table", name="Readers")).to_contain_text("1,500")
    expect(page.get_by_role("table", name="Last batches")).to_contain_text("orders-sink")
    page.goto(f"{BASE}/#/directory")
    expect(page.get_by_role("table", name="Applications")).to_contain_text("pricing")


def test_the_page_waits_for_a_server_that_is_not_there_yet(look: Look) -> None:
    page = look("about:blank", forgives="reached out to about:|ERR_")
    page.route("**/*", lambda route: serve_page(route, {}))
    page.goto(f"{BASE}/")
    expect(page.get_by_text("Looking for the server …")).to_be_visible()


def serve_page(route: Route, answers: dict[str, Any]) -> None:
    """The page's files, and these answers; no other question is answered."""
    name = route.request.url.removeprefix(f"{BASE}/").partition("?")[0]
    if name.startswith("api/"):
        answer = answers.get(name.removeprefix("api/v1/"))
        if answer is None:
            route.abort()
        else:
            route.fulfill(json=answer)
    else:
        path = STATIC / (name.removeprefix("static/") or "index.html")
        route.fulfill(body=path.read_bytes(), content_type=TYPES[path.suffix])
