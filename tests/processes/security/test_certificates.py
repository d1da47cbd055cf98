"""Certificates of clients at real servers: who gets in with which, and what becomes of it when files change."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead import errors
from fairlead.client.aio import Connection
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.throttling import FREE
from fairlead.testing import Server
from tests.authority import Authority, Pair
from tests.processes.tools import until

pytestmark = pytest.mark.processes


class Place:
    """A server that asks for certificates, and those who sign them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.authority, self.stranger = Authority(folder), Authority(folder, "stranger")
        self.own = self.authority.sign("server", loopback=True)
        data = folder / "data"
        data.mkdir()
        entries = {
            "ann": users.User(hash=hash_password("right")),
            "bob": users.User(certificates=["legacy.example.org"]),
        }
        users.write(data / "users.toml", users.Users(entries))
        self.server = Server(
            data=data,
            managers=1,
            **{
                "security.tls_certificate": self.own.pem,
                "security.tls_key": str(self.own.key),
                "security.tls_client_ca": str(self.authority.ca),
                "security.tls_crl": str(self.authority.crl),
                "security.client_certificates": "ask",
                "tunnel.enabled": False,
                **settings,
            },
        )

    def connect(self, pair: Pair | None = None, **options: Any) -> AbstractAsyncContextManager[Connection]:
        shown = {"certificate": pair.certificate, "key": pair.key} if pair is not None else {}
        url = f"fairleads://localhost:{self.server.port}"
        return fairlead.connect(url, ca=self.authority.ca, **shown, **options)

    async def user_of(self, pair: Pair | None = None, **options: Any) -> str:
        async with self.connect(pair, **options) as connection:
            return welcomed(connection)


def welcomed(connection: Connection) -> str:
    link = connection._session.link
    assert link is not None
    return link.welcome.user


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("asking"), **{"security.certificate_groups": True})
    with made.server:
        yield made


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    settings = {"security.client_certificates": "require", "security.certificate_user": "san-uri"}
    made = Place(tmp_path_factory.mktemp("requiring"), **settings)
    with made.server:
        yield made


async def test_a_certificate_is_a_login_of_its_own_and_a_password_must_agree_with_it(place: Place) -> None:
    ann = place.authority.sign("ann", units=("traders",))
    assert await place.user_of(ann) == "ann"
    assert await place.user_of(ann, user="ann", password="right") == "ann"
    assert await place.user_of(user="ann", password="right") == "ann"
    for wrong in ({"user": "bob"}, {"user": "bob", "password": "right"}, {"user": "ann", "password": "wrong"}):
        with pytest.raises(errors.BadCredentials):
            await place.user_of(ann, **wrong)
    with pytest.raises(errors.BadCredentials, match="asks for"):
        await place.user_of()


async def test_the_users_file_says_for_whom_a_certificate_stands(place: Place) -> None:
    assert await place.user_of(place.authority.sign("legacy.example.org", file="legacy")) == "bob"


async def test_certificates_that_prove_nothing_are_refused_with_a_reason(place: Place) -> None:
    good = place.authority.sign("ann", file="good")
    revoked = place.authority.sign("revoked")
    place.authority.revoke(revoked)
    place.server.ask("reload")
    bad = {
        "unknown ca": place.stranger.sign("ann", file="strange"),
        "certificate expired": place.authority.sign("ann", file="old", days=-1),
        "certificate revoked": revoked,
        "not accepted": place.authority.sign("_registrar"),
        "Unknown user": place.authority.sign(("ann", "bob"), file="two"),
    }
    for reason, pair in bad.items():
        began_s = time.monotonic()
        with pytest.raises(errors.BadCredentials, match=reason):
            await place.user_of(pair)
        assert time.monotonic() - began_s < 9, "it is told at once, and not after many tries"
        assert await place.user_of(good) == "ann"
    log = place.server.output()
    assert "certificate has expired" in log
    assert "2 names of the kind cn" in log


async def test_an_open_connection_ends_when_its_certificate_is_revoked_and_others_stay(place: Place) -> None:
    lent, good = place.authority.sign("lent"), place.authority.sign("ann", file="stays")
    events: list[str] = []
    async with place.connect(good) as stays, place.connect(lent, reconnect=False) as goes:
        stays.on_event(lambda event: events.append(event.name))
        place.authority.revoke(lent)
        place.server.ask("reload")
        await until(lambda: goes.closed, 30)
        await stays.flush()
        assert events == []


async def test_a_renewed_certificate_of_the_server_is_shown_after_a_reload(place: Place) -> None:
    def shown() -> bytes:
        context = ssl.create_default_context(cafile=place.authority.ca)
        with (
            socket.create_connection(("127.0.0.1", place.server.port), 30) as line,
            context.wrap_socket(line, server_hostname="localhost") as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""

    before = shown()
    place.own.certificate.write_text("nonsense")
    place.server.ask("reload")
    await until(lambda: "Certificates were not read again" in place.server.output(), 30)
    assert shown() == before
    for file, kept in zip(
        place.authority.sign("server", file="renewed", loopback=True, days=10), place.own, strict=True
    ):
        shutil.copy(file, kept)
    place.server.ask("reload")
    await until(lambda: shown() != before, 30)
    place.server.wait_until(lambda status: any("expires on" in note for note in status["notes"]), 30)


async def test_a_client_shows_its_renewed_certificate_at_the_next_connection(place: Place) -> None:
    pair = place.authority.sign("ann", file="rolling")
    events: list[str] = []
    async with place.connect(pair) as connection:
        connection.on_event(lambda event: events.append(event.name))
        place.authority.sign("carl", file="rolling")
        place.server.kill("manager")
        await until(lambda: "reconnected" in events, 30)
        assert welcomed(connection) == "carl"


async def test_a_certificate_that_expires_takes_its_connection_with_it_unless_a_new_one_is_there(place: Place) -> None:
    short = place.authority.sign("ann", file="short", seconds=4)
    rolled = place.authority.sign("ann", file="rolled", seconds=4)
    events: list[fairlead.Event] = []
    async with place.connect(short, reconnect=False) as ends, place.connect(rolled) as moves:
        ends.on_event(events.append)
        names: list[str] = []
        moves.on_event(lambda event: names.append(event.name))
        place.authority.sign("ann", file="rolled")
        await until(lambda: "moved" in names and ends.closed, 30)
        assert names == ["moved"]
    assert any(isinstance(event.error, errors.CertificateExpired) for event in events if event.name == "lost")


def test_a_source_of_bad_certificates_has_to_wait(place: Place) -> None:
    context = ssl.create_default_context(cafile=place.authority.ca)
    context.load_cert_chain(*place.stranger.sign("mallory"))

    def attempt() -> str:
        """What comes of it: an alert, or nothing at all."""
        with socket.create_connection(("127.0.0.1", place.server.port), 30, ("127.9.9.9", 0)) as line:
            try:
                with context.wrap_socket(line, server_hostname="localhost") as secure:
                    secure.recv(1)
                return "closed"
            except ssl.SSLEOFError:
                return "closed"
            except ssl.SSLError as error:
                return error.reason or ""
            except OSError:
                return "closed"

    answers = [attempt() for _ in range(FREE + 2)]
    assert all("UNKNOWN_CA" in answer for answer in answers[: FREE + 1])
    assert answers[-1] == "closed"
    honest = ssl.create_default_context(cafile=place.authority.ca)
    with (
        socket.create_connection(("127.0.0.1", place.server.port), 30, ("127.9.9.8", 0)) as line,
        honest.wrap_socket(line, server_hostname="localhost"),
    ):
        pass  # nobody else waits


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_is_refused(place: Place, version: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_verify_locations(place.authority.ca)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with socket.create_connection(("127.0.0.1", place.server.port), 30) as line, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(line, server_hostname="localhost")


async def test_where_certificates_are_required_nothing_else_opens_the_door(strict: Place) -> None:
    robot = strict.authority.sign("whatever", uri=("spiffe://acme/robot",))
    assert await strict.user_of(robot) == "spiffe://acme/robot"
    with pytest.raises(errors.BadCredentials, match="client certificate"):
        await strict.user_of(user="ann", password="right")
    for options in ({}, {"user": "ann", "password": "right"}):
        with pytest.raises(errors.BadCredentials, match="client certificate"):
            async with fairlead.connect(strict.server.url, **options):
                pass
    with pytest.raises(errors.BadCredentials):
        await strict.user_of(strict.authority.sign("ann"))  # it has no name of the kind that counts


def test_a_command_shows_a_certificate(strict: Place) -> None:
    robot = strict.authority.sign("tool", uri=("tool",))
    command = [sys.executable, "-m", "fairlead", "pub", "a.b", "c", "--ca", str(strict.authority.ca)]
    command += ["--server", f"fairleads://localhost:{strict.server.port}"]
    shown = ["--certificate", robot.pem, "--certificate-key", str(robot.key)]
    assert subprocess.run([*command, *shown], capture_output=True, timeout=60).returncode == 0
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "client certificate" in refused.stderr


async def test_the_synchronous_client_takes_the_same_options(strict: Place) -> None:
    robot = strict.authority.sign("sync", uri=("sync",))

    def publish() -> bool:
        url = f"fairleads://localhost:{strict.server.port}"
        with fairlead.sync.connect(url, certificate=robot.pem, key=robot.key, ca=strict.authority.ca) as connection:
            connection.publish("a", b"b")
            connection.flush()
            return connection.connected

    assert await asyncio.to_thread(publish)
