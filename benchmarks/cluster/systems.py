"""Three-node clusters on loopback: started here, killed here, stopped by process id.

Each has one replicated queue named `bench` whose confirm waits for the disks of a majority (Fairlead: `min_copies` 2 of
3). `leader` says which node has to be killed to hurt most.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

from adapters.base import executable, free_port

NODES = 3


class System:
    """One replicated cluster."""

    name = ""
    copies = ""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        raise NotImplementedError

    async def declare(self) -> None:
        """Make the queue."""
        raise NotImplementedError

    async def leader(self) -> str:
        raise NotImplementedError

    def kill(self, node: str) -> None:
        raise NotImplementedError

    def restart(self, node: str) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)

    def spawn(self, node: str, args: list[Any], **environ: str) -> None:
        with open(self.workdir / f"{node}.log", "ab") as log:
            self.processes[node] = subprocess.Popen(
                [str(one) for one in args],
                cwd=self.workdir,
                env=os.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_group(self, node: str) -> None:
        """The node and what it started: the group is our own, made by `spawn`."""
        process = self.processes[node]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


class JetStream(System):
    """NATS with JetStream: a work-queue stream with three replicas, every write synced."""

    name = "jetstream-r3"
    copies = "3 replicas, sync_interval always"

    def start(self) -> None:
        self.ports = {f"n{i}": (free_port(), free_port()) for i in range(NODES)}
        for node in self.ports:
            self.restart(node)
        self.url = [f"nats://127.0.0.1:{port}" for port, _ in self.ports.values()]

    def restart(self, node: str) -> None:
        port, cluster = self.ports[node]
        config = {
            "server_name": node,
            "host": "127.0.0.1",
            "port": port,
            "jetstream": {"store_dir": str(self.workdir / node), "sync_interval": "always"},
            "cluster": {
                "name": "bench",
                "host": "127.0.0.1",
                "port": cluster,
                "routes": [f"nats://127.0.0.1:{other}" for _, other in self.ports.values()],
            },
        }
        file = self.workdir / f"{node}.conf"
        file.write_text(json.dumps(config))
        beside = Path(sys.executable).with_name("nats-server")
        self.spawn(node, [executable("nats-server", "NATS_SERVER", str(beside)), "-c", file])

    def kill(self, node: str) -> None:
        self.kill_group(node)

    async def declare(self) -> None:
        import nats
        from nats.js import api

        until = time.monotonic() + 60
        while True:
            try:
                connection = await nats.connect(self.url)
                stream = connection.jetstream(timeout=10)
                await stream.add_stream(
                    name="bench",
                    subjects=["bench"],
                    retention=api.RetentionPolicy.WORK_QUEUE,
                    storage=api.StorageType.FILE,
                    num_replicas=NODES,
                    duplicate_window=120,
                )
                await stream.add_consumer(
                    "bench",
                    durable_name="bench",
                    ack_policy=api.AckPolicy.EXPLICIT,
                    max_ack_pending=10_000,
                    ack_wait=30,
                )
                await connection.close()
                return
            except Exception:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.5)

    async def leader(self) -> str:
        import nats

        alive = [f"nats://127.0.0.1:{self.ports[n][0]}" for n, p in self.processes.items() if p.poll() is None]
        connection = await nats.connect(alive)
        try:
            found = await connection.jetstream(timeout=10).stream_info("bench")
            return str(found.cluster.leader)
        finally:
            await connection.close()


class RabbitQuorum(System):
    """RabbitMQ: a quorum queue of three members."""

    name = "rabbitmq-quorum"
    copies = "quorum queue of 3, synced by a majority"

    def start(self) -> None:
        self.epmd = free_port()
        self.ports = {f"r{i}": (free_port(), free_port()) for i in range(NODES)}
        (self.workdir / "enabled_plugins").write_text("[].\n")
        (self.workdir / ".erlang.cookie").write_text("benchbenchbench")
        (self.workdir / ".erlang.cookie").chmod(0o400)
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{i + 1} = {node}@localhost\n" for i, node in enumerate(self.ports)
        )
        (self.workdir / "rabbitmq.conf").write_text(
            "log.file.level = warning\nvm_memory_high_watermark.relative = 0.5\n"
            "cluster_formation.peer_discovery_backend = classic_config\n" + nodes
        )
        self.erlang = {"HOME": str(self.workdir), "ERL_EPMD_PORT": str(self.epmd), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self.spawn("epmd", [executable("epmd", "EPMD"), "-port", self.epmd], **self.erlang)
        time.sleep(1)
        for node in self.ports:
            self.restart(node)
        self.url = [f"amqp://guest:guest@127.0.0.1:{port}/" for port, _ in self.ports.values()]

    def restart(self, node: str) -> None:
        port, dist = self.ports[node]
        lib = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # /usr/sbin's is a su wrapper on Debian
        server = os.environ.get("RABBITMQ_SERVER") or (lib if Path(lib).exists() else "rabbitmq-server")
        self.spawn(
            node,
            [server],
            **self.erlang,
            RABBITMQ_NODENAME=f"{node}@localhost",
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(port),
            RABBITMQ_DIST_PORT=str(dist),
            RABBITMQ_MNESIA_BASE=str(self.workdir / "mnesia"),
            RABBITMQ_LOG_BASE=str(self.workdir / "log"),
            RABBITMQ_PID_FILE=str(self.workdir / f"{node}.pid"),
            RABBITMQ_CONFIG_FILE=str(self.workdir / "rabbitmq.conf"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(self.workdir / "enabled_plugins"),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
        )

    def kill(self, node: str) -> None:
        self.kill_group(node)

    async def declare(self) -> None:
        import aio_pika

        until = time.monotonic() + 120
        while True:
            try:
                await self._wait_for_all()
                connection = await aio_pika.connect(self.url[0])
                channel = await connection.channel()
                await channel.declare_queue(
                    "bench",
                    durable=True,
                    arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": NODES},
                )
                await connection.close()
                return
            except Exception:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(1)

    async def _wait_for_all(self) -> None:
        import aio_pika

        for url in self.url:
            await (await aio_pika.connect(url)).close()
        if len(json.loads(self._ctl("cluster_status", "--formatter", "json"))["running_nodes"]) != NODES:
            raise RuntimeError("not all nodes run")

    def _ctl(self, *args: str) -> str:
        """Ask whichever node answers: one that was started again may not be there yet."""
        for node in self.ports:
            if self.processes[node].poll() is not None:
                continue
            done = subprocess.run(
                ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", "-n", f"{node}@localhost", *args],
                env=os.environ | self.erlang,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout.strip()
        raise RuntimeError("no node answers rabbitmqctl")

    async def leader(self) -> str:
        rows = await asyncio.to_thread(self._ctl, "list_queues", "name", "leader", "--formatter", "json")
        return str(next(row["leader"] for row in json.loads(rows) if row["name"] == "bench")).partition("@")[0]


class FairleadGroup(System):
    """Fairlead: one client manager, one group of a primary and two backups."""

    name = "fairlead"
    copies = "3 members, a confirm needs 2 synced copies"
    carrier = "tcp"

    def start(self) -> None:
        from fairlead.testing.cluster import Cluster

        self.cluster = Cluster(cms=1, groups=1, backups=NODES - 1, carrier=self.carrier, directory=self.workdir)
        self.cluster.__enter__()
        self.url = self.cluster.url

    async def declare(self) -> None:
        import fairlead

        async with fairlead.connect(self.url, name="declare") as connection:
            await connection.admin.create(destination="bench", kind="queue")

    async def leader(self) -> str:
        return str(await asyncio.to_thread(self.cluster.primary, "a"))

    def kill(self, node: str) -> None:
        self.cluster.kill_process(node)

    def restart(self, node: str) -> None:
        """Its keeper has done it."""

    def stop(self) -> None:
        self.cluster.__exit__(None, None, None)


class FairleadHost(FairleadGroup):
    """The keeper dies with its node, as if the host did: nobody tells the others, so leases are waited for."""

    name = "fairlead-host"

    def kill(self, node: str) -> None:
        self.cluster.kill(node)

    def restart(self, node: str) -> None:
        self.cluster.start(node)


SYSTEMS = {one.name: one for one in (FairleadGroup, FairleadHost, JetStream, RabbitQuorum)}
