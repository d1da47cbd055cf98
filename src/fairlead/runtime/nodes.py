"""The three kinds of nodes, started from their files; what `fairlead node` calls."""

from __future__ import annotations

from fairlead.cluster.configuration.edge.files import NodeFiles


def run_cm(files: NodeFiles, ready_fd: int | None = None) -> int:
    """A client manager's node until it is told to stop; the status to exit with."""
    from fairlead.cluster.client_manager.edge.node import run_cm_node
    from fairlead.cluster.configuration.edge.users import spread_users

    spread_users(files.data, files.settings)
    return run_cm_node(files.node, files.cluster, files.settings, ready_fd=ready_fd)


def run_mm(files: NodeFiles) -> int:
    from fairlead.runtime.member_node import run_mm_node

    return run_mm_node(files.node, files.cluster, files.settings)


def run_witness(files: NodeFiles) -> int:
    from fairlead.runtime.witness import Witness

    return Witness(files).run()
