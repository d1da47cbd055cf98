"""What rules, groups and tenants cost a whole server: throughput of transient messages, as ratios in one run.

    python benchmarks/flows/access.py [--messages 300000] [--size 64] [--rounds 3]

One publisher and one subscriber against one server; the cases take turns, several rounds of them, and the best of each
is compared with a server without a users file. Run it on a quiet machine. benchmarks/micro/access.py has the router's
share alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import fairlead
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.quotas import Quota
from fairlead.security.users import Group, Lists, User, Users
from fairlead.testing import Server

TOPICS = [f"prices.eur.{number}" for number in range(16)]
BATCH = 500


def cases() -> dict[str, Users | None]:
    """By name: the users file. Everybody sends as `u`."""
    hashed = hash_password("secret")
    many = [f"area{number}.>" for number in range(99)]
    narrow = {"publish": ["prices.>"], "subscribe": ["prices.>"]}
    tenant = {"u": User(hash=hashed, tenant="acme", **narrow)}  # type: ignore[arg-type]
    return {
        "no users file": None,
        "may do everything": Users({"u": User(hash=hashed)}),
        "narrow rules": Users({"u": User(hash=hashed, **narrow)}),  # type: ignore[arg-type]
        "100 patterns": Users({"u": User(hash=hashed, publish=[*many, "prices.>"], subscribe=[*many, "prices.>"])}),
        "group and denials": Users(
            {"u": User(hash=hashed, groups=["g"])},
            {"g": Group(publish=["prices.>"], deny=Lists(publish=["prices.secret.>"], subscribe=["prices.secret.>"]))},
        ),
        "tenant": Users(tenant, {}, {"acme": Quota()}),
        "tenant with a rate": Users(tenant, {}, {"acme": Quota(messages_per_s=100_000_000)}),
    }


async def flow(url: str, user: str, messages: int, size: int) -> float:
    """Messages a second from the first publish to the last message received."""
    login: dict[str, Any] = {"user": user, "password": "secret"} if user else {}
    async with (
        fairlead.connect(url, **login) as sender,
        fairlead.connect(url, **login) as receiver,
        receiver.subscribe("prices.>", buffer=messages) as inbox,
    ):
        bodies = [bytes(size)] * BATCH

        async def send() -> None:
            for number in range(messages // BATCH):
                await sender.publish_many(TOPICS[number % len(TOPICS)], bodies)

        begun_s = time.perf_counter()
        task = asyncio.create_task(send())
        for _ in range(messages // BATCH * BATCH):
            await inbox.next(timeout=120)
        await task
        return messages / (time.perf_counter() - begun_s)


def measure(entries: Users | None, messages: int, size: int) -> float:
    with tempfile.TemporaryDirectory(prefix="fairlead-access-") as folder:
        data = Path(folder)
        if entries is not None:
            users.write(data / "users.toml", entries)
        with Server(data=data, managers=1) as server:
            return asyncio.run(flow(server.url, "u" if entries is not None else "", messages, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in cases()}
    for _ in range(given.rounds):
        for name, entries in cases().items():
            found[name].append(measure(entries, given.messages, given.size))
    best = {name: max(rates) for name, rates in found.items()}
    base = best["no users file"]
    if given.json:
        print(json.dumps({name: {"per_s": round(rate), "ratio": round(rate / base, 3)} for name, rate in best.items()}))
        return
    for name, rate in best.items():
        print(f"{name:20} {rate:12,.0f} a second   {rate / base:5.3f}")


if __name__ == "__main__":
    main()
