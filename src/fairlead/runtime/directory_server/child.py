"""One of the two nodes of a directory server, as a process that ends when the server's own process is no more."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from fairlead.cluster.configuration.edge.files import NodeFiles
from fairlead.runtime import nodes


def main() -> int:
    """Arguments: node.toml, the end of a pipe that closes with our parent, a descriptor for READY (or -1)."""
    path, life, ready = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    files = NodeFiles(path)
    files.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.remember()
    if files.node.kind == "mm":
        return nodes.run_mm(files)
    return nodes.run_cm(files, ready_fd=None if ready < 0 else ready)


def _end_with(life: int) -> None:
    os.read(life, 1)  # returns when nobody has the other end
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
