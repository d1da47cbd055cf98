"""The files of a directory server: the same for all of them where it matters, and never another directory's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cluster.configuration.documents import changed_settings, parse_node, parse_settings
from fairlead.errors import ConfigError
from fairlead.runtime.config import load
from fairlead.runtime.directory_server.files import ServerFiles, above, read_peers, urls_of
from fairlead.runtime.directory_server.ports import free_pairs
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users, write

PEERS = "d1=127.0.0.1:7412,d2=127.0.0.1:7422,d3=127.0.0.1:7432"
CONFIG = load(environ={}, overrides={"directory.serve": True, "directory.lease_s": 5})


def test_all_servers_make_the_same_cluster_and_settings(tmp_path: Path) -> None:
    for name in ("d1", "d2", "d3"):
        assert not ServerFiles(tmp_path / name, read_peers(name, "", PEERS)).write(CONFIG)
    files = [tmp_path / name / part for name in ("d1", "d2", "d3") for part in ("member", "front")]
    for file in ("cluster.toml", "settings.toml"):
        assert len({(one / file).read_bytes() for one in files}) == 1
    settings = parse_settings((files[0] / "settings.toml").read_text())
    assert (settings.min_copies, settings.strict_copies) == (2, True)
    assert (settings.directory.serve, settings.directory.lease_s) == (True, 5)
    assert [group.members for group in settings.groups] == [["d1", "d2", "d3"]]


def test_only_members_vote_and_each_server_has_two_nodes(tmp_path: Path) -> None:
    ServerFiles(tmp_path, read_peers("d2", "", PEERS)).write(CONFIG)
    member, front = (parse_node((tmp_path / part / "node.toml").read_text()) for part in ("member", "front"))
    assert (member.name, member.kind, member.vote, member.buses) == ("d2", "mm", True, {"main": "127.0.0.1:7422"})
    assert (front.name, front.kind, front.vote, front.buses) == ("d2-cm", "cm", False, {"main": "127.0.0.1:7423"})
    assert member.seeds["main"] == ["127.0.0.1:7412", "127.0.0.1:7432"]
    assert front.seeds["main"][0] == "127.0.0.1:7422"


def test_a_second_start_keeps_what_was_agreed_and_says_what_is_not_in_force(tmp_path: Path) -> None:
    files = ServerFiles(tmp_path, read_peers("d1", "", PEERS))
    files.write(CONFIG)
    before = (tmp_path / "member" / "settings.toml").read_bytes()
    assert files.write(CONFIG) == []
    said = files.write(load(environ={}, overrides={"directory.serve": True, "directory.lease_s": 60}))
    assert len(said) == 1
    assert "cluster set" in said[0]
    assert (tmp_path / "member" / "settings.toml").read_bytes() == before


def test_a_data_directory_is_of_one_directory(tmp_path: Path) -> None:
    ServerFiles(tmp_path, read_peers("d1", "", PEERS)).write(CONFIG)
    with pytest.raises(ConfigError, match="other servers"):
        ServerFiles(tmp_path, read_peers("d1", "", PEERS + ",d4=127.0.0.1:7442")).write(CONFIG)


def test_who_lost_its_data_is_not_founded_again(tmp_path: Path) -> None:
    ServerFiles(tmp_path / "new", read_peers("d1", "", PEERS)).write(CONFIG)
    ServerFiles(tmp_path / "again", read_peers("d1", "", PEERS)).write(CONFIG, rejoin=True)
    assert (tmp_path / "new" / "member" / "data" / "configuration.json").exists()
    assert not (tmp_path / "again" / "member" / "data" / "configuration.json").exists()


def test_users_are_agreed_on_by_all_servers(tmp_path: Path) -> None:
    write(tmp_path / "users.toml", Users({"root": User(hash=hash_password("x"), admin=["_DIRECTORY"])}))
    config = load(environ={}, overrides={"directory.serve": True, "security.users": str(tmp_path / "users.toml")})
    ServerFiles(tmp_path / "d1", read_peers("d1", "", PEERS)).write(config)
    settings = parse_settings((tmp_path / "d1" / "front" / "settings.toml").read_text())
    assert "_DIRECTORY" in settings.users


def test_values_of_the_directory_change_online_and_those_of_one_server_do_not(tmp_path: Path) -> None:
    ServerFiles(tmp_path, read_peers("d1", "", PEERS)).write(CONFIG)
    settings = parse_settings((tmp_path / "front" / "settings.toml").read_text())
    assert changed_settings(settings, {"directory.lease_s": 9}).directory.lease_s == 9
    with pytest.raises(ConfigError, match=r"node\.toml"):
        changed_settings(settings, {"directory.name": "A"})


@pytest.mark.parametrize(
    ("name", "bus", "peers", "word"),
    [
        ("", "", PEERS, "--name"),
        ("d9", "", PEERS, "d9"),
        ("d1", "127.0.0.1:1", PEERS, "--bus"),
        ("d1", "", "d1=127.0.0.1:7412", "between 2 and"),
        ("d1", "", "d1,d2=127.0.0.1:7412", "NAME=HOST:PORT"),
        ("d1", "", "d1=127.0.0.1:1,d1=127.0.0.1:2", "twice"),
        ("d1", "", "d1=127.0.0.1:7412,d2=127.0.0.1:0", "port"),
        ("d1", "", "d1=127.0.0.1:7412,d2=127.0.0.1:65535", "port"),
    ],
)
def test_what_is_wrong_with_the_peers_is_said(name: str, bus: str, peers: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_peers(name, bus, peers)


def test_addresses() -> None:
    assert read_peers("d1", "127.0.0.1:5", "d2=127.0.0.1:7").addresses["d1"] == "127.0.0.1:5"
    assert above("[::1]:7412") == "[::1]:7413"
    assert urls_of({"d2": "h2:7402", "d1": "h1:7402"}) == "fairlead+directory://h1:7402,h2:7402"
    pairs = free_pairs(3)
    assert len({*pairs, *(port + 1 for port in pairs)}) == 6
