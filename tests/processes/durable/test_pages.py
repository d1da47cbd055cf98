"""The examples of the pages for users run as they stand."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from fairlead.testing import Server

pytestmark = pytest.mark.processes

PLUGIN = "fairlead.testing.plugin"
DOCS = Path(__file__).resolve().parents[3] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_about_queues() -> None:
    """One after the other, as a reader would type them."""

    async def read() -> None:
        names: dict[str, Any] = {}
        for number, text in enumerate(examples("queues.md")):
            text = text.replace("fairlead://localhost", server.url)
            code: CodeType = compile(text, f"example {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                await asyncio.wait_for(eval(code, names), 30)
            else:
                exec(code, names)
        await names["connection"].close()

    with Server() as server:
        asyncio.run(read())


def test_the_page_about_testing(tmp_path: Path) -> None:
    """Its tests, in a project of their own, where the fixtures come from the installed plugin."""
    texts = examples("testing.md")
    settings = [text for text in texts if "def fairlead_settings" in text]
    (tmp_path / "conftest.py").write_text("\n".join(settings))
    tests = [text for text in texts if "def test_" in text]
    (tmp_path / "test_page.py").write_text("\n".join(tests))
    (alone,) = (text for text in texts if text not in settings and text not in tests)
    (tmp_path / "alone.py").write_text(alone)
    is_installed = any(one.value == PLUGIN for one in entry_points(group="pytest11"))
    named = [] if is_installed else ["-p", PLUGIN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *named, "-W", "error", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    subprocess.run([sys.executable, "-W", "error", str(tmp_path / "alone.py")], check=True, timeout=60)
