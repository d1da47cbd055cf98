"""Where a child process begins: `python -m fairlead.runtime.child ROLE INDEX RUN_DIR`.

Imports its role's module first, so that a successor has paid for its imports before it says hello, then waits to be
told what to be. Exit status 3 says "cannot start": the supervisor must not try again at once.
"""

from __future__ import annotations

import importlib
import select
import signal
import sys
import time
from pathlib import Path
from typing import Final

from fairlead.errors import ConfigError
from fairlead.runtime.control import Control, Start
from fairlead.runtime.logbook import tell_crashes_as_json

MODULES: Final = {
    "router": "fairlead.broker.edge.router",
    "dispatcher": "fairlead.broker.edge.dispatcher",
    "manager": "fairlead.broker.edge.manager",
    "message-manager": "fairlead.cluster.edge.message_manager",
    "agent": "fairlead.cluster.client_manager.edge.agent",
    "bridge": "fairlead.sites.edge.bridge",
    "registrar": "fairlead.runtime.registrar_child",
    "streams": "fairlead.runtime.streams_child",
    "console": "fairlead.runtime.console_child",
    "tunnel-gateway": "fairlead.runtime.tunnel_child",
    "tunnel-broker": "fairlead.runtime.tunnel_child",
}
EXIT_CANNOT_START: Final = 3
PATIENCE_S: Final = 30.0  # for the supervisor's first command


def main(arguments: list[str]) -> int:
    role, index, run_dir = arguments[0], int(arguments[1]), Path(arguments[2])
    # The terminal's Ctrl-C and a SIGTERM to the group are the supervisor's to answer: it stops its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    module = importlib.import_module(MODULES[role])
    control = Control(run_dir, role, index)
    try:
        control.connect()
    except OSError as error:
        print(f"{role} {index}: no supervisor at {run_dir}: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    start = wait_for_start(control, role, index)
    if start is None:
        return 0
    if start.config.log.format == "json":
        tell_crashes_as_json(f"manager {index}" if role == "manager" else role)
    try:
        status: int = module.run(control, start)
    except ConfigError as error:
        control.send("failed", text=str(error))
        return EXIT_CANNOT_START
    return status


def wait_for_start(control: Control, role: str, index: int) -> Start | None:
    """The first command, or None if there will be none."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not control.lost and (left_s := deadline_s - time.monotonic()) > 0:
        poller = select.poll()
        poller.register(control.fileno(), select.POLLIN)
        poller.poll(left_s * 1000)
        for command in control.receive():
            if command.name == "start":
                return Start.of(role, index, command)
            if command.name == "stop":
                return None
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
