"""What a message costs on the bus, between two processes of this machine.

    python benchmarks/micro/bus.py [--carriers tcp,local,udp] [--sizes 1024,65536] [--count 20000] [--secret]

Sent in turns of 16 messages, by `send` on tcp and local and by `cast` on udp. Told is time of each process's
processor per message, and what that would be in a second of one processor.
"""

from __future__ import annotations

import argparse
import multiprocessing
import select
import tempfile
import time
from multiprocessing.connection import Connection

from fairlead.bus.config import BusAddress, BusConfig
from fairlead.bus.edge import open_bus
from fairlead.bus.edge.streams import StreamBus

BACKLOG = 2 << 20
TURN = 16


def config(carrier: str, name: str, directory: str, seeds: list[str], secret: bool) -> BusConfig:
    listen = directory if carrier == "local" else "127.0.0.1:0"
    return BusConfig(
        node=name,
        start=time.time_ns(),
        cluster="bench",
        carrier=carrier,
        buses=[BusAddress("main", listen, "239.255.74.74:7474" if carrier == "udp" else "")],
        seeds={"main": seeds},
        secret=b"s" * 32 if secret else None,
    )


def turn(bus: StreamBus, limit_s: float = 0.1) -> None:
    select.select([bus], [], [], min(limit_s, bus.patience_s(time.monotonic())))
    bus.turn(time.monotonic())


def receive(carrier: str, directory: str, secret: bool, count: int, pipe: Connection) -> None:
    bus = open_bus(config(carrier, "b", directory, [], secret))
    bus.join("all")
    got = 0

    def take(sender: str, message: memoryview) -> None:
        nonlocal got
        got += 1

    bus.listen("p", take)
    pipe.send(bus.addresses()["main"])
    while len(bus.view.peers) < 2:
        turn(bus)
    begun_s = time.process_time()
    while got < count:
        turn(bus)
    pipe.send(time.process_time() - begun_s)
    pipe.recv()
    bus.close()


def measure(carrier: str, size: int, count: int, secret: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.Process(target=receive, args=(carrier, directory, secret, count, theirs))
        child.start()
        bus = open_bus(config(carrier, "a", directory, [ours.recv()], secret))
        while "b" not in bus.members.fellows or "all" not in bus.members.fellows["b"].channels:
            turn(bus)
        body = bytes(size)
        begun_s, began_s = time.process_time(), time.monotonic()
        sent = 0
        while sent < count:
            if bus.backlog("b") < BACKLOG:
                for _ in range(min(TURN, count - sent)):
                    if carrier == "udp":
                        bus.cast("all", "p", body)
                    else:
                        bus.send("b", "p", body)
                    sent += 1
                bus.flush()
                turn(bus, 0)
            else:
                turn(bus)
        while not ours.poll(0):
            turn(bus, 0.01)
        sender_s, wall_s = time.process_time() - begun_s, time.monotonic() - began_s
        receiver_s = ours.recv()
        ours.send("done")
        bus.close()
        child.join()
    busiest_s = max(sender_s, receiver_s)
    print(
        f"{carrier:<6} {size:>7} B {'sealed' if secret else 'open':<6}  sender {sender_s / count * 1e6:7.1f} µs"
        f"  receiver {receiver_s / count * 1e6:7.1f} µs  {count / busiest_s:9,.0f}/s"
        f"  {count * size / busiest_s / 1e6:7,.0f} MB/s of one processor; {wall_s:.2f} s by the clock"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carriers", default="tcp,local,udp")
    parser.add_argument("--sizes", default="1024,65536")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--secret", action="store_true")
    args = parser.parse_args()
    for carrier in args.carriers.split(","):
        for size in map(int, args.sizes.split(",")):
            measure(carrier, size, args.count if size < 10_000 else args.count // 5, args.secret)


if __name__ == "__main__":
    main()
