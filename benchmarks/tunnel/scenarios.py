"""The three measurements. Publisher and subscriber (requester and responder) are processes of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Coroutine
from typing import Any

from benchmarks.tunnel.clients import PEERS
from benchmarks.tunnel.systems import System
from tests.tunnel.middlebox.wire import Wire

AHEAD_MAX = 4096
BATCH = 64
READY_S = 60.0
DRAIN_S = 15.0
LEAVE_S = 10.0
LOST_QUIET_S = 5.0
FORK = multiprocessing.get_context("spawn")


def run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop

        uvloop.install()
    except ImportError:
        pass
    asyncio.run(work)


def cpu_s() -> float:
    return time.process_time()


def end(*processes: Any) -> None:
    """What was measured is told already; some libraries cannot be left politely."""
    for process in processes:
        process.join(LEAVE_S)
        if process.is_alive():
            process.kill()
            process.join()


# --- Rate: one publishes, one subscribes, the publisher never more than 4,096 messages ahead --------------------------


def rate(system: System, size: int, seconds: float) -> dict[str, Any]:
    """Messages a second, counted where they arrive, from the first send to the last receipt."""
    results, received = FORK.Queue(), FORK.Value("Q", 0)
    ready, stop = FORK.Event(), FORK.Event()
    url = system.url(system.port)
    server_cpu_s = system.broker.cpu_seconds()
    subscriber = FORK.Process(target=run_subscriber, args=(system.peer, url, received, ready, stop, results))
    subscriber.start()
    if not ready.wait(READY_S):
        raise RuntimeError(f"{system.name}: the subscriber did not get ready")
    publisher = FORK.Process(target=run_publisher, args=(system.peer, url, size, seconds, received, results))
    publisher.start()
    told = results.get(timeout=seconds + READY_S)
    limit_s = time.monotonic() + DRAIN_S
    while received.value < told["sent"] and time.monotonic() < limit_s:
        time.sleep(0.01)
    stop.set()
    took = results.get(timeout=READY_S)
    end(publisher, subscriber)
    return {
        "sent": told["sent"],
        "received": took["count"],
        "wrong": took["wrong"],
        "per_s": round(took["count"] / (took["last_s"] - told["first_s"])),
        "cpu_s": {
            "publisher": round(told["cpu_s"], 2),
            "subscriber": round(took["cpu_s"], 2),
            "server": round(system.broker.cpu_seconds() - server_cpu_s, 2),
        },
    }


def run_publisher(kind: str, url: str, size: int, seconds: float, received: Any, results: Any) -> None:
    async def work() -> None:
        peer = PEERS[kind](url)
        await peer.open()
        fill = b"x" * (size - 8)
        number, first_s, spent_s = 0, time.monotonic(), cpu_s()
        while time.monotonic() - first_s < seconds:
            if number - received.value > AHEAD_MAX - BATCH:
                await asyncio.sleep(0.0005)
                continue
            await peer.publish("bench", [(number + at).to_bytes(8, "big") + fill for at in range(BATCH)])
            number += BATCH
        # Some libraries still hold messages: the connection is closed only when they have arrived.
        limit_s = time.monotonic() + DRAIN_S
        while received.value < number and time.monotonic() < limit_s:
            await asyncio.sleep(0.01)
        results.put({"sent": number, "first_s": first_s, "cpu_s": cpu_s() - spent_s})
        await peer.close()

    run(work())


def run_subscriber(kind: str, url: str, received: Any, ready: Any, stop: Any, results: Any) -> None:
    async def work() -> None:
        peer = PEERS[kind](url)
        await peer.open()
        count = wrong = 0
        last_s = spent_s = 0.0

        def on_message(body: bytes) -> None:
            nonlocal count, wrong, last_s
            if int.from_bytes(body[:8], "big") != count:
                wrong += 1
            count += 1
            received.value = count
            last_s = time.monotonic()

        await peer.subscribe("bench", on_message)
        spent_s = cpu_s()
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.02)
        results.put({"count": count, "wrong": wrong, "last_s": last_s, "cpu_s": cpu_s() - spent_s})
        await peer.close()

    run(work())


# --- Round trip: one request outstanding ------------------------------------------------------------------------------


def round_trip(system: System, size: int, seconds: float) -> dict[str, Any]:
    results, ready, stop = FORK.Queue(), FORK.Event(), FORK.Event()
    url = system.url(system.port)
    responder = FORK.Process(target=run_responder, args=(system.peer, url, ready, stop))
    responder.start()
    if not ready.wait(READY_S):
        raise RuntimeError(f"{system.name}: the responder did not get ready")
    requester = FORK.Process(target=run_requester, args=(system.peer, url, size, seconds, results))
    requester.start()
    times = sorted(results.get(timeout=seconds + READY_S))
    stop.set()
    end(requester, responder)
    return {
        "count": len(times),
        "p50_us": round(statistics.median(times) * 1e6),
        "p99_us": round(times[min(len(times) - 1, len(times) * 99 // 100)] * 1e6),
    }


def run_requester(kind: str, url: str, size: int, seconds: float, results: Any) -> None:
    async def work() -> None:
        peer = PEERS[kind](url)
        await peer.open()
        body = b"x" * size
        for _ in range(50):
            await peer.request("echo", body)
        times = []
        limit_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < limit_s:
            assert await peer.request("echo", body) == body
            times.append(time.monotonic() - began_s)
        results.put(times)
        await peer.close()

    run(work())


def run_responder(kind: str, url: str, ready: Any, stop: Any) -> None:
    async def work() -> None:
        peer = PEERS[kind](url)
        await peer.open()
        await peer.respond("echo")
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.05)
        await peer.close()

    run(work())


# --- Recovery: every TCP connection is reset in the middle of the numbers ---------------------------------------------


def recovery(system: System, count: int) -> dict[str, Any]:
    """Both connections are cut once when half of the messages have arrived; what was lost, what came twice?"""
    results, received = FORK.Queue(), FORK.Value("Q", 0)
    ready, stop = FORK.Event(), FORK.Event()
    with Wire(("127.0.0.1", system.port)) as wire:
        url = system.url(wire.address[1])
        subscriber = FORK.Process(target=run_counter, args=(system.peer, url, received, ready, stop, results))
        subscriber.start()
        if not ready.wait(READY_S):
            raise RuntimeError(f"{system.name}: the subscriber did not get ready")
        done = FORK.Event()
        publisher = FORK.Process(target=run_steady, args=(system.peer, url, count, done, stop))
        publisher.start()
        while received.value < count // 2:
            time.sleep(0.005)
        before_cut = wire.accepted
        wire.cut()
        done.wait(READY_S)
        before, since_s = -1, time.monotonic()
        while time.monotonic() - since_s < LOST_QUIET_S and received.value < count:
            if received.value != before:
                before, since_s = received.value, time.monotonic()
            time.sleep(0.05)
        stop.set()
        took = results.get(timeout=READY_S)
        end(publisher, subscriber)
        reconnects = wire.accepted - before_cut
    if reconnects < 2:
        raise RuntimeError(f"{system.name}: not both connections were made anew")
    lost, doubled = count - took["distinct"], took["total"] - took["distinct"]
    return {"sent": count, "lost": lost, "doubled": doubled, "reconnects": reconnects, **took}


def run_steady(kind: str, url: str, count: int, done: Any, stop: Any) -> None:
    async def work() -> None:
        peer = PEERS[kind](url)
        await peer.open()
        for number in range(0, count, 10):
            bodies = [(number + at).to_bytes(8, "big") + b"x" * 120 for at in range(10)]
            while True:
                try:
                    await peer.publish("bench", bodies)
                    break
                except Exception:  # the library says so: then it is tried again
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.005)  # at most 2,000 a second
        done.set()
        while not stop.is_set():
            await asyncio.sleep(0.05)
        await peer.close()

    run(work())


def run_counter(kind: str, url: str, received: Any, ready: Any, stop: Any, results: Any) -> None:
    async def work() -> None:
        peer = PEERS[kind](url)
        await peer.open()
        seen: set[int] = set()
        total, order, latest, pause_s, last_s = 0, 0, -1, 0.0, 0.0

        def on_message(body: bytes) -> None:
            nonlocal total, order, latest, pause_s, last_s
            number, now_s = int.from_bytes(body[:8], "big"), time.monotonic()
            if last_s:
                pause_s = max(pause_s, now_s - last_s)
            last_s = now_s
            order += number < latest
            latest = max(latest, number)
            seen.add(number)
            total += 1
            received.value = total

        await peer.subscribe("bench", on_message)
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.02)
        results.put({"total": total, "distinct": len(seen), "out_of_order": order, "pause_ms": round(pause_s * 1000)})
        await peer.close()

    run(work())
