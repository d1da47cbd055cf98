"""The examples of docs/tunnel.md run as they stand, and its tables are complete."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from fairlead.testing import Server
from fairlead.tunnel import TunnelOptions, TunnelServer, refusals
from fairlead.tunnel.packets import Kind
from tests.tunnel.gateway_parts import running

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "tunnel.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.split("## How it is built")[0], re.S)


def run(example: str, names: dict[str, Any], url: str = "") -> None:
    exec(compile(example.replace("http://localhost:7400", url), "docs/tunnel.md", "exec"), names)


@pytest.mark.requirement("TUN-6", state="half", note="the first example with one URL")
def test_the_examples_of_clients_and_gateways_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    first, options, gateway, _ = EXAMPLES
    with Server(managers=1) as server:
        run(first, names, f"http://127.0.0.1:{server.port}")
        run(options, names, f"http://127.0.0.1:{server.port}")
    assert "prices.eur.usd" in capsys.readouterr().out
    run(gateway, names)
    assert callable(names["app"])


@pytest.mark.requirement("TUN-4", state="half", note="a few bytes")
def test_the_examples_of_streams_run() -> None:
    names: dict[str, Any] = {}
    run(EXAMPLES[3], names)

    async def work() -> None:
        async with running("uvicorn", servers=("echo",)) as gateway, TunnelServer("echo") as server:
            await server.listen(f"127.0.0.1:{gateway.link_port}", timeout_s=20)
            for client in (names["client"], lambda url: asyncio.to_thread(names["client_in_a_thread"], url)):
                echoing = asyncio.ensure_future(names["echo"](server))
                assert await client(f"{gateway.url}/echo") == b"hello"
                await echoing

    asyncio.run(work())


def test_every_option_error_and_type_is_in_the_tables() -> None:
    rows = re.findall(r"^\|(.*)\|$", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(TunnelOptions._fields) - {"rules"} <= named
    errors = {name for name in refusals.__all__ if name[0].isupper()}
    assert errors - {"TunnelRefused", "VersionRefused"} <= named
    types = dict(re.findall(r"^\| (\d+) \| (\w+) \|", PAGE, re.M))
    assert {str(kind.value): kind.name for kind in Kind if kind < Kind.LINK_INIT} == types
