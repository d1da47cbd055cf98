"""The flows `fairlead bench` measures: each starts its processes, lets them go together and gathers what they saw."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

CELLS = 64


class Flow(NamedTuple):
    """One row of the table."""

    name: str
    rate: float
    unit: str
    delays: dict[str, float]
    lost: int
    out_of_order: int


def run(url: str, topic: str, plans: list[dict[str, Any]], timeout_s: float) -> list[dict[str, Any]]:
    """Start a process per plan, one after the other; when all are ready, let them go."""
    with tempfile.NamedTemporaryFile() as board, contextlib.ExitStack() as stack:
        board.write(bytes(8 * CELLS))
        board.flush()
        processes = []
        for plan in plans:
            full = {"url": url, "topic": topic, "board": board.name, **plan}
            process = subprocess.Popen(
                [sys.executable, "-m", "fairlead.bench.roles", json.dumps(full)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            if process.stdout.readline().strip() != "READY":
                raise RuntimeError(f"a {plan['role']} process could not start; is there a server at {url}?")
            processes.append(process)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("GO\n")
            process.stdin.flush()
        reports = []
        for process in processes:
            output, _ = process.communicate(timeout=timeout_s)
            if not output.strip():
                raise RuntimeError("a process of the measurement ended early")
            reports.append(json.loads(output.splitlines()[-1]))
        return reports


def broadcast(url: str, seconds: float, size: int, subscribers: int) -> Flow:
    plans: list[dict[str, Any]] = [{"role": "subscribe", "cell": cell} for cell in range(subscribers)]
    plans.append(
        {"role": "publish", "size": size, "seconds": seconds, "ahead": 16_384 // subscribers, "receivers": subscribers}
    )
    *received, published = run(url, f"bench.broadcast.{subscribers}.{size}", plans, seconds + 60)
    total = sum(r["received"] for r in received)
    elapsed_s = (max(r["end_ns"] for r in received) - published["begin_ns"]) / 1e9
    lost = sum(published["sent"] - r["received"] for r in received)
    name = f"broadcast 1 to {subscribers}, {size} B"
    return Flow(name, total / elapsed_s, "deliveries/s", {}, lost, sum(r["out_of_order"] for r in received))


def latency(url: str, seconds: float, size: int, rate: int) -> Flow:
    plans: list[dict[str, Any]] = [
        {"role": "subscribe", "cell": 0, "timed": True},
        {"role": "publish_at_rate", "size": size, "seconds": seconds, "rate": rate},
    ]
    received, published = run(url, f"bench.latency.{rate}", plans, seconds + 60)
    achieved = published["sent"] / seconds
    lost = published["sent"] - received["received"]
    name = f"one way at {rate:,}/s, {size} B"
    return Flow(name, achieved, "messages/s", received["delays"], lost, received["out_of_order"])


def requests(url: str, seconds: float, size: int, outstanding: int) -> Flow:
    plans: list[dict[str, Any]] = [
        {"role": "respond"},
        {"role": "request", "size": size, "seconds": seconds, "outstanding": outstanding},
    ]
    _, asked = run(url, f"bench.request.{outstanding}", plans, seconds + 60)
    elapsed_s = (asked["end_ns"] - asked["begin_ns"]) / 1e9
    return Flow(
        f"request, {outstanding} outstanding, {size} B", asked["sent"] / elapsed_s, "requests/s", asked["delays"], 0, 0
    )
