"""`fairlead node` and `fairlead cluster init`: the files of a cluster, made and judged before anything runs."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli import main
from fairlead.cli.cluster import cluster_group
from fairlead.cli.node import node_group
from fairlead.cluster.configuration.edge.files import NodeFiles

INIT = ["cluster", "init", "--name", "x", "--voter", "c1", "--voter", "a1", "--voter", "a2", "--group", "a=a1,a2"]


def fairlead(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    assert fairlead(*INIT, str(tmp_path / "conf")).exit_code == 0
    return tmp_path / "conf"


def init(conf: Path, *more: str, name: str = "a1", kind: str = "mm", bus: str = "main=127.0.0.1:7404") -> Result:
    data = str(conf.parent / "data")
    return fairlead("node", "init", str(conf), "--name", name, "--kind", kind, "--data", data, "--bus", bus, *more)


@pytest.mark.parametrize("name", sorted(node_group.commands))
def test_every_node_command_has_help_and_an_example(name: str) -> None:
    shown = fairlead("node", name, "--help").output
    assert f"fairlead node {name}" in shown


@pytest.mark.parametrize("name", sorted(cluster_group.commands))
def test_every_cluster_command_has_help_and_an_example(name: str) -> None:
    shown = fairlead("cluster", name, "--help").output
    assert f"fairlead cluster {name}" in shown


def test_the_files_of_a_founding_node(conf: Path) -> None:
    result = init(conf, "--founding", "--seed", "main=127.0.0.1:7405")
    assert result.exit_code == 0, result.output
    assert "fairlead node mm --node" in result.output
    files = NodeFiles(conf / "node.toml")
    assert files.node.seeds == {"main": ["127.0.0.1:7405"]}
    assert files.read_notes().ballots.abstain == 0
    checked = fairlead("node", "check", "--node", str(conf / "node.toml"))
    assert checked.exit_code == 0
    assert files.essential in checked.output
    again = init(conf)
    assert again.exit_code == 2
    assert "there already" in again.output


def test_a_later_node_has_no_notes_of_votes(conf: Path) -> None:
    assert init(conf, name="c9", kind="cm").exit_code == 0
    assert NodeFiles(conf / "node.toml").read_notes().ballots.abstain == -1


def test_a_node_that_does_not_fit_leaves_no_file(conf: Path) -> None:
    for result in (
        init(conf, bus="second=127.0.0.1:1"),
        init(conf, bus="main"),
        init(conf, bus="main=10.0.0.1:7404"),
        init(conf, kind="cm"),
    ):
        assert result.exit_code == 2, result.output
        assert result.output.startswith("fairlead: ")
    assert not (conf / "node.toml").exists()


def test_with_a_secret_a_bus_may_leave_the_host(conf: Path) -> None:
    secret = conf / "secret"
    assert fairlead("node", "secret", str(secret)).exit_code == 0
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert init(conf, "--secret", str(secret), bus="main=10.0.0.1:7404").exit_code == 0


def test_a_node_of_another_kind_is_not_started(conf: Path) -> None:
    init(conf, "--founding")
    result = fairlead("node", "witness", "--node", str(conf / "node.toml"))
    assert result.exit_code == 2
    assert "fairlead node mm" in result.output


def test_files_that_are_missing_or_wrong_are_one_sentence_and_2(conf: Path, tmp_path: Path) -> None:
    result = fairlead("node", "mm", "--node", str(tmp_path / "none.toml"))
    assert result.exit_code == 2
    assert "there is no file" in result.output
    init(conf)
    with (conf / "cluster.toml").open("a") as file:
        file.write("min_copies = 3\n")
    result = fairlead("node", "check", "--node", str(conf / "node.toml"))
    assert result.exit_code == 2
    assert "but in settings.toml" in result.output


def test_settings_are_changed_offline_with_a_revision(conf: Path) -> None:
    file = str(conf / "settings.toml")
    result = fairlead("cluster", "set", "min_copies", "1", "--file", file)
    assert result.exit_code == 0, result.output
    assert "revision 2" in result.output
    assert fairlead("cluster", "set", "lease_s", "1", "--file", file).exit_code == 2
    assert "did you mean `min_copies`" in fairlead("cluster", "set", "min_copy", "1", "--file", file).output


def test_an_even_electorate_is_noted(tmp_path: Path) -> None:
    words = [*INIT[:-2], "--voter", "a3", "--group", "a=a1,a2", str(tmp_path / "conf")]
    assert "make them odd" in fairlead(*words).output
    assert fairlead(*words).exit_code == 2, "files that are there are not replaced"


def test_nobody_there_is_one_sentence(tmp_path: Path) -> None:
    for words in (["status"], ["move-primary", "a", "a1"], ["set", "min_copies", "1"], ["scrub"]):
        result = fairlead("cluster", *words, "--data", str(tmp_path))
        assert result.exit_code == 1
        assert result.output.startswith("fairlead: No server answers at")
    assert fairlead("cluster", "down", "--data", str(tmp_path)).exit_code == 2
    result = fairlead("cluster", "force-primary", "a", "a1", "--data", str(tmp_path))
    assert result.exit_code == 2
    assert "--accept-loss" in result.output


def test_the_script_of_the_containers_founds_a_cluster(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "packaging" / "container" / "found.sh"
    environment = os.environ | {
        "CONF": str(tmp_path / "conf"),
        "DATA": str(tmp_path / "data"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for _ in range(2):  # the second time changes nothing
        subprocess.run(["sh", str(script)], input=b"password\n", env=environment, check=True, capture_output=True)
    files = [NodeFiles(tmp_path / "conf" / name / "node.toml") for name in ("cm1", "cm2", "mm1", "mm2", "w1")]
    assert len({one.essential for one in files}) == len({one.secret for one in files}) == 1
    assert all(one.read_notes().ballots.abstain == 0 and "admin" in one.settings.users for one in files)
