"""What an operator does in the console, in a real browser on a real server."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from fairlead import sync
from fairlead.testing import Server
from tests.console.browser.pages import Look, confirm, dialog, heading, row, told

pytestmark = pytest.mark.processes
HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"><b>bold</b>"
VIEWS = (
    *("topology", "charts", "events", "destinations", "dead", "schedules", "connections", "tunnels", "directory"),
    *("feeds", "pipelines"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(console=True) as one:
        one.wait_until(lambda report: report["messages"]["state"] == "active", 30)
        yield one


@pytest.fixture(scope="module")
def connection(server: Server) -> Iterator[sync.Connection]:
    with sync.connect(server.url, name="test") as made:
        yield made


@pytest.fixture
def page(server: Server, look: Look) -> Page:
    made = look(server.console_url)
    expect(made.locator("[data-line=live]").first).to_be_attached()
    return made


def go(page: Page, where: str) -> None:
    page.evaluate("where => { location.hash = where }", f"#/{where}")


def has_standby(server: Server, role: str) -> None:
    server.wait_until(lambda report: (role, "standby") in [(c["role"], c["state"]) for c in report["components"]], 30)


def test_a_test_message_is_sent_seen_and_shown_as_json_and_as_bytes(page: Page) -> None:
    go(page, "destinations")
    page.get_by_role("button", name="Create …").click()
    dialog(page).get_by_label("Name").fill("tried")
    confirm(page, "Create it")
    told(page, "The queue tried is made.")
    page.get_by_role("link", name="tried", exact=True).click()
    heading(page, "tried")
    expect(page.get_by_text("Nothing waits here.")).to_be_visible()
    page.get_by_role("button", name="Send test message …").click()
    asked = dialog(page)
    asked.get_by_label("Body").fill('{"book": "Moby-Dick", "copies": 2}')
    asked.get_by_label("Properties").fill("colour=green size=3")
    confirm(page, "Send it")
    told(page, "1 message stored in tried.")
    row(page, "Messages", "Moby-Dick").get_by_role("button").click()
    shown = page.get_by_role("region", name=re.compile("Message 1"))
    expect(shown.locator("pre")).to_have_text('{\n  "book": "Moby-Dick",\n  "copies": 2\n}')
    expect(shown).to_contain_text("green")
    shown.get_by_role("button", name="Hex").click()
    expect(shown.locator("pre")).to_contain_text("7b 22 62 6f 6f 6b")
    shown.get_by_role("button", name="Text").click()
    expect(shown.locator("pre")).to_have_text('{"book": "Moby-Dick", "copies": 2}')
    expect(page.locator(".tile", has_text="Waiting").locator(".value")).to_have_text("1")


def test_what_our_own_clients_send_as_dict_is_readable(page: Page, connection: sync.Connection) -> None:
    connection.queue("packed").send({"book": "Middlemarch", "copies": [1, 2]})
    go(page, "destinations/packed")
    row(page, "Messages", "Middlemarch").get_by_role("button").click()
    expect(page.locator(".message pre")).to_contain_text('"book": "Middlemarch",')
    page.get_by_role("button", name="Hex").click()
    expect(page.locator(".message pre")).to_contain_text("82 a4 62 6f 6f 6b")


def test_whatever_a_message_contains_is_shown_as_text(page: Page, connection: sync.Connection) -> None:
    connection.queue("hostile").send(HOSTILE, properties={"name": f"<i>{HOSTILE}</i>"}, key="<u>key</u>")
    connection.queue("hostile").send(b"\x00\xff<script>" * 4)
    go(page, "destinations/hostile")
    cell = row(page, "Messages", "taken")
    expect(cell).to_contain_text("<script>document.title = 'taken'</script>")
    cell.get_by_role("button").click()
    shown = page.locator(".message")
    expect(shown.locator("pre")).to_have_text(HOSTILE)
    expect(shown).to_contain_text("<i><script>")
    expect(shown).to_contain_text("<u>key</u>")
    expect(page.locator("main img, main script, .message i, .message b, td i, td b")).to_have_count(0)
    expect(page).to_have_title("hostile – Fairlead console")
    page.get_by_role("table", name="Messages").get_by_role("button", name="2", exact=True).click()
    expect(shown.locator("pre")).to_contain_text("00 ff 3c 73 63 72 69 70 74")


def test_messages_move_after_a_look_at_what_would_move(page: Page, connection: sync.Connection) -> None:
    connection.queue("here").send_many([b"%d" % n for n in range(5)])
    connection.queue("there").send(b"first")
    go(page, "destinations/here")
    expect(page.get_by_role("table", name="Messages").locator("tbody tr")).to_have_count(5)
    for order in (1, 3):
        page.get_by_label(f"Choose message {order}").check()
    page.get_by_role("button", name="Move …", exact=True).click()
    dialog(page).get_by_label("To").fill("there")
    confirm(page, "See what would be moved")
    expect(dialog(page)).to_contain_text("2 messages of here will go to there.")
    assert connection.admin.destination(destination="there")["depth"] == 1, "a dry run moves nothing"
    confirm(page, "Move")
    told(page, "2 messages moved to there.")
    expect(page.get_by_role("table", name="Messages").locator("tbody tr")).to_have_count(3)
    assert connection.admin.destination(destination="there")["depth"] == 3


def test_purging_wants_the_name_typed(page: Page, connection: sync.Connection) -> None:
    connection.queue("full").send_many([b"x"] * 20)
    go(page, "destinations/full")
    page.get_by_role("button", name="Purge …").click()
    asked = dialog(page)
    expect(asked).to_contain_text("All 20 waiting messages are removed for good")
    button = asked.get_by_role("button", name="Purge", exact=True)
    expect(button).to_be_disabled()
    asked.get_by_label(re.compile("^Type")).fill("ful")
    expect(button).to_be_disabled()
    asked.get_by_role("button", name="Cancel").click()
    assert connection.admin.destination(destination="full")["depth"] == 20
    page.get_by_role("button", name="Purge …").click()
    dialog(page).get_by_label(re.compile("^Type")).fill("full")
    confirm(page, "Purge")
    told(page, "20 messages removed from full.")
    expect(page.get_by_text("Nothing waits here.")).to_be_visible()


def test_a_paused_queue_says_so_and_goes_on_when_resumed(page: Page, connection: sync.Connection) -> None:
    connection.queue("held").send(b"later")
    go(page, "destinations/held")
    page.get_by_role("button", name="Pause …").click()
    expect(dialog(page)).to_contain_text("Nothing is delivered from it until it is resumed")
    confirm(page, "Pause")
    expect(page.locator(".head .chip", has_text="paused")).to_be_visible()
    with connection.queue("held").consume() as consumer:
        assert consumer.receive(timeout=0.2) is None
        page.get_by_role("button", name="Resume …").click()
        confirm(page, "Resume")
        message = consumer.receive(timeout=30)
        assert message is not None
        message.ack()
    expect(page.locator(".head .chip", has_text="paused")).to_have_count(0)


def test_deleting_takes_the_queue_off_the_list(page: Page, connection: sync.Connection) -> None:
    connection.queue("doomed").send(b"x")
    go(page, "destinations/doomed")
    page.get_by_role("button", name="Delete …").click()
    dialog(page).get_by_label(re.compile("^Type")).fill("doomed")
    confirm(page, "Delete")
    told(page, "doomed is deleted, with 1 message.")
    heading(page, "Destinations")
    expect(row(page, "Destinations", "doomed")).to_have_count(0)


def test_dead_messages_are_redriven_after_a_dry_run(page: Page, connection: sync.Connection) -> None:
    queue = connection.queue("returns")
    queue.send_many([b"one", b"two", b"three"])
    with queue.consume() as consumer:
        for _ in range(3):
            message = consumer.receive(timeout=30)
            assert message is not None
            message.reject()
    go(page, "dead")
    found = row(page, "Dead messages by reason", "returns")
    expect(found).to_contain_text("3")
    found.get_by_role("button", name="Redrive …").click()
    expect(dialog(page)).to_contain_text("This was a dry run")
    expect(dialog(page).locator("tr", has_text="would go to")).to_contain_text("returns")
    assert connection.admin.destination(destination="returns")["depth"] == 0, "a dry run moves nothing"
    confirm(page, "Redrive")
    told(page, "3 messages redriven.")
    expect(found).to_have_count(0)
    assert connection.admin.destination(destination="returns")["depth"] == 3


def test_a_schedule_is_seen_and_cancelled(page: Page, connection: sync.Connection) -> None:
    connection.queue("reminders").send(b"wake up", cron="0 9 * * 1-5")
    go(page, "schedules")
    found = row(page, "Schedules", "reminders")
    expect(found).to_contain_text("0 9 * * 1-5")
    found.get_by_role("button", name="Cancel …").click()
    confirm(page, "Cancel the schedule")
    told(page, "The schedule is cancelled.")
    expect(found).to_have_count(0)


def test_a_live_update_of_the_router_is_seen_happening(page: Page, server: Server) -> None:
    has_standby(server, "router")
    box = page.locator("svg.topology [data-name=router]")
    before = server.pids("router")[0]
    expect(box).to_have_attribute("data-pid", str(before))
    page.evaluate("window.unchanged = true")
    server.update("router")
    after = server.pids("router")[0]
    assert after != before
    expect(box).to_have_attribute("data-pid", str(after))
    expect(page.locator(".changes")).to_contain_text(f"process {after}")
    expect(row(page, "Updates", "router").first).to_contain_text("done")
    assert page.evaluate("window.unchanged"), "nothing was loaded again"


def test_a_replacement_can_be_ordered_from_the_drawing(page: Page, server: Server) -> None:
    has_standby(server, "dispatcher")
    before = server.pids("dispatcher")[0]
    box = page.locator("svg.topology [data-name=dispatcher]")
    box.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Replace it live …").click()
    expect(dialog(page)).to_contain_text(f"A successor of process {before} loads first")
    confirm(page, "Replace it")
    told(page, re.compile(r"dispatcher: done, pause \d"))
    expect(box).not_to_have_attribute("data-pid", str(before))


def test_a_killed_console_is_noticed_and_comes_back_by_itself(server: Server, look: Look) -> None:
    page = look(server.console_url, forgives="ERR_|Failed to load resource|net::")
    expect(page.locator("[data-line=live]").first).to_be_attached()
    go(page, "destinations")
    heading(page, "Destinations")
    before = server.kill("console", number=signal.SIGKILL)
    expect(page.get_by_role("alert").filter(has_text="The connection to the server is lost")).to_be_visible()
    expect(page.locator(".frame")).to_have_class(re.compile("stale"))
    expect(page.locator("[data-line=live]").first).to_be_attached()
    expect(page.get_by_role("alert").filter(has_text="is lost")).to_have_count(0)
    assert server.pids("console")[0] != before
    heading(page, "Destinations")


def test_a_connection_is_closed_and_its_client_comes_back(page: Page, server: Server) -> None:
    with sync.connect(server.url, type="cut-off", name="cut-off") as client:
        client.queue("cut").send(b"x")
        go(page, "connections")
        found = row(page, "Connections", "cut-off")
        expect(found).to_have_count(1)
        found.get_by_role("button").click()
        expect(dialog(page)).to_contain_text("is cut off")
        confirm(page, "Close it")
        told(page, "is closed.")
        client.queue("cut").send(b"y", timeout=60)
        expect(found).to_have_count(1)


def test_events_come_as_they_happen_and_are_filtered(page: Page, connection: sync.Connection) -> None:
    go(page, "events")
    heading(page, "Events")
    log = page.get_by_role("list", name=re.compile("^Events"))
    expect(log).to_be_visible()
    connection.admin.create(destination="made-now")
    expect(log.locator("li").filter(has_text="'made-now'").first).to_be_visible()
    page.get_by_label("Filter by text").fill("made-now")
    expect(log.locator("li").filter(has_not_text="made-now")).to_have_count(0)
    page.get_by_label("Level").select_option("error")
    expect(page.get_by_text("No events match.")).to_be_visible()


def test_charts_outlive_a_reload_and_have_a_cursor(page: Page) -> None:
    go(page, "charts")
    chart = page.locator("figure", has_text="Messages per second").first
    expect(chart.locator("path.line").first).to_have_attribute("d", re.compile("L"))
    page.reload()
    expect(chart.locator("path.line").first).to_have_attribute("d", re.compile("L"))
    chart.locator(".chart-area").focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.locator(".tip")).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    page.get_by_role("button", name="1 h", exact=True).click()
    expect(page.get_by_role("button", name="1 h", exact=True)).to_have_attribute("aria-pressed", "true")


def test_a_refusal_is_told_in_the_servers_sentence(server: Server, look: Look) -> None:
    page = look(server.console_url + "/#/destinations/nowhere", forgives="404|422")
    expect(page.get_by_role("alert").filter(has_text="There is no queue or topic 'nowhere'.").first).to_be_visible()
    go(page, "destinations/_DMQ")
    page.get_by_label("Selector").fill("colour = = 'green'")
    page.keyboard.press("Enter")
    expect(page.locator("main p.fault").first).to_contain_text(re.compile("selector", re.I))


def test_everything_can_be_done_from_the_keyboard(page: Page, connection: sync.Connection) -> None:
    connection.admin.create(destination="typed")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.get_by_role("link", name=re.compile("^Destinations")).focus()
    page.keyboard.press("Enter")
    heading(page, "Destinations")
    expect(page.locator("main")).to_be_focused()
    expect(page.get_by_role("searchbox")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("typed")
    expect(page.get_by_role("table", name="Destinations").locator("tbody tr")).to_have_count(1)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "typed":
            break
    page.keyboard.press("Enter")
    heading(page, "typed")
    expect(page.locator("main")).to_be_focused()
    button = page.get_by_role("button", name="Send test message …")
    expect(button).to_be_visible()
    for _ in range(20):
        page.keyboard.press("Tab")
        if button.evaluate("node => node === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_label("Body")).to_be_focused()
    page.keyboard.type("by hand")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(button).to_be_focused()
    expect(page.get_by_text("1 message stored in typed.")).to_be_visible()
    page.keyboard.press("Enter")
    dialog(page)
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_figures_that_change_leave_what_is_being_typed_alone(page: Page, connection: sync.Connection) -> None:
    connection.queue("busy").send(b"x")
    go(page, "destinations")
    field = page.get_by_role("searchbox")
    field.fill("busy")
    depth = row(page, "Destinations", "busy").locator("td").nth(2)
    expect(depth).to_have_text("1")
    field.focus()
    connection.queue("busy").send(b"y")
    expect(depth).to_have_text("2")
    expect(field).to_be_focused()
    expect(field).to_have_value("busy")


def test_a_phone_has_its_menu_and_needs_no_scrolling_sideways(server: Server, look: Look) -> None:
    page = look(server.console_url, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    expect(page.locator("[data-line=live]").first).to_be_attached()
    for view in ("topology", "connections"):
        page.get_by_role("button", name="Menu").click()
        page.locator(f"nav a[href='#/{view}']").click()
        expect(page.locator(".side")).to_be_hidden()
        expect(page.locator("main h1")).to_have_text(view.capitalize())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_light_and_dark_follow_the_system_until_somebody_switches(server: Server, look: Look) -> None:
    page = look(server.console_url, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    expect(page.locator("main h1")).to_be_visible()
    dark = page.evaluate(ground)
    assert max(int(part) for part in re.findall(r"\d+", dark)) < 80
    page.get_by_role("button", name="Switch between light and dark").click()
    light = page.evaluate(ground)
    assert min(int(part) for part in re.findall(r"\d+", light)) > 200
    page.reload()
    expect(page.locator("main h1")).to_be_visible()
    assert page.evaluate(ground) == light


def test_every_view_opens_and_fits_a_phone_and_all_of_it_is_light(server: Server, look: Look) -> None:
    page = look("about:blank", forgives="reached out to about:", viewport={"width": 1280, "height": 860})
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(len(answer.body())) if "/api/" not in answer.url else None)
    page.goto(server.console_url)
    for view in (*VIEWS, "destinations/hostile"):
        page.set_viewport_size({"width": 1280, "height": 860})
        go(page, view)
        expect(page.locator(f"nav a[href='#/{view.split('/')[0]}']")).to_have_attribute("aria-current", "page")
        expect(page.locator("main [aria-busy]")).to_have_count(0)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main .fault-card")).to_have_count(0)
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    assert 20_000 < sum(sizes) < 200_000, f"{sum(sizes):,} bytes"
