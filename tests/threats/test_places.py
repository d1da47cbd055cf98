"""Names and links that lead elsewhere: no word of a client becomes a path, nothing planted becomes the server's."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

import fairlead
from fairlead import errors
from fairlead.errors import ConfigError
from fairlead.journal.edge.backup import MANIFEST, restore
from fairlead.pipeline.registry import Entry
from fairlead.runtime.logbook import line
from fairlead.runtime.rundir import lock
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users, write
from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN

ELSEWHERE = (
    "../../outside",
    "/outside",
    "a/../../outside",
    "..",
    "./../outside",
    "%2e%2e%2foutside",
    "a\0b",
    "~root/x",
)


EMPTY = hashlib.sha256().hexdigest()


def files_below(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


@pytest.mark.processes
async def test_names_of_destinations_are_no_paths(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    await asyncio.to_thread(data.mkdir, parents=True)
    with Server(data=data, managers=1, **NEVER_FROZEN) as server:
        before = await asyncio.to_thread(files_below, data)
        async with fairlead.connect(server.url, name="walker") as client:
            for name in ELSEWHERE:
                try:
                    await client.queue(name, create=True).send(b"x", timeout=60)
                    await client.topic(f"{name}/t", create=True).send("x", timeout=60)
                    async with client.topic(f"{name}/t").subscribe(durable=name):
                        pass
                except errors.BadName:
                    assert set(name) & set("%\0~"), name
            await client.queue(ELSEWHERE[0]).send(os.urandom(5 << 18), timeout=60)  # so large that it has a file
        made = await asyncio.to_thread(files_below, data) - before
        assert {str(Path(one).parent) for one in made} <= {"mm-0/journal", "mm-0/large", "run", "log"}, made
        assert not [one for one in made if "outside" in one]
    assert not [one for one in await asyncio.to_thread(files_below, tmp_path) if not one.startswith("deep")]


@pytest.mark.processes
def test_where_passwords_need_tls_a_tunnel_over_plain_http_is_refused_too(tmp_path: Path) -> None:
    write(tmp_path / "users.toml", Users({"ann": User(hash=hash_password("right"))}))
    settings: dict[str, Any] = {"security.plain_passwords": "never"}
    with Server(data=tmp_path, managers=1, **settings, **NEVER_FROZEN) as server:
        for method, path in (("GET", "/"), ("POST", "/tunnel/fairlead"), ("GET", "/tunnel/../../etc/passwd")):
            answer = httpx.request(method, f"http://127.0.0.1:{server.port}{path}", timeout=60)
            assert answer.status_code == 403
            assert "https://" in answer.text
        assert not server.pids("tunnel-gateway")  # it has not even been started


@pytest.mark.parametrize("name", [*ELSEWHERE, "", "a" * 200, "a/b", ".hidden", "-x"])
def test_names_of_pipelines_stay_in_their_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        Entry(tmp_path / "registry", name, {})
    assert not list(tmp_path.rglob("*outside*"))


@pytest.mark.parametrize("name", ["../outside", "/outside", "journal/../../outside"])
def test_a_backup_cannot_write_beside_the_place_it_is_restored_to(tmp_path: Path, name: str) -> None:
    source = tmp_path / "copy"
    source.mkdir()
    (tmp_path / "outside").write_bytes(b"")
    (source / MANIFEST).write_text(json.dumps({"files": [{"name": name, "size": 0, "sha256": EMPTY}]}))
    with pytest.raises(ConfigError, match="no name of a file"):
        restore(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_what_is_restored_is_for_its_owner_only(tmp_path: Path) -> None:
    source = tmp_path / "copy"
    (source / "journal").mkdir(parents=True)
    (source / "journal" / "one").write_bytes(b"")
    (source / MANIFEST).write_text(json.dumps({"files": [{"name": "journal/one", "size": 0, "sha256": EMPTY}]}))
    mask = os.umask(0)
    try:
        restore(source, tmp_path / "target")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "target" / "journal" / "one").stat().st_mode) == 0o600


@pytest.mark.parametrize("planted", ["lock", "users.toml", "run", "log", "fairlead.toml"])
def test_what_others_planted_in_an_open_data_directory_is_refused(tmp_path: Path, planted: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("not to be touched")
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    (data / planted).symlink_to(precious)
    with pytest.raises(ConfigError, match="link"):
        lock(data)
    assert precious.read_text() == "not to be touched"


def test_a_link_of_the_owners_own_is_no_plant(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.toml").write_text("")
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "users.toml").symlink_to(tmp_path / "elsewhere.toml")
    os.close(lock(data))


def test_one_event_is_one_line_of_the_log_whatever_it_names() -> None:
    said = "x\n2026-01-31T12:00:00.000Z info     router: forged\r\x1b[2J\x9b\u2028\u202e"
    whole = line(0.0, "warning", "manager 0", said, {"topic": said})
    assert whole.endswith("\n")
    assert whole[:-1].isprintable()
