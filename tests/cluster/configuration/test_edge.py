"""A node's files on its disk, the talk about them, and questions between nodes."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.configuration.documents import changed_settings, parse_settings, to_toml
from fairlead.cluster.configuration.edge.admin_port import AdminPort, settings_handler
from fairlead.cluster.configuration.edge.door import Door
from fairlead.cluster.configuration.edge.files import NOTES, NodeFiles, read_secret, write_secret
from fairlead.cluster.configuration.edge.founding import found_node
from fairlead.cluster.configuration.edge.part import ConfigPart
from fairlead.cluster.configuration.edge.watching import tap_config
from fairlead.cluster.configuration.types import NodeConfig
from fairlead.errors import ConfigError
from fairlead.runtime.local_cluster import LocalCluster, Shape, layout
from fairlead.runtime.rundir import short_path
from tests.cluster.configuration.wire import Wire


class Nodes:
    """The configuration parts of a whole cluster in one process, on real files."""

    def __init__(self, directory: Path, **shape: Any) -> None:
        self.local = LocalCluster(directory)
        if not self.local.exists:
            self.local.found(Shape(**shape))
        self.wire = Wire()
        self.now_s = 0.0
        self.parts: dict[str, ConfigPart] = {}
        self.ports: dict[str, AdminPort] = {}
        self.log: list[str] = []
        self.adopted: list[tuple[str, int]] = []

    def start(self, *names: str) -> Nodes:
        for name in names or self.local.names():
            files = self.local.files(name)
            bus = self.wire.attach(name, files.node.kind)
            self.parts[name] = ConfigPart(
                bus, files, lambda level, text: self.log.append(text), self.now_s,
                on_settings=lambda settings, name=name: self.adopted.append((name, settings.revision)),  # type: ignore[misc]
            )  # fmt: skip
            self.ports[name] = AdminPort(bus, self.now_s)
            self.ports[name].handle("settings", settings_handler(self.parts[name]))
            self.ports[name].handle("status", lambda question, reply, name=name: {"kind": "mm", "me": name})  # type: ignore[misc]
        self.run(2.0)
        return self

    def stop(self, name: str) -> None:
        self.wire.detach(name)
        del self.parts[name], self.ports[name]

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.wire.settle(self.now_s)
            self.now_s += 0.05
            for name in list(self.parts):
                self.parts[name].turn(self.now_s)
                self.ports[name].turn(self.now_s)

    def change(self, name: str, **changes: Any) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        self.ports[name].ask({"do": "settings", "changes": changes, "nodes": [name]}, found.append)
        self.run(4.0)
        answer: dict[str, Any] = found[0]["nodes"][name]
        return answer

    def file(self, name: str) -> Path:
        return self.local.files(name).settings_path


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path / "cluster", cms=1, groups=2, backups=1).start()


# --- Files --------------------------------------------------------------------------------------------------------
def test_a_shape_becomes_nodes_and_groups() -> None:
    names, groups = layout(Shape(cms=1, groups=2, backups=1, shared=False, witnesses=1))
    assert names == {"cm1": "cm", "a1": "mm", "a2": "mm", "b1": "mm", "b2": "mm", "w1": "witness"}
    assert [group.members for group in groups] == [["a1", "a2"], ["b1", "b2"]]


@pytest.mark.parametrize("form", ["a", "b"])
@pytest.mark.parametrize("carrier", ["tcp", "udp", "local"])
def test_split_forms_are_founded_with_fitting_attachments(tmp_path: Path, form: Any, carrier: Any) -> None:
    local = LocalCluster(tmp_path)
    local.found(Shape(form=form, buses=2, carrier=carrier, shared=False))
    for name in local.names():
        files = local.files(name)  # which checks it
        assert len(files.node.buses) == (2 if (files.node.kind == "cm") == (form == "a") else 1)
    assert tap_config(local.files("a1")).role == "tap"


@pytest.mark.requirement("CLU-188")
def test_the_essential_file_is_the_same_everywhere(tmp_path: Path) -> None:
    local = LocalCluster(tmp_path)
    local.found(Shape(witnesses=2))
    assert len({local.files(name).essential for name in local.names()}) == 1
    assert len(local.files("cm1").cluster.voters) % 2 == 1


def test_a_node_is_founded_once(tmp_path: Path) -> None:
    local = LocalCluster(tmp_path)
    local.found(Shape(cms=1, groups=1))
    with pytest.raises(ConfigError, match="founded once"):
        found_node(local.files("mm1"))
    with pytest.raises(ConfigError, match="already"):
        local.found(Shape())


def test_paths_are_meant_from_the_file_and_found_again_by_the_data_directory(tmp_path: Path) -> None:
    local = LocalCluster(tmp_path)
    local.found(Shape(cms=1, groups=1))
    files = local.files("mm1")
    assert files.data == tmp_path / "mm1" / "data"
    assert NodeFiles.recall(files.data).node == files.node
    with pytest.raises(ConfigError, match="no node was ever started"):
        NodeFiles.recall(tmp_path)


def test_a_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    node = NodeConfig(name="a", kind="mm", data="d", buses={}, secret_file=str(path))
    assert len(read_secret(node) or b"") == 64
    with pytest.raises(ConfigError, match="there already"):
        write_secret(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(node)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="fewer than 16"):
        read_secret(node)


# --- The talk -----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-192")
def test_a_change_is_in_every_file_and_the_one_before_is_kept(nodes: Nodes) -> None:
    before = nodes.file("mm2").read_bytes()
    answer = nodes.change("cm1", min_copies=1)
    assert answer == {"ok": True, "revision": 2, "missing": [], "node": "cm1"}
    assert len({nodes.file(name).read_bytes() for name in nodes.parts}) == 1
    assert parse_settings(nodes.file("mm1").read_text()).min_copies == 1
    assert nodes.file("mm2").with_name("settings.toml.previous").read_bytes() == before
    assert sorted(nodes.adopted) == [("cm1", 2), ("mm1", 2), ("mm2", 2)]


def test_a_refused_change_is_told_and_changes_nothing(nodes: Nodes) -> None:
    answer = nodes.change("mm1", lease_s=1.0)
    assert not answer["ok"]
    assert "cluster.toml" in answer["error"]
    assert not nodes.adopted


@pytest.mark.requirement("CLU-190")
def test_a_file_edited_under_a_running_node_is_kept_aside_and_logged(nodes: Nodes) -> None:
    nodes.file("mm1").write_text("# mine\nmin_copies = 5\n" + nodes.file("mm1").read_text())
    edited = nodes.file("mm1").read_bytes()
    nodes.change("cm1", removal_s=7.0)
    assert nodes.file("mm1").with_name("settings.toml.edited-1").read_bytes() == edited
    assert any("edited-1" in line for line in nodes.log)
    assert len({nodes.file(name).read_bytes() for name in nodes.parts}) == 1
    assert parse_settings(nodes.file("mm1").read_text()).min_copies == 2


@pytest.mark.requirement("CLU-191")
def test_a_node_that_was_away_rewrites_its_file(nodes: Nodes) -> None:
    nodes.stop("mm2")
    nodes.change("cm1", removal_s=7.0)
    path = nodes.file("mm2")
    path.write_text(to_toml(changed_settings(parse_settings(path.read_text()), {"removal_s": 1.0})))
    edited = path.read_bytes()
    nodes.start("mm2")
    assert nodes.parts["mm2"].settings.removal_s == 7.0
    assert path.read_bytes() == nodes.file("mm1").read_bytes()
    assert path.with_name("settings.toml.edited-1").read_bytes() == edited, "what was edited meanwhile is not lost"


@pytest.mark.requirement("CLU-192")
def test_killed_in_the_middle_of_writing_all_files_are_whole_and_equal_afterwards(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "cluster", cms=1, groups=1).start()
    nodes.change("cm1", removal_s=7.0)
    # mm1 was killed before the new file took the old one's place, mm2 before its notes were written
    nodes.file("mm1").with_name(".settings.toml.new").write_bytes(b"half")
    nodes.file("mm1").write_bytes(nodes.file("mm1").with_name("settings.toml.previous").read_bytes())
    again = Nodes(tmp_path / "cluster").start()
    assert {part.state for part in again.parts.values()} == {"checked"}
    assert len({again.file(name).read_bytes() for name in again.parts}) == 1
    assert again.parts["mm1"].settings.removal_s == 7.0


@pytest.mark.requirement("CLU-189")
def test_one_byte_in_the_essential_file_refuses_the_node(nodes: Nodes) -> None:
    nodes.stop("mm2")
    path = nodes.local.directory / "mm2" / "cluster.toml"
    path.write_bytes(path.read_bytes() + b"\n")
    nodes.start("mm2")
    assert nodes.parts["mm2"].state == "refused"
    assert "cm1 and mm1" in nodes.parts["mm2"].reason
    assert nodes.parts["mm1"].state == nodes.parts["cm1"].state == "checked"


def test_notes_that_cannot_be_read_are_lost_notes(nodes: Nodes) -> None:
    nodes.stop("mm2")
    (nodes.local.data("mm2") / NOTES).write_bytes(b"\x00garbage")
    nodes.start("mm2")
    assert nodes.parts["mm2"].state == "checked"
    assert json.loads((nodes.local.data("mm2") / NOTES).read_bytes())["ballots"]["abstain"] == 2


# --- Questions ----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-182")
def test_all_nodes_answer_once_and_their_number_is_told(nodes: Nodes) -> None:
    found: list[dict[str, Any]] = []
    nodes.ports["mm1"].ask({"do": "status"}, found.append)
    nodes.wire.settle()
    assert found[0]["expected"] == 3
    assert found[0]["missing"] == []
    assert {name: answer["me"] for name, answer in found[0]["nodes"].items()} == {
        name: name for name in ("cm1", "mm1", "mm2")
    }


@pytest.mark.requirement("CLU-183")
def test_a_node_that_leaves_before_it_answers_is_named_at_once(nodes: Nodes) -> None:
    found: list[dict[str, Any]] = []
    nodes.ports["mm1"].ask({"do": "status"}, found.append)
    nodes.stop("mm2")
    nodes.wire.settle()
    assert found[0]["missing"] == ["mm2"]
    assert sorted(found[0]["nodes"]) == ["cm1", "mm1"]


def test_a_node_that_says_nothing_is_waited_for_only_so_long(nodes: Nodes) -> None:
    found: list[dict[str, Any]] = []
    nodes.ports["mm2"].handle("status", lambda question, reply: None)
    nodes.ports["mm1"].ask({"do": "status", "patience_s": 1.0}, found.append)
    nodes.run(1.2)
    assert found[0]["missing"] == ["mm2"]


@pytest.mark.parametrize("question", [{"do": "nonsense"}, {"do": None}, {"do": "broken"}])
def test_a_question_nobody_understands_is_an_error_in_words(nodes: Nodes, question: dict[str, Any]) -> None:
    def broken(question: dict[str, Any], reply: Any) -> dict[str, Any]:
        return {"x": question["missing"]}

    nodes.ports["mm1"].handle("broken", broken)
    found: list[dict[str, Any]] = []
    nodes.ports["mm1"].answer_here(question, found.append)
    assert not found[0]["ok"]
    assert "no command" in found[0]["error"] or "make no sense" in found[0]["error"]


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff\xfe", b'{"do":', b"[" * 100_000, b'{"answer":"x"}', b"{}"])
def test_hostile_bytes_on_the_port_have_no_effect(nodes: Nodes, data: bytes) -> None:
    for port in ("admin", "config"):
        nodes.wire.buses["cm1"].send("mm1", port, data)
    nodes.wire.settle()
    assert nodes.parts["mm1"].state == "checked"


@pytest.mark.requirement("CLU-185")
def test_the_local_socket_asks_all_nodes_and_this_one(nodes: Nodes, tmp_path: Path) -> None:
    door = Door(tmp_path / "run", nodes.ports["mm1"])
    try:
        assert (
            ask(door, nodes, {"command": "admin", "name": "cluster", "args": {"do": "status"}})["result"]["expected"]
            == 3
        )
        assert ask(door, nodes, {"command": "here", "args": {"do": "status"}})["me"] == "mm1"
        assert "client manager" in ask(door, nodes, {"command": "update"})["error"]
        assert "Not a question" in ask(door, nodes, {"command": "here", "args": 3})["error"]
        with connect(tmp_path / "run") as sock:
            sock.sendall(b"x" * 70_000)
            for _ in range(5):
                door.turn()
            assert sock.recv(10) == b"", "who sends without end is cut off"
    finally:
        door.close()


def connect(run: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    with short_path(run / "admin.sock") as path:
        sock.connect(path)
    return sock


def ask(door: Door, nodes: Nodes, question: dict[str, Any]) -> dict[str, Any]:
    with connect(Path(str(door._path.parent))) as sock:
        sock.sendall(json.dumps(question).encode() + b"\n")
        for _ in range(5):
            door.turn()
            nodes.wire.settle()
        answer: dict[str, Any] = json.loads(sock.recv(65536))
        return answer
