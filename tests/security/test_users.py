from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.security import passwords, users
from fairlead.security.passwords import hash_password, parse_hash, verify_password
from fairlead.security.quotas import Quota
from fairlead.security.users import Group, Lists, User, Users, read, write

CHEAP = "scrypt$16$8$1$AAAAAAAAAAAAAAAAAAAAAA==$" + "A" * 43 + "="


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


def refused(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        users.read(path)
    return str(caught.value)


def test_a_password_fits_its_hash_and_no_other() -> None:
    stored = hash_password("grüße")
    assert stored.startswith("scrypt$32768$8$1$")
    assert verify_password("grüße", stored)
    assert not verify_password("grüsse", stored)
    assert hash_password("grüße") != stored


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "plain",
        "md5$1$2$3$4$5",
        "scrypt$x$8$1$AAAA$AAAA",
        "scrypt$3$8$1$AAAA$" + "A" * 24,
        "scrypt$16$8$1$!$!",
        "scrypt$1073741824$8$1$AAAA$" + "A" * 24,
        "scrypt$16$8$1$AAAA$AAAA",
    ],
)
def test_what_is_no_usable_hash_is_refused(stored: str) -> None:
    with pytest.raises(ValueError):
        parse_hash(stored)


def test_verify_knows_names_and_passwords() -> None:
    everybody = Users({"bob": User(hash=hash_password("secret")), "eve": User()})
    assert everybody.verify("bob", "secret")
    assert not everybody.verify("bob", "Secret")
    assert not everybody.verify("eve", "")
    assert not everybody.verify("nobody", "secret")
    assert not everybody.verify("", "")


def test_an_unknown_user_costs_as_much_as_a_known_one() -> None:
    everybody = Users({"bob": User(hash=hash_password("secret"))})

    def took_s(name: str) -> float:
        begin = time.thread_time()
        everybody.verify(name, "wrong")
        return time.thread_time() - begin

    known = min(took_s("bob") for _ in range(3))
    unknown = min(took_s("nobody") for _ in range(3))
    assert unknown > known / 2
    assert parse_hash(passwords.DUMMY_HASH)[:3] == parse_hash(hash_password("x"))[:3]


names = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=16)
lists = st.none() | st.lists(st.sampled_from(["a", "a.>", "*.b", 'regex:"\\\\d"', "glob:[!x]*", "ü.?"]), max_size=3)


@settings(deadline=None)  # it waits for the disk
@given(
    st.dictionaries(
        names.filter(lambda name: name != "anonymous"),
        st.builds(User, hash=st.sampled_from(["", CHEAP]), publish=lists, subscribe=lists, serve=lists),
        max_size=4,
    )
)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, entries: dict[str, User]) -> None:
    path = tmp_path_factory.mktemp("users") / "users.toml"
    users.write(path, Users(entries))
    assert users.read(path).entries == entries


@pytest.mark.requirement("SRV-126", state="half", note="the users file")
def test_only_the_owner_can_open_the_file(path: Path) -> None:
    path.parent.chmod(0o755)
    before = os.umask(0)
    try:
        users.update(path, lambda current: current.with_user("bob", User(hash=CHEAP)))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        users.read(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users.write(path, Users({"bob": User(hash=CHEAP)}))

    def fail(descriptor: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk is full"):
        users.write(path, Users())
    assert list(users.read(path).entries) == ["bob"]
    assert list(path.parent.iterdir()) == [path]


def test_changes_at_the_same_time_are_all_kept(path: Path) -> None:
    def add(number: int) -> None:
        users.update(path, lambda current: current.with_user(f"user-{number}", User(hash=CHEAP)))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(users.read(path).entries) == 16


def test_a_change_that_fails_changes_nothing(path: Path) -> None:
    users.update(path, lambda current: current.with_user("bob", User()))

    with pytest.raises(ConfigError, match="user name"):
        users.update(path, lambda current: current.with_user("", User()))
    assert list(users.update(path, lambda current: current.without("nobody")).entries) == ["bob"]
    assert users.update(path, lambda current: current.without("bob")).entries == {}


@pytest.mark.parametrize("name", ["", " bob", "bob ", "b\x00b", "b\nb", "x" * 65, "ü" * 33])
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(ConfigError):
        users.check_name(name)


def test_a_broken_file_says_what_is_wrong_and_where(path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no users file"):
        users.read(path)
    assert "not valid TOML" in refused(path, "[users")
    assert "no section [user]" in refused(path, "[user.bob]\n")
    assert "[users.bob]" in refused(path, '[users.bob]\nhash = "x"\n')
    assert "passwort" in refused(path, '[users.bob]\npasswort = "x"\n')
    assert "[users.bob]" in refused(path, '[users.bob]\npublish = ["a..b"]\n')
    assert "[users.bob]" in refused(path, '[users.bob]\npublish = "a"\n')
    assert "cannot have a password" in refused(path, f'[users.anonymous]\nhash = "{CHEAP}"\n')
    with pytest.raises(ConfigError, match="cannot read"):
        users.read(path.parent)


def test_rules_come_from_the_lists() -> None:
    rules = Users({"bob": User(publish=["a.*"], subscribe=[])}).rules()
    assert rules.allows("bob", "publish", "a.b")
    assert not rules.allows("bob", "subscribe", "a.b")
    assert rules.allows("bob", "serve", "a.b")


def test_groups_tenants_denials_and_quotas_are_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    whole = Users(
        {
            "ann": User(
                hash=CHEAP,
                groups=["desk"],
                tenant="acme",
                publish=["a"],
                deny=Lists(send=["a.b"]),
                quota=Quota(connections=3),
            ),
            "bob": User(hash=CHEAP, certificates=["bob.example.org"]),
        },
        {"desk": Group(subscribe=[], deny=Lists(subscribe=["s.>"]))},
        {"acme": Quota(messages_per_s=10, storage_bytes=1 << 40)},
    )
    write(path, whole)
    found = read(path)
    assert (found.entries, found.groups, found.tenants) == (whole.entries, whole.groups, whole.tenants)
    assert "version = 2" in path.read_text()


def test_a_file_that_needs_nothing_new_is_one_older_servers_read(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    write(path, Users({"bob": User(hash=CHEAP, publish=["a"])}))
    assert "version" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 3\n", "version 3"),
        ("version = true\n", "reads up to 2"),
        ('[users.bob]\ngroups = ["none"]\n', r"no \[groups.none\]"),
        ('[users.bob]\ntenant = "none"\n', "tenant"),
        ("[tenants.Acme]\n", "small letters"),
        ("[tenants.acme]\nconnections = -1\n", "connections"),
        ('[groups.g.deny]\npublish = ["a.*b"]\n', "groups.g"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=said):
        read(path)
