"""How somebody who only looks gets on the buses of a node: beside it, under a name and a port of its own."""

from __future__ import annotations

import os
import time

from fairlead.bus.config import BusAddress, BusConfig, TlsFiles
from fairlead.cluster.configuration.checks import host_of
from fairlead.cluster.configuration.edge.files import NodeFiles


def tap_config(files: NodeFiles) -> BusConfig:
    """For a bus tap that finds the cluster through this node."""
    node, cluster = files.node, files.cluster
    multicast = {bus.name: f"{bus.multicast}:{bus.port}" for bus in cluster.buses if bus.multicast}
    local = cluster.carrier == "local"
    buses = [
        BusAddress(name, listen if local else f"{host_of(listen)}:0", multicast.get(name, ""))
        for name, listen in node.buses.items()
    ]
    seeds = {} if local else {name: [listen, *node.seeds.get(name, [])] for name, listen in node.buses.items()}
    return BusConfig(
        node=f"tap-{os.getpid()}",
        start=time.time_ns(),
        cluster=cluster.name,
        carrier=cluster.carrier,
        buses=buses,
        seeds=seeds,
        secret=files.secret,
        tls=TlsFiles(node.tls_certificate, node.tls_key, node.tls_ca) if node.tls_certificate else None,
        detection_s=cluster.detection_s,
        tag={"kind": "tap"},
        role="tap",
    )
