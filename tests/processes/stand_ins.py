"""Stand-ins for router and manager, so that supervisor and dispatcher can be tested without either.

Started like any child (`python -m fairlead.runtime.child ROLE INDEX RUN`) through a wrapper script that hands its
arguments to this file. The router only says where it stands; the manager adopts what it is handed, tells each client
its uid and echoes lines. Environment: STAND_IN_FAILS=ROLE makes that role exit with 3 before it is ready;
STAND_IN_VERSION gives it another version.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
import types

from fairlead.runtime import child, control
from fairlead.runtime.control import Control, Start
from fairlead.runtime.counters import Counters, RouterCounter
from fairlead.store import layout
from fairlead.store.connections import ConnectionTable
from fairlead.store.edge.segment import open_segment


def run_router(line: Control, start: Start) -> int:
    if os.environ.get("STAND_IN_FAILS") == "router":
        line.send("failed", text="told to fail")
        return 3
    counters = Counters("router", open_segment(start.store / "counters-router", layout.KIND_COUNTERS).view)
    active = start.mode == "active"
    line.send("ready")
    while True:
        if line.fileno() >= 0:
            select.select([line.fileno()], [], [], 0.05)
        else:
            time.sleep(0.05)
        for command in line.receive():
            if command.name == "stop":
                return 0
            if command.name == "activate":
                active = True
                line.send("active", pause_ns=1)
            if command.name == "park":
                active = False
                line.send("parked")
        line.tick(time.monotonic())
        if active:
            counters.add(RouterCounter.LOOP_PROGRESS)


def run_manager(line: Control, start: Start) -> int:
    table = ConnectionTable(open_segment(start.store / "connections", layout.KIND_CONNECTIONS).view)
    me = start.index
    for _, index in table.lost(me):
        table.close(me, index)
    table.begin_manager(me, os.getpid())
    incoming = socket.socket(fileno=start.fds["dispatched"])
    clients: dict[int, tuple[socket.socket, int]] = {}
    draining = False
    line.send("ready")
    while True:
        fds = [incoming.fileno(), *clients] + ([line.fileno()] if line.fileno() >= 0 else [])
        readable, _, _ = select.select(fds, [], [], 0.1)
        for command in line.receive():
            if command.name == "stop":
                return 0
            if command.name == "drain":
                draining = True
                table.set_draining(me)
                if command.args.get("move"):
                    for sock, index in clients.values():
                        sock.close()
                        table.close(me, index)
                    clients.clear()
        line.tick(time.monotonic())
        if incoming.fileno() in readable:
            try:
                packet, rights, _, _ = socket.recv_fds(incoming, 4096, 8)
            except BlockingIOError:
                continue
            uid, index, _ = struct.unpack_from(layout.HANDOVER_FORMAT, packet)
            sock = socket.socket(fileno=rights[0])
            assert table.adopt(me, index, uid, sock.fileno())
            table.set_live(me, index, user="", type="stand-in", instance=str(uid), org="")
            sock.send(f"{uid} {me}\n".encode())
            clients[sock.fileno()] = sock, index
        for fd in readable:
            if fd in clients:
                sock, index = clients[fd]
                data = sock.recv(4096)
                if data:
                    sock.send(data)
                else:
                    del clients[fd]
                    sock.close()
                    table.close(me, index)
        if draining and not clients:
            return 0


def stand_in(name: str, run: object) -> None:
    module = types.ModuleType(name)
    module.run = run  # type: ignore[attr-defined]
    sys.modules[name] = module


if __name__ == "__main__":
    arguments = sys.argv[sys.argv.index("fairlead.runtime.child") + 1 :]
    if os.environ.get("STAND_IN_BROKEN") == arguments[0]:
        sys.exit("broken on purpose")
    control.VERSION = os.environ.get("STAND_IN_VERSION", control.VERSION)  # type: ignore[misc]
    stand_in("fairlead.broker.edge.router", run_router)
    stand_in("fairlead.broker.edge.manager", run_manager)
    sys.exit(child.main(arguments))
