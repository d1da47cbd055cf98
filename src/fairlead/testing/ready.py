"""Waiting for the line by which a process says that it is ready."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Final

START_S: Final = 60.0


def await_ready(fd: int, name: str, output: Callable[[], str]) -> str:
    """The first line it writes there, without its end; what it has printed is in the error if there is none."""
    until_s, text = time.monotonic() + START_S, b""
    while b"\n" not in text:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            raise RuntimeError(f"{name} was not ready after {START_S:g} s:\n{output()}")
        more = os.read(fd, 4096)
        if not more:
            raise RuntimeError(f"{name} ended before it was ready:\n{output()}")
        text += more
    return text.decode().partition("\n")[0]
