"""Operations through a client manager: to the primary, to a member as stale, or refused; each is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.bus.port import Peer, View
from fairlead.cluster.client_manager.directory_road import port_of
from fairlead.cluster.client_manager.serving import members_of
from fairlead.cluster.configuration.types import ClusterSettings, GroupSpec, directory_group
from fairlead.cluster.options import Options
from fairlead.directory.operations import ADMIN
from fairlead.runtime.settings import Directory
from fairlead.wire.durable import KIND_ANSWER
from tests.cluster.agent.world import FakeBus, Member, Site
from tests.directory.hosting.test_keeping import row

ON = Options(directory=Directory(serve=True))
ME = 7


class Backup:
    """A member that does not lead: what `Hosted` does with a question on the bus."""

    def __init__(self, site: Site, node: str, answers: dict[str, Any] | None) -> None:
        self.bus = FakeBus(site.net, node)
        self.asked: list[dict[str, Any]] = []
        self.answers = answers
        self.bus.listen(port_of("b"), self._on_message)

    def _on_message(self, sender: str, data: memoryview) -> None:
        question = msgspec.json.decode(data)
        self.asked.append(question["request"])
        if self.answers is not None:
            said = {"number": question["number"], **self.answers}
            self.bus.send(sender, port_of("b"), msgspec.json.encode(said))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.agent.directory_road.group = "b"
    made.bus.listen(port_of("b"), lambda _, data: made.agent.directory_road.from_member(data))
    made.lead("a")
    lead(made)
    made.client(ME, made.manager())
    made.settle()
    return made


def lead(site: Site) -> Member:
    member = site.lead("b")
    member.core.configure(ON)
    site.settle()
    return member


def test_an_operation_goes_to_the_group_that_keeps_the_directory(site: Site) -> None:
    put = site.ask(ME, "directory", op="put_broker", broker=row("A"), clusters=["one"], may=[ADMIN])
    assert "revision" in put
    assert [one["name"] for one in site.ask(ME, "directory", op="list_brokers")["brokers"]] == ["A"]
    assert site.agent.directory_road.facts()["open"] == 0
    assert not site.members["a"].core.directory.snapshot()["brokers"]


def test_a_cluster_without_a_directory_says_so(site: Site) -> None:
    site.agent.directory_road.group = ""
    assert site.ask(ME, "directory", op="list_brokers")["error"] == "no-directory"


def test_what_is_under_way_when_the_primary_is_lost_is_answered(site: Site) -> None:
    number = site.command(ME, "directory", op="list_brokers")
    site.kill("b")
    answer = site.answer(ME, number)
    assert answer["error"] == "no-directory"
    assert "ask again" in answer["text"]
    lead(site)
    assert "brokers" in site.ask(ME, "directory", op="list_brokers")


@pytest.mark.requirement("DIR-38", state="half", note="the agent alone; a set that is cut in tests/processes/directory")
def test_without_a_primary_reads_go_to_a_member_and_changes_nowhere(site: Site) -> None:
    site.kill("b")
    site.settle()
    backup = Backup(site, "b9", {"answer": {"brokers": [], "revision": 3, "stale": True}})
    site.agent.directory_road.members = ("b8", "b9")  # the first is not there any more
    answer = site.ask(ME, "directory", op="list_brokers")
    assert answer == {"brokers": [], "revision": 3, "stale": True}
    assert site.ask(ME, "directory", op="put_broker", broker=row("A"), may=[ADMIN])["error"] == "no-directory"
    assert site.ask(ME, "directory", op="nonsense")["error"] == "no-directory"
    assert [one["op"] for one in backup.asked] == ["list_brokers"]


def test_a_long_stale_answer_comes_in_several_frames(site: Site) -> None:
    site.kill("b")
    site.settle()
    apps = ["x" * 100] * 20_000
    Backup(site, "b9", {"answer": {"apps": apps, "stale": True}})
    site.agent.directory_road.members = ("b9",)
    site.command(ME, "directory", op="list_apps")
    pieces = [got.body for got in site.take(ME, KIND_ANSWER)]
    assert len(pieces) == 2
    assert msgspec.json.decode(b"".join(pieces))["apps"] == apps


def test_an_error_of_a_member_is_the_clients(site: Site) -> None:
    site.kill("b")
    site.settle()
    Backup(site, "b9", {"code": "bad-parameter", "text": "no"})
    site.agent.directory_road.members = ("b9",)
    assert site.ask(ME, "directory", op="lookup_app")["error"] == "bad-parameter"


def test_a_member_that_says_nothing_is_not_waited_for_long(site: Site) -> None:
    site.kill("b")
    site.settle()
    Backup(site, "b9", None)
    site.agent.directory_road.members = ("b9",)
    number = site.command(ME, "directory", op="list_brokers")
    site.wait(10.0)
    assert site.answer(ME, number)["error"] == "no-directory"
    assert site.agent.directory_road.facts()["open"] == 0


def test_strange_answers_of_members_change_nothing(site: Site) -> None:
    road = site.agent.directory_road
    for strange in (b"", b"{", b"[1]", b'{"number": "x"}', b'{"number": 999, "answer": {}}', b"\xff\xfe"):
        road.from_member(memoryview(strange))
    assert road.facts()["open"] == 0


def test_who_left_is_not_answered(site: Site) -> None:
    site.kill("b")
    site.settle()
    Backup(site, "b9", None)
    site.agent.directory_road.members = ("b9",)
    site.command(ME, "directory", op="list_brokers")
    site.gone(ME)
    assert site.agent.directory_road.facts()["open"] == 0


def test_a_client_cannot_give_itself_rights_by_what_it_sends_to_the_group(site: Site) -> None:
    """The manager in front overwrites `may`; here it is missing, as from one that vouches for nothing."""
    assert site.ask(ME, "directory", op="put_broker", broker=row("A"))["error"] == "not-allowed"


def test_members_are_asked_in_the_order_of_what_they_knew() -> None:
    def peer(name: str, rank: int, **facts: Any) -> Peer:
        return Peer(name, 1, rank, tag={"kind": "mm", "groups": {"b": facts}} if facts else {"kind": "cm"})

    peers = [
        peer("cm1", 0),
        peer("old", 1, role="backup", sync="unsynchronised"),
        peer("bad", 2, role="failed", sync="failed"),
        peer("new", 3, role="backup", sync="in-sync"),
        peer("led", 4, role="primary", sync="suspended"),
    ]
    view = View(1, {one.name: one for one in peers})
    assert members_of(view, "b") == ("new", "led", "old")
    assert members_of(view, "") == ()


def test_which_group_keeps_the_directory() -> None:
    groups = [GroupSpec(name="a"), GroupSpec(name="directory")]
    assert directory_group(ClusterSettings(groups=groups)) == ""
    assert directory_group(ClusterSettings(groups=groups, directory=Directory(serve=True))) == "directory"
    assert directory_group(ClusterSettings(groups=groups[:1], directory=Directory(serve=True))) == "a"
