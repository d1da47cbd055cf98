"""Copies of a running server, and what the tools say about its journal while it writes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError
from fairlead.testing import Server
from tests.processes.tools import until

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0


def shell(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "fairlead", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


async def drained(connection: Any, name: str) -> list[int]:
    found = []
    async with connection.queue(name).consume(prefetch=1000) as consumer:
        while (message := await consumer.receive(timeout=1.0)) is not None:
            found.append(int(message.properties["n"]))
            await message.ack()
    return found


@pytest.mark.requirement("CLU-114", state="half", note="a copy of a store under load, and its check beside the writer")
async def test_a_backup_under_load_has_everything_confirmed_before_it_began(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"messages.segment_bytes": 1 << 20, "messages.checkpoint_bytes": 2 << 20}
    copy, data = tmp_path / "copy", tmp_path / "data"
    with Server(managers=1, **settings) as server:
        async with fairlead.connect(server.url) as connection:
            queue, taken = connection.queue("loaded", create=True), connection.queue("taken", create=True)
            await taken.send_many([b"x"] * 500, properties={"n": 0})
            async with taken.consume() as consumer:
                for _ in range(500):
                    message = await consumer.receive(timeout=PATIENCE_S)
                    assert message is not None
                    await message.ack(confirm=True)
            large = bytes(range(256)) * 8192  # 2 MiB
            await connection.queue("film", create=True).send(large)
            confirmed: list[int] = []
            stop = asyncio.Event()

            async def load() -> None:
                number = 0
                while not stop.is_set():
                    receipts = [queue.send(b"y" * 2000, properties={"n": number + i}) for i in range(20)]
                    await asyncio.gather(*receipts)
                    confirmed.extend(range(number, number + 20))
                    number += 20

            loading = asyncio.create_task(load())
            await until(lambda: len(confirmed) > 1500, PATIENCE_S)
            before = len(confirmed)
            await asyncio.to_thread(shell, "backup", str(copy), "--server", server.url)
            checked = await asyncio.to_thread(shell, "journal", "check", str(server.data))
            assert "damage" not in checked.lower() or "no damage" in checked.lower() or "0 damage" in checked.lower()
            dumped = await asyncio.to_thread(
                shell, "journal", "dump", str(server.data), "--kind", "STORE", "--limit", "20", "--json"
            )
            assert len([json.loads(line) for line in dumped.splitlines()]) == 20
            await until(lambda: len(confirmed) > before + 200, PATIENCE_S)  # it went on, undisturbed
            stop.set()
            await loading
            with pytest.raises(FairleadError):
                await connection.admin.backup(target=str(copy))  # what is there is not overwritten
            with pytest.raises(FairleadError):
                await connection.admin.backup(target="relative")
    await asyncio.to_thread(shell, "restore", str(copy), "--data", str(data))
    await asyncio.to_thread(shell, "journal", "check", str(data))
    with Server(managers=1, data=data) as restored:
        async with fairlead.connect(restored.url) as connection:
            found = await drained(connection, "loaded")
            assert found == list(range(len(found)))
            assert before <= len(found)
            assert await drained(connection, "taken") == []
            async with connection.queue("film").consume() as consumer:
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                assert await message.read() == large
                await message.ack(confirm=True)


def test_a_copy_that_was_changed_is_not_put_in_place(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Server(managers=1) as server:
        shell("send", "q", "kept", "--count", "50", "--server", server.url)
        shell("backup", str(copy), "--data", str(server.data))
    segment = next(copy.rglob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(content)
    shell("restore", str(copy), "--data", str(tmp_path / "data"), code=2)
    assert not (tmp_path / "data" / "mm-0" / "journal" / segment.name).exists()
