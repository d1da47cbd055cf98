"""`python -m fairlead.tunnel.edge.gateway SETTINGS [--intake FD] [--link FD]`: the gateway as a process of a server.

SETTINGS is a GatewaySettings as JSON; it may stand in the environment as FAIRLEAD_GATEWAY instead. The descriptors are
inherited: a unix datagram socket connections are handed in by, and a listening socket brokers dial.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys

import msgspec

from fairlead.errors import ConfigError
from fairlead.tunnel.edge.gateway.settings import GatewaySettings

__all__ = ["main"]


def main(settings: GatewaySettings, intake: socket.socket | None = None, link: socket.socket | None = None) -> int:
    """Serves until SIGTERM; the exit code: 0 stopped in order, 2 the settings or a port cannot be used."""
    from fairlead.tunnel.edge.gateway.serve import serve

    try:
        return serve(settings, intake=intake, link=link)
    except ConfigError as error:
        print(f"fairlead: {error}", file=sys.stderr)
        return 2


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m fairlead.tunnel.edge.gateway")
    parser.add_argument("settings", nargs="?", default=os.environ.get("FAIRLEAD_GATEWAY", "{}"))
    parser.add_argument("--intake", type=int)
    parser.add_argument("--link", type=int)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every request that is none
    try:
        settings = msgspec.json.decode(given.settings, type=GatewaySettings)
    except msgspec.DecodeError as error:
        print(f"fairlead: the settings of the gateway cannot be read: {error}", file=sys.stderr)
        return 2
    sockets = [None if fd is None else socket.socket(fileno=fd) for fd in (given.intake, given.link)]
    return main(settings, *sockets)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
