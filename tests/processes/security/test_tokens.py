"""Tokens at a real server: from a provider's URL and from the server itself, refused, rotated, expired and renewed."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

import fairlead
from fairlead import errors
from fairlead.client.aio import Connection
from fairlead.testing import Server
from tests.processes.tools import until

pytestmark = pytest.mark.processes

SECRET = b"a secret that only the provider and the server know!"


class Provider:
    """Serves a JWKS on loopback, and signs."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"rsa-1": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        self.broken = False
        self.asked = 0
        provider = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                body = b"sorry" if provider.broken else provider.jwks()
                self.send_response(500 if provider.broken else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.httpd.server_address[1]}/jwks"

    def jwks(self) -> bytes:
        names = {rsa.RSAPrivateKey: "RSAAlgorithm", ec.EllipticCurvePrivateKey: "ECAlgorithm"}
        found = []
        for kid, key in self.keys.items():
            name = next((made for kind, made in names.items() if isinstance(key, kind)), "OKPAlgorithm")
            found.append(getattr(jwt.algorithms, name).to_jwk(key.public_key(), as_dict=True) | {"kid": kid})
        return json.dumps({"keys": found}).encode()

    def token(self, kid: str = "rsa-1", algorithm: str = "RS256", for_s: float = 600, **claims: Any) -> str:
        said = {"iss": "https://id.example", "aud": "fairlead-test", "sub": "ann", "exp": time.time() + for_s}
        headers = {"kid": kid}
        return jwt.encode(said | claims, self.keys[kid], algorithm=algorithm, headers=headers)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.httpd.serve_forever, daemon=True)
    thread.start()
    yield made
    made.httpd.shutdown()
    made.httpd.server_close()
    thread.join()


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Server]:
    settings = {
        "tokens.keys": provider.url,
        "tokens.audience": "fairlead-test",
        "tokens.issuer": "https://id.example",
        "tokens.leeway_s": 0,
        "tunnel.enabled": False,
    }
    made = Server(managers=2, **settings)
    run("user", "token-key", "--data", str(made.data))
    with made:
        yield made


def run(*arguments: str, code: int = 0, text: str = "", environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-m", "fairlead", *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, env=os.environ | (environment or {})
    )
    assert done.returncode == code, done.stderr
    return done.stdout.strip() if code == 0 else done.stderr


def user_of(connection: Connection) -> str:
    link = connection._session.link
    assert link is not None
    return link.welcome.user


async def test_a_token_of_the_provider_opens_the_door_and_nothing_else_does(server: Server, provider: Provider) -> None:
    async with fairlead.connect(server.url, token=provider.token()) as connection:
        assert user_of(connection) == "ann"
    for options in ({}, {"user": "ann", "password": "x"}):
        with pytest.raises(errors.BadCredentials):
            async with fairlead.connect(server.url, **options):
                pass


async def test_every_refusal_sounds_alike_and_the_log_knows_more(server: Server, provider: Provider) -> None:
    wrong = {
        "expired": provider.token(sub="e1", for_s=-10),
        "not yet valid": provider.token(sub="e2", nbf=time.time() + 500),
        "audience": provider.token(sub="e3", aud="somebody else"),
        "issuer": provider.token(sub="e4", iss="https://evil.example"),
        "forged": provider.token(sub="e5")[:-8] + "AAAAAAAA",
        "not signed": jwt.encode({"sub": "e6", "exp": time.time() + 60}, None, algorithm="none"),
        "a secret": jwt.encode({"sub": "e7", "exp": time.time() + 60}, SECRET, algorithm="HS256"),
        "no token": "nonsense",
    }
    texts = set()
    for token in wrong.values():
        with pytest.raises(errors.BadCredentials) as refused:
            async with fairlead.connect(server.url, token=token):
                pass
        texts.add(refused.value.text)
    assert len(texts) == 1
    log = server.output()
    for word in ("ExpiredSignatureError", "ImmatureSignatureError", "InvalidAudienceError", "InvalidIssuerError"):
        assert word in log
    assert not any(token in log for token in wrong.values())
    with pytest.raises(errors.FairleadError, match="1 to 8192"):
        async with fairlead.connect(server.url, token="x" * 9000):
            pass


async def test_guessing_with_tokens_is_slowed_down(server: Server, provider: Provider) -> None:
    texts = []
    for _ in range(12):  # two managers, and each counts for itself
        with pytest.raises(errors.BadCredentials) as refused:
            async with fairlead.connect(server.url, token=provider.token(sub="guessed", aud="x")):
                pass
        texts.append(refused.value.text)
    assert "try again in" in texts[-1]
    async with fairlead.connect(server.url, token=provider.token()) as connection:
        assert user_of(connection) == "ann"


async def test_a_new_key_of_the_provider_is_found_when_it_is_needed(server: Server, provider: Provider) -> None:
    provider.keys |= {"ec-2": ec.generate_private_key(ec.SECP256R1()), "ed-3": ed25519.Ed25519PrivateKey.generate()}
    await asyncio.sleep(0)
    for kid, algorithm in (("ec-2", "ES256"), ("ed-3", "EdDSA"), ("rsa-1", "PS256")):

        async def is_in(kid: str = kid, algorithm: str = algorithm) -> bool:
            try:
                async with fairlead.connect(server.url, token=provider.token(kid, algorithm, sub=kid)) as connection:
                    return user_of(connection) == kid
            except errors.BadCredentials:  # keys were fetched a moment ago: not again for a few seconds
                return False

        deadline_s = time.monotonic() + 60
        while not await is_in():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(1)


async def test_what_is_known_stays_good_while_the_provider_fails(server: Server, provider: Provider) -> None:
    provider.broken = True
    try:
        asked = provider.asked
        server.ask("reload")
        await until(lambda: provider.asked >= asked + 2, 30)  # each manager has tried
        await until(lambda: "it answers with 500" in server.output(), 30)
        async with fairlead.connect(server.url, token=provider.token()) as connection:
            assert user_of(connection) == "ann"
        with pytest.raises(errors.BadCredentials):
            async with fairlead.connect(
                server.url, token=jwt.encode({"sub": "z"}, SECRET, algorithm="HS256", headers={"kid": "unknown"})
            ):
                pass
    finally:
        provider.broken = False


async def test_a_connection_is_renewed_under_load_and_nothing_is_lost(server: Server, provider: Provider) -> None:
    given: list[str] = []

    def fresh() -> str:
        given.append(provider.token(sub="renewing", for_s=3))
        return given[-1]

    events: list[str] = []
    async with (
        fairlead.connect(server.url, token=fresh) as connection,
        fairlead.connect(server.url, token=provider.token()) as other,
    ):
        connection.on_event(lambda event: events.append(event.name))
        async with connection.subscribe("load.in") as incoming, other.subscribe("load.out") as outgoing:
            await connection.respond("echo", lambda request: request.body)
            sent = 0
            deadline_s = time.monotonic() + 60
            while events.count("moved") < 2:
                assert time.monotonic() < deadline_s
                await other.publish("load.in", str(sent))
                await connection.publish("load.out", str(sent))
                assert (await other.request("echo", str(sent), timeout=30)).body == str(sent).encode()
                sent += 1
            numbers = [str(number).encode() for number in range(sent)]
            assert [(await incoming.next(30)).body for _ in range(sent)] == numbers
            assert [(await outgoing.next(30)).body for _ in range(sent)] == numbers
    assert set(events) <= {"moved", "closed"}
    assert len(given) >= 3


async def test_a_durable_consumer_goes_on_through_renewals(server: Server, provider: Provider) -> None:
    events: list[str] = []
    async with (
        fairlead.connect(server.url, token=lambda: provider.token(sub="durable", for_s=3)) as connection,
        fairlead.connect(server.url, token=provider.token(sub="durable")) as other,
    ):
        connection.on_event(lambda event: events.append(event.name))
        queue, theirs = connection.queue("renewed"), other.queue("renewed")
        got: list[bytes] = []
        sent = 0
        async with queue.consume() as consumer:
            deadline_s = time.monotonic() + 60
            while events.count("moved") < 2:
                assert time.monotonic() < deadline_s
                await theirs.send(str(sent))
                sent += 1
                delivery = await consumer.receive(30)
                assert delivery is not None
                got.append(delivery.body)
                await delivery.ack()
        assert got == [str(number).encode() for number in range(sent)]


async def test_a_fixed_token_ends_its_connection_with_a_clear_word(server: Server, provider: Provider) -> None:
    events: list[fairlead.Event] = []
    connection = await fairlead.connect(server.url, token=provider.token(sub="fixed", for_s=2))
    connection.on_event(events.append)
    await until(lambda: connection.closed, 30)
    lost = next(event.error for event in events if event.name == "lost")
    assert isinstance(lost, errors.TokenExpired)
    assert "moved" not in [event.name for event in events]
    await connection.close()


async def test_a_coroutine_gives_tokens_too_and_a_failing_one_is_told_to_the_caller(
    server: Server, provider: Provider
) -> None:
    async def fresh() -> str:
        await asyncio.sleep(0)
        return provider.token(sub="coro")

    async with fairlead.connect(server.url, token=fresh) as connection:
        assert user_of(connection) == "coro"

    def fails() -> str:
        raise RuntimeError("the provider is down")

    with pytest.raises(errors.ConnectionLost, match="the provider is down"):
        async with fairlead.connect(server.url, token=fails):
            pass


async def test_the_server_issues_tokens_of_its_own_and_commands_take_them_from_files(server: Server) -> None:
    data = str(server.data)
    server.ask("reload")
    token = run("user", "token", "carl", "--for", "10m", "--group", "ops", "--data", data)
    async with fairlead.connect(server.url, token=token) as connection:
        assert user_of(connection) == "carl"
    file = server.data / "carl.token"
    file.write_text(token + "\n")
    run("pub", "a.b", "c", "--server", server.url, "--token-file", str(file))
    run("pub", "a.b", "c", "--server", server.url, environment={"FAIRLEAD_TOKEN": token})
    assert "carl" not in run("pub", "a.b", "c", "--server", server.url, code=1)
    assert (server.data / "token-keys.json").stat().st_mode & 0o077 == 0
    for _ in range(2):  # both keys are new: what the old ones signed is worth nothing
        run("user", "token-key", "--data", data)
    server.ask("reload")

    async def is_out() -> bool:
        try:
            async with fairlead.connect(server.url, token=token):
                return False
        except errors.BadCredentials:
            return True

    deadline_s = time.monotonic() + 30
    while not await is_out():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.1)


def test_a_password_on_the_command_line_is_warned_of(server: Server) -> None:
    said = run("pub", "a", "b", "--server", server.url, "--user", "a", "--password", "p", code=1)
    assert "everybody on this host can see the password" in said
    url = server.url.replace("://", "://a:p@")
    assert "everybody on this host" in run("pub", "a", "b", "--server", url, code=1)
    quiet = run("pub", "a", "b", "--server", server.url, "--user", "a", "--password-file", "-", text="p\n", code=1)
    assert "everybody" not in quiet
