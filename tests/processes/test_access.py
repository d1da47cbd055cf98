"""Who may do what: users, rules, TLS, and the protection of what is local (section 4.13 of docs/spec/server.md)."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead import errors
from fairlead.testing import Server
from tests.processes.tools import RawDial, at_rest, reported
from tests.protocol.second_client import IDENTITY, PUBLISH, Client, ServerError

pytestmark = pytest.mark.processes


class Guarded(NamedTuple):
    """A server with users and a certificate, and the context of a client that trusts it."""

    server: Server
    trusting: ssl.SSLContext

    @property
    def tls_url(self) -> str:
        return f"fairleads://localhost:{self.server.port}"


def fairlead_command(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments], input=text, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def add_user(data: Path, name: str, *rights: str) -> None:
    fairlead_command(
        "user", "add", name, "--password-stdin", "--data", str(data), *rights, text=f"{name}-secret\n"
    )  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded")
    add_user(data, "alice")
    add_user(data, "dora")  # whose password is guessed: the pause after too many wrong ones is hers alone
    add_user(data, "bob", "--publish", "public.>", "--subscribe", "public.*", "--serve", "public.serve")
    pem, trusting = certificate(data)
    settings = {"security.tls_certificate": str(pem), "security.tls_key": str(pem)}
    with Server(data=data, listen="127.0.0.1:0", **settings) as server:  # type: ignore[arg-type]
        yield Guarded(server, trusting)
        server.wait_until(at_rest)


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Key and certificate in one file, and a client's context that trusts it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    shown = made.public_bytes(serialization.Encoding.PEM)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem.write_bytes(key.private_bytes(*form) + shown)
    pem.chmod(0o600)
    return pem, ssl.create_default_context(cadata=shown.decode())


def alice(guarded: Guarded) -> fairlead.Connection:
    return fairlead.connect(guarded.server.url, name="a", user="alice", password="alice-secret")


def bob(guarded: Guarded) -> fairlead.Connection:
    return fairlead.connect(guarded.server.url, name="b", user="bob", password="bob-secret")


@pytest.mark.requirement("SRV-38", "SRV-124")
async def test_only_who_knows_a_password_gets_in(guarded: Guarded) -> None:
    for user, password in (("dora", "wrong"), ("nobody", "dora-secret"), ("", ""), ("dora", "")):
        with pytest.raises(errors.BadCredentials):
            await fairlead.connect(guarded.server.url, user=user, password=password)
    async with alice(guarded) as client:
        mine = client.uid, "alice"  # in the table a moment after the client was welcomed

        def is_shown(report: Any) -> bool:
            return mine in [(one["uid"], one["user"]) for one in report["connections"]]

        await reported(guarded.server, is_shown)


@pytest.mark.requirement("SRV-124", "SRV-43")
async def test_an_identity_outlives_router_and_dispatcher_and_cannot_be_forged(guarded: Guarded) -> None:
    async with alice(guarded) as one, bob(guarded) as other, one.subscribe("public.x") as inbox:
        uids = one.uid, other.uid
        for component in ("router", "dispatcher", None):
            await other.publish("public.x", b"hello", headers={"from": "alice"})
            message = await inbox.next(timeout=5)
            assert (message.user, message.sender, message.headers) == ("bob", other.uid, {"from": b"alice"})
            if component is not None:
                assert guarded.server.update(component)["ok"]
        forger = Client("127.0.0.1", guarded.server.port, user="bob", password="bob-secret")
        forger.send(PUBLISH, topic="public.x", flags=IDENTITY, headers=[(":from", b"alice")], peer=one.uid)
        message = await inbox.next(timeout=5)
        assert (message.user, message.sender) == ("bob", forger.uid)
        forger.close()
        assert (one.uid, other.uid) == uids


@pytest.mark.requirement("SRV-125")
async def test_the_rules_are_kept_and_a_refusal_changes_nothing_else(guarded: Guarded) -> None:
    async with alice(guarded) as everything, bob(guarded) as limited, everything.subscribe(">") as seen:
        events: list[fairlead.Event] = []
        limited.on_event(events.append)
        for pattern in ("private.x", ">", "public.>"):
            with pytest.raises(errors.NotAllowed):
                await limited.subscribe(pattern).start()
        for topic in ("private", "public.other"):
            with pytest.raises(errors.NotAllowed):
                await limited.respond(topic, lambda request: b"")
        with pytest.raises(errors.NotAllowed):
            await limited.request("private.ask", b"", timeout=5)
        await limited.publish("private.x", b"not allowed")
        await limited.publish("public.x", b"allowed")
        message = await seen.next(timeout=5)
        assert (message.topic, message.body) == ("public.x", b"allowed")
        async with limited.subscribe("public.*") as allowed:
            await everything.publish("public.y", b"seen")
            assert (await allowed.next(timeout=5)).body == b"seen"
        await limited.respond("public.serve", lambda request: request.user or "?")
        assert (await everything.request("public.serve", timeout=5)).body == b"alice"
        assert limited.connected
        assert "lost" not in [event.name for event in events]
    forbidden = Client("127.0.0.1", guarded.server.port, user="bob", password="bob-secret")
    forbidden.publish("private.x", b"")
    with pytest.raises(ServerError, match="not-allowed"):
        forbidden.next_message()
    forbidden.ping()
    forbidden.close()
    await reported(guarded.server, lambda report: report["stored"] == 0)


@pytest.mark.requirement("SRV-125")
async def test_a_changed_users_file_counts_after_a_reload(guarded: Guarded) -> None:
    with pytest.raises(errors.BadCredentials):
        await fairlead.connect(guarded.server.url, user="carol", password="carol-secret")
    add_user(guarded.server.data, "carol", "--publish", "public.>")
    assert guarded.server.ask("reload")["ok"]  # it would notice by itself, a little later

    async def is_in() -> bool:
        try:
            async with fairlead.connect(guarded.server.url, user="carol", password="carol-secret"):
                return True
        except errors.BadCredentials:
            return False

    async with asyncio.timeout(5):
        while not await is_in():
            await asyncio.sleep(0.05)


@pytest.mark.requirement("SRV-25")
async def test_tls_and_plain_on_one_port(guarded: Guarded, dial_raw: RawDial) -> None:
    url, trusting = guarded.tls_url, guarded.trusting
    async with (
        fairlead.connect(url, tls=trusting, user="alice", password="alice-secret") as safe,
        bob(guarded) as plain,
        safe.subscribe("public.>") as public,
    ):
        body = os.urandom(3_000_000)
        await plain.publish("public.big", body)
        assert (await public.next(timeout=10)).body == body
        await plain.respond("public.serve", lambda request: request.body[::-1])
        assert (await safe.request("public.serve", body, timeout=10)).body == body[::-1]
        for number in range(500):
            await plain.publish("public.n", str(number))
        assert [int((await public.next(timeout=5)).body) for _ in range(500)] == list(range(500))
        with pytest.raises(errors.ConnectionLost, match="certificate"):
            await fairlead.connect(url, user="alice", password="alice-secret")
        with pytest.raises(errors.BadCredentials):
            await fairlead.connect(url, tls=trusting, user="alice", password="wrong")
        broken = dial_raw(guarded.server)
        broken.say(b"\x16\x03\x01\x00\x05hello, this is no ClientHello")
        while broken.sock.recv(100):
            pass
        assert (await safe.request("public.serve", b"ab", timeout=5)).body == b"ba"


@pytest.mark.requirement("SRV-126", state="half", note="one account for all; another one is tried only as root")
def test_another_local_user_can_open_nothing(guarded: Guarded) -> None:
    data = guarded.server.data
    places = [data, data / "run", Path(guarded.server.status()["store"])]
    files = [path for place in places for path in place.iterdir() if path.name != "serve.out"]
    for path in [*places[1:], *files]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    if os.getuid() == 0:
        program = (
            "import os, socket, sys\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "for path in sys.argv[1:]:\n"
            "    for attempt in (lambda: open(path, 'rb'), lambda: socket.socket(socket.AF_UNIX).connect(path)):\n"
            "        try:\n"
            "            attempt()\n"
            "        except OSError:\n"
            "            continue\n"
            "        print(path)\n"
        )
        opened = subprocess.run(
            [sys.executable, "-I", "-W", "ignore", "-c", program, *map(str, files)],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert opened.stdout == ""


def test_the_network_needs_users_or_a_word(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="insecure"), Server(data=tmp_path, listen="0.0.0.0:0"):
        pass
