"""The examples of docs/tracing.md run as they stand."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.testing import Server

pytestmark = pytest.mark.processes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tracing.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    with Server(managers=1) as server:
        exec(compile(first.replace("fairlead://localhost", server.url), str(PAGE), "exec"), names)
        assert "['send orders', " in capsys.readouterr().out
        found = {span.name for span in names["spans"].get_finished_spans()}
        assert found == {"send orders", "send invoices", "ack orders", "process orders"}
        for text in others:
            exec(compile(text, str(PAGE), "exec"), names)

        async def run() -> None:
            async with fairlead.connect(server.url, tracing=names["provider"]) as connection:
                for name in ("watch", "hand_on", "tell"):
                    await asyncio.wait_for(names[name](connection), 60)

        asyncio.run(run())
    said = capsys.readouterr().out
    assert "b'hello'" in said
    assert "stored orders" in said
