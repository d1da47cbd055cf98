from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.key import key_group
from fairlead.errors import KeyChanged
from fairlead.sealing import Keyring
from fairlead.testing import Server


def run(*arguments: str | Path, typed: str | None = None) -> Result:
    return CliRunner().invoke(key_group, [str(argument) for argument in arguments], input=typed)


def done(*arguments: str | Path, typed: str | None = None) -> str:
    result = run(*arguments, typed=typed)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def ax(tmp_path: Path) -> Path:
    done("new", tmp_path / "ax.keys", "--app", "AX")
    return tmp_path / "ax.keys"


@pytest.fixture
def az(tmp_path: Path) -> Path:
    done("new", tmp_path / "az.keys", "--app", "AZ")
    return tmp_path / "az.keys"


def test_a_new_key_is_in_a_file_that_only_its_owner_reads(ax: Path) -> None:
    assert stat.S_IMODE(ax.stat().st_mode) == 0o600
    again = json.loads(done("new", ax, "--app", "AX", "--json"))
    assert (again["ok"], again["app"]) == (True, "AX")
    first, second = Keyring.load(ax).pairs
    assert second.public.id.hex() == again["id"]
    assert second.public.endorsed_by(first.public)


def test_what_kind_of_key_has_to_be_said(tmp_path: Path) -> None:
    for arguments in ((), ("--app", "AX", "--shared", "x"), ("--app", "AX", "--stdin")):
        assert run("new", tmp_path / "ax.keys", *arguments).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_shared_key_is_carried_to_another_file(ax: Path, az: Path) -> None:
    done("new", ax, "--shared", "letters")
    secret = done("show", ax, "--secret", "letters")
    done("new", az, "--shared", "letters", "--stdin", typed=secret)
    assert Keyring.load(az).unseal(Keyring.load(ax).seal(b"x", under="letters")).body == b"x"
    twice = run("new", az, "--shared", "letters", "--stdin", typed=secret)
    assert (twice.exit_code, "already" in twice.output) == (1, True)
    for typed in ("", "c2hvcnQ=\n", "not base64\n"):
        assert run("new", az, "--shared", "letters", "--stdin", typed=typed).exit_code == 1
    assert len(Keyring.load(az).shared) == 1
    assert run("show", ax, "--secret", "other").exit_code == 1


def test_list_and_show_tell_no_secret(ax: Path, az: Path) -> None:
    done("new", ax, "--shared", "letters")
    done("pin", ax, "AZ", "--record", "-", typed=done("show", az))
    pair, shared = Keyring.load(ax).pairs[0], Keyring.load(ax).shared[0]
    secrets = [line.split('"')[1] for line in ax.read_text().splitlines() if line.startswith(("box", "sign", "key"))]
    assert len(secrets) == 3
    for shown in (done("list", ax), done("list", ax, "--json"), done("show", ax), repr(Keyring.load(ax).pairs)):
        assert not any(secret in shown for secret in secrets)
    assert all(word in done("list", ax) for word in ("pair", "AX", "shared", "letters", "pinned", "AZ", "by hand"))
    rows = json.loads(done("list", ax, "--json"))["keys"]
    assert [row["kind"] for row in rows] == ["pair", "shared", "pinned"]
    assert [row["id"] for row in rows[:2]] == [pair.public.id.hex(), shared.id.hex()]


def test_show_prints_the_newest_or_all(ax: Path) -> None:
    done("new", ax, "--app", "AX")
    done("new", ax, "--app", "AY")
    assert [json.loads(line)["app"] for line in done("show", ax).splitlines()] == ["AX", "AY"]
    assert len(done("show", ax, "--all").splitlines()) == 3
    assert json.loads(done("show", ax, "--app", "AY"))["app"] == "AY"
    assert run("show", ax, "--app", "AZ").exit_code == 1


def test_a_key_is_pinned_by_hand(ax: Path, az: Path) -> None:
    record = done("show", az)
    assert "not of AY" in run("pin", ax, "AY", "--record", record).output
    assert run("pin", ax, "AZ", "--record", "{").exit_code == 2
    assert run("pin", ax, "AZ", "--record", json.dumps({"app": "AZ"})).exit_code == 1
    assert run("pin", ax, "AZ", "--record", record, "--id", "x").exit_code == 2
    done("pin", ax, "AZ", "--record", record)
    done("pin", az, "AX", "--record", done("show", ax))
    sealed = Keyring.load(ax).seal(b"hello", to="AZ")
    assert Keyring.load(az).unseal(sealed).sender == "AX"
    done("new", az.with_name("new.keys"), "--app", "AZ")
    done("pin", ax, "AZ", "--record", done("show", az.with_name("new.keys")), "--only")
    assert len(Keyring.load(ax).pins) == 1


def test_without_pynacl_the_command_says_what_to_install(tmp_path: Path) -> None:
    script = "import sys; sys.modules['nacl'] = None; from fairlead import *; from fairlead.cli import main; main()"
    arguments = [sys.executable, "-c", script, "key", "new", str(tmp_path / "ax.keys"), "--app", "AX"]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "fairlead: sealed messages need PyNaCl: run `pip install 'fairlead[sealing]'`\n"


@pytest.fixture(scope="module")
def directory() -> Iterator[str]:
    with Server(managers=1, **{"directory.serve": "true"}) as server:
        yield f"fairlead+directory://127.0.0.1:{server.port}"


@pytest.mark.processes
@pytest.mark.requirement("DIR-80", state="half", note="published, pinned, changed, with a real directory; no message")
def test_keys_are_published_pinned_and_replaced_through_the_directory(ax: Path, az: Path, directory: str) -> None:
    import asyncio

    from fairlead.directory import open_directory

    async def learnt() -> Keyring:
        async with open_directory(directory) as client:
            found = await client.lookup_app("AZ")
        keys = Keyring.load(ax)
        keys.learn("AZ", found.keys)
        return keys

    where = ("--server", directory)
    assert "no key pair of AX" in run("publish", az, "AX", *where).output
    first = json.loads(done("show", az))["id"]
    assert first in done("publish", az, "AZ", *where)
    assert first in run("pin", ax, "AZ", *where).output
    assert run("pin", ax, "AZ", "--id", "00" * 16, *where).exit_code == 1
    done("pin", ax, "AZ", "--id", first, *where)
    done("new", az, "--app", "AZ")
    assert "Published 2 keys" in done("publish", az, "AZ", *where)
    assert asyncio.run(learnt()).pins.newest("AZ") == [Keyring.load(az).pairs[-1].public]

    done("new", az.with_name("thief.keys"), "--app", "AZ")
    done("publish", az.with_name("thief.keys"), "AZ", *where)
    with pytest.raises(KeyChanged):
        asyncio.run(learnt())
    done("publish", az, "AZ", "--only", *where)
    assert len(asyncio.run(learnt()).pins) == 2
