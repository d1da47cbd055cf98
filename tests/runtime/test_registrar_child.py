"""What a registrar is told by the settings of its server, and what it remembers for its successor."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Start
from fairlead.runtime.registrar_child import (
    Note,
    advertised,
    lasting_identity,
    read_note,
    read_password,
    row_of,
    settings_of,
)
from fairlead.runtime.rundir import write_note
from fairlead.security import inside

DIRECTORY = "fairlead://127.0.0.1:7402"


def start(folder: Path, *, urls: Any = None, **settings: Any) -> Start:
    config = configuring.load(None, {}, {"server.data": str(folder), **settings})
    store = folder / "store"
    store.mkdir(exist_ok=True)
    found = ["fairlead://127.0.0.1:41000"] if urls is None else urls
    return Start("registrar", 0, config, store, 1, 5, 1, "active", {}, found)


def test_the_port_is_the_one_it_really_listens_on(tmp_path: Path) -> None:
    ip, port, _ = advertised(start(tmp_path, **{"server.listen": ["127.0.0.1:0"]}), DIRECTORY)
    assert (ip, port) == ("127.0.0.1", 41000)


@pytest.mark.requirement("DIR-9", state="half", note="an IPv6 address as it is told to the directory")
def test_ipv6_and_names(tmp_path: Path) -> None:
    six = start(tmp_path, urls=["fairlead://[::1]:41001"], **{"server.listen": ["[::1]:0"]})
    assert advertised(six, DIRECTORY)[:2] == ("::1", 41001)
    named = start(tmp_path, **{"directory.advertise": "localhost:9000"})
    assert advertised(named, DIRECTORY)[1:] == (9000, "localhost")
    assert advertised(named, DIRECTORY)[0] in ("127.0.0.1", "::1")


def test_on_all_interfaces_it_is_the_address_towards_the_directory(tmp_path: Path) -> None:
    for everywhere in ("0.0.0.0:0", "*:0", "[::]:0"):
        found = advertised(start(tmp_path, **{"server.listen": [everywhere]}), DIRECTORY)
        assert found[:2] == ("127.0.0.1", 41000)


def test_a_broker_without_tcp_is_refused(tmp_path: Path) -> None:
    local = start(tmp_path, urls=["fairlead+unix:///x.sock"], **{"server.listen": ["unix:/x.sock"]})
    with pytest.raises(ConfigError, match="listens on TCP"):
        advertised(local, DIRECTORY)
    with pytest.raises(ConfigError, match="HOST:PORT"):
        advertised(start(tmp_path, **{"directory.advertise": "unix:/x"}), DIRECTORY)


def test_tls_is_on_the_same_port(tmp_path: Path) -> None:
    settings = {"security.tls_certificate": "c.pem", "security.tls_key": "k.pem", "directory.name": "A"}
    row = row_of(start(tmp_path, **settings), tmp_path, "me", DIRECTORY)
    assert (row.name, row.port, row.secure_port, row.identity, row.store) == ("A", 41000, 41000, "me", "me")
    assert row_of(start(tmp_path), tmp_path, "me", DIRECTORY).secure_port == 0


def test_at_home_it_is_the_registrar_and_elsewhere_the_user_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("secret\n")
    (tmp_path / "word").chmod(0o600)
    login = {"directory.user": "broker-a", "directory.password_file": str(tmp_path / "word"), "directory.name": "A"}
    home = settings_of(start(tmp_path, **login, **{"directory.serve": True}), tmp_path, is_first=True)
    assert (home.directory, home.directory_user) == (home.own, inside.REGISTRAR)
    assert home.directory_password == home.password
    away = settings_of(
        start(tmp_path, **login, **{"directory.servers": "fairlead+directory://d1,d2"}), tmp_path, is_first=False
    )
    assert (away.directory_user, away.directory_password) == ("broker-a", "secret")
    assert (home.broker_user, home.broker_password) == ("broker-a", "secret")
    assert (home.is_first, away.is_first) == (True, False)
    assert home.row.identity == away.row.identity  # of the data directory


def test_a_password_file_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "word"
    with pytest.raises(ConfigError, match="cannot read"):
        read_password(str(file))
    file.write_text("secret")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_password(str(file))


def test_the_identity_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "identity"
    assert lasting_identity(file) == lasting_identity(file)
    assert stat.S_ISREG(file.stat().st_mode)


def test_a_note_is_for_the_next_registrar_of_the_same_server(tmp_path: Path) -> None:
    path = tmp_path / "note"
    assert read_note(path, "s1") == Note("s1")
    write_note(path, Note("s1", registered=True, state="draining"))
    assert read_note(path, "s1") == Note("s1", registered=True, state="draining")
    assert read_note(path, "s2") == Note("s2")
    path.write_text("{nonsense")
    assert read_note(path, "s1") == Note("s1")
