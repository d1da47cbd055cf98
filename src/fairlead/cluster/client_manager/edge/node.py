"""`fairlead node cm`: a server whose messages are kept by the groups of a cluster."""

from __future__ import annotations

from typing import TextIO

import msgspec

from fairlead.cluster.configuration.types import ClusterConfig, ClusterSettings, NodeConfig
from fairlead.runtime import config as configuring
from fairlead.runtime.config import Config
from fairlead.runtime.member_node.plan import Plan
from fairlead.runtime.supervisor import serve


def server_config(node: NodeConfig, settings: ClusterSettings) -> Config:
    """The configuration of the server in front, from the node's own sections."""
    return Config(
        server=msgspec.structs.replace(node.server, data=node.data),
        limits=node.limits,
        fairness=node.fairness,
        store=node.store,
        requests=node.requests,
        messages=settings.messages,
        security=node.security,
        tokens=node.tokens,
        log=node.log,
        links=node.links,
        tunnel=node.tunnel,
        console=node.console,
        directory=msgspec.structs.replace(node.directory, serve=settings.directory.serve),
        agent=True,
    )


def run_cm_node(
    node: NodeConfig,
    cluster: ClusterConfig,
    settings: ClusterSettings,
    *,
    ready_fd: int | None = None,
    out: TextIO | None = None,
) -> int:
    """Serve clients until told to stop. The status to exit with."""
    config = server_config(node, settings)
    configuring.check(config)
    Plan(node, cluster, settings).write()
    return serve(config, ready_fd=ready_fd, out=out)
