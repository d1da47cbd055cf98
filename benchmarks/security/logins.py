"""What it costs to say who one is: logins a second by each way, and messages a second with and without TLS.

    python benchmarks/security/logins.py [--seconds 5] [--clients 4] [--managers 2] [--payload 256] [--json FILE]

One real server with a users file, certificates and tokens of all kinds. A login is a whole connection with
`fairlead.connect`, from the first byte to WELCOME and the goodbye, by `clients` tasks at a time in one process: it is
the client's cost as much as the server's. Passwords are measured twice: the slow hash of the first login, and what is
remembered of it. Messages go from one connection to another through the server, published in lots and counted where
they arrive. Each row is the median of three runs; rows of one kind are taken in turns, so that a slow minute of the
machine is nobody's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

import fairlead
from fairlead.runtime.version import VERSION
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.testing import Server
from tests.authority import Authority

RUNS = 3
LOT = 500
Options = Callable[[int], dict[str, Any]]


class Place:
    """A server that takes everything, and the options of each way in."""

    def __init__(self, folder: Path, managers: int) -> None:
        authority = Authority(folder)
        own, ann = authority.sign("server", loopback=True), authority.sign("ann")
        keys: dict[str, Any] = {
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }
        makers = {"RS256": "RSAAlgorithm", "ES256": "ECAlgorithm", "EdDSA": "OKPAlgorithm"}
        entries = [
            getattr(jwt.algorithms, makers[name]).to_jwk(key.public_key(), as_dict=True) | {"kid": name}
            for name, key in keys.items()
        ]
        (folder / "jwks.json").write_text(json.dumps({"keys": entries}))
        data = folder / "data"
        data.mkdir()
        users.write(data / "users.toml", users.Users({"ann": users.User(hash=hash_password("right"))}))
        self.server = Server(
            data=data,
            managers=managers,
            **{
                "security.tls_certificate": own.pem,
                "security.tls_key": str(own.key),
                "security.tls_client_ca": str(authority.ca),
                "security.client_certificates": "ask",
                "security.allow_anonymous": True,
                "tokens.keys": str(folder / "jwks.json"),
                "tokens.audience": "bench",
                "tunnel.enabled": False,
            },
        )
        claims = {"sub": "ann", "aud": "bench", "exp": time.time() + 86400}
        tokens = {name: jwt.encode(claims, key, algorithm=name, headers={"kid": name}) for name, key in keys.items()}
        trust = {"ca": authority.ca}
        shown = {"certificate": ann.certificate, "key": ann.key}
        password = {"user": "ann", "password": "right"}
        self.ways: dict[str, tuple[str, Options]] = {
            "nothing, plain": ("fairlead", lambda _: {}),
            "nothing, TLS": ("fairleads", lambda _: trust),
            "password, plain, remembered": ("fairlead", lambda _: password),
            "password, TLS, remembered": ("fairleads", lambda _: trust | password),
            "certificate": ("fairleads", lambda _: trust | shown),
            **{
                f"token {name}, TLS": ("fairleads", lambda _, token=token: trust | {"token": token})  # type: ignore[misc]
                for name, token in tokens.items()
            },
        }

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.server.port}"


async def logins(place: Place, way: str, seconds: float, clients: int) -> float:
    """A second."""
    scheme, options = place.ways[way]
    until_s, done = time.perf_counter() + seconds, 0

    async def again() -> None:
        nonlocal done
        while time.perf_counter() < until_s:
            async with fairlead.connect(place.url(scheme), **options(done)):
                done += 1

    began_s = time.perf_counter()
    await asyncio.gather(*(again() for _ in range(clients)))
    return done / (time.perf_counter() - began_s)


async def first_passwords(place: Place, seconds: float) -> float:
    """Logins a second that need the slow hash: after each the server forgets what it knew."""
    until_s, done, spent_s = time.perf_counter() + seconds, 0, 0.0
    while time.perf_counter() < until_s:
        place.server.ask("reload")
        began_s = time.perf_counter()
        async with fairlead.connect(place.url("fairlead"), user="ann", password="right"):
            spent_s += time.perf_counter() - began_s
            done += 1
    return done / spent_s


async def messages(place: Place, way: str, seconds: float, payload: int) -> float:
    """A second, from one connection to another."""
    scheme, options = place.ways[way]
    url, body = place.url(scheme), bytes(payload)
    async with (
        fairlead.connect(url, **options(0)) as sender,
        fairlead.connect(url, **options(1)) as receiver,
        receiver.subscribe("bench") as incoming,
    ):
        sent = got = 0
        until_s = time.perf_counter() + seconds

        async def publish() -> None:
            nonlocal sent
            while time.perf_counter() < until_s:
                await sender.publish_many("bench", [body] * LOT)
                sent += LOT
                while sent - got > 20 * LOT:
                    await asyncio.sleep(0.001)

        began_s = time.perf_counter()
        publishing = asyncio.create_task(publish())
        while not publishing.done() or got < sent:
            await incoming.next(30)
            got += 1
        return got / (time.perf_counter() - began_s)


async def measure(place: Place, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {"logins": {}, "messages": {}}
    for _ in range(RUNS):
        for way in place.ways:
            rate = await logins(place, way, arguments.seconds, arguments.clients)
            found["logins"].setdefault(way, []).append(rate)
        rate = await first_passwords(place, arguments.seconds)
        found["logins"].setdefault("password, plain, first time, one at a time", []).append(rate)
        for way in ("nothing, plain", "nothing, TLS", "certificate"):
            rate = await messages(place, way, arguments.seconds, arguments.payload)
            found["messages"].setdefault(way, []).append(rate)
    return {kind: {way: statistics.median(rates) for way, rates in rows.items()} for kind, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--clients", type=int, default=4, help="logins at a time")
    parser.add_argument("--managers", type=int, default=2)
    parser.add_argument("--payload", type=int, default=256, help="bytes of a message")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-logins-") as folder:
        place = Place(Path(folder), arguments.managers)
        with place.server:
            found = asyncio.run(measure(place, arguments))
    print(f"fairlead {VERSION}, Python {platform.python_version()}, {arguments.managers} managers")
    for kind, rows in found.items():
        print(f"\n| {kind} | a second |\n|---|---:|")
        for way, rate in rows.items():
            print(f"| {way} | {rate:,.0f} |")
    if arguments.json is not None:
        facts = {"version": VERSION, "python": platform.python_version(), **vars(arguments), **found}
        arguments.json.write_text(json.dumps(facts, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
