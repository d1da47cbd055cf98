"""The users of a cluster are one of its settings; every client manager's node has them in its users file (CLU-206)."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from fairlead.cluster.configuration.edge.files import write_file
from fairlead.cluster.configuration.types import ClusterSettings
from fairlead.errors import ConfigError
from fairlead.runtime.admin import SOCKET_NAME
from fairlead.runtime.rundir import short_path
from fairlead.security import users

NAME = "users.toml"


def spread_users(data: Path, settings: ClusterSettings) -> bool:
    """Write the users file of a node if the settings have another; True if so. Without users in them it stays."""
    path = data / NAME
    if not settings.users or (path.is_file() and path.read_text(encoding="utf-8") == settings.users):
        return False
    candidate = path.with_name(f"{NAME}.candidate")
    write_file(candidate, settings.users.encode())
    try:
        users.read(candidate)
    except ConfigError:
        candidate.unlink()
        raise
    candidate.replace(path)
    return True


def ask_for_reload(run: Path) -> None:
    """Have the supervisor of this node read its users again; its answer is not waited for."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        with short_path(run / SOCKET_NAME) as path:
            sock.connect(path)
        sock.sendall(b'{"command":"reload"}\n')
