"""The blocks of docs/client.md run as they stand, one behind the other."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import fairlead
from tests.client.test_durable import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one of them writes a file

    async def main() -> None:
        server = Server()
        await server.start()
        try:
            async with asyncio.timeout(60), fairlead.connect(server.url, name="shop") as connection:
                names: dict[str, Any] = {"connection": connection, "fairlead": fairlead, "asyncio": asyncio}
                for block in BLOCKS[1:-2]:
                    code = compile(block, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                    result = eval(code, names)
                    if inspect.isawaitable(result):
                        await result
        finally:
            await server.stop()

    asyncio.run(main())
    for block in (BLOCKS[0], *BLOCKS[-2:]):  # the last one is run in tests/processes/durable/test_bulk.py
        compile(block, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
