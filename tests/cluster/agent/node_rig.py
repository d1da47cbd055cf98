"""A real client manager's node before real member nodes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Self

import msgspec

from fairlead.cluster.configuration.edge.files import NOTES, write_file
from fairlead.cluster.configuration.edge.part import founding_notes
from fairlead.cluster.configuration.types import NodeConfig
from fairlead.runtime import admin
from fairlead.runtime.member_node.plan import Plan
from fairlead.runtime.settings import Server
from tests.cluster.members.rig import Nodes, free_ports

START = """
import sys
from pathlib import Path
from fairlead.cluster.client_manager.edge.node import run_cm_node
from fairlead.runtime.member_node.plan import Plan
plan = Plan.read(Path(sys.argv[1]))
sys.exit(run_cm_node(plan.node, plan.cluster, plan.settings, ready_fd=int(sys.argv[2])))
"""


class CmNode:
    """`url`, `agent_pid()`, `kill_agent()`, `ask()`; a context manager that stops what it started."""

    def __init__(self, nodes: Nodes, name: str = "cm", managers: int = 1) -> None:
        self.nodes, self.name = nodes, name
        self.data = nodes.directory / name
        self._managers = managers
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        if name not in nodes.addresses:
            nodes.addresses[name] = f"127.0.0.1:{free_ports(1)[0]}"

    def node(self) -> NodeConfig:
        addresses = self.nodes.addresses
        return NodeConfig(
            name=self.name,
            kind="cm",
            data=str(self.data),
            buses={"main": addresses[self.name]},
            seeds={"main": [address for other, address in addresses.items() if other != self.name]},
            server=Server(listen=["127.0.0.1:0"], managers=self._managers),
        )

    def start(self) -> Self:
        write_file(self.data / NOTES, msgspec.json.encode(founding_notes(self.nodes.settings)))
        path = self.nodes.directory / f"{self.name}.json"
        path.write_bytes(Plan(self.node(), self.nodes.cluster, self.nodes.settings).write().read_bytes())
        reading, writing = os.pipe()
        with open(self.nodes.directory / f"{self.name}.out", "ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, str(path), str(writing)], stdout=out, stderr=out, pass_fds=(writing,)
            )
        os.close(writing)
        text, until_s = b"", time.monotonic() + 30
        try:
            while b"\n" not in text:
                assert select.select([reading], [], [], max(0, until_s - time.monotonic()))[0], self.output()
                more = os.read(reading, 4096)
                assert more, self.output()
                text += more
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(reading)
        self.url = text.decode().split()[1]
        return self

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def output(self) -> str:
        log = self.data / "log" / "fairlead.log"
        said = (self.nodes.directory / f"{self.name}.out").read_text()
        return said + (log.read_text() if log.exists() else "")

    def agent_pid(self) -> int:
        status = admin.answer_of(self.data / "run", "status", brief=True)["status"]
        (found,) = [one for one in status["components"] if one["role"] == "agent" and one["state"] == "active"] or [{}]
        return int(found.get("pid", 0))

    def ask(self, name: str, **args: Any) -> dict[str, Any]:
        return dict(admin.answer_of(self.data / "run", "admin", name=name, args=args)["result"])

    def groups_up(self) -> set[str]:
        try:
            return {group["group"] for group in self.ask("agent")["links"] if group["up"]}
        except Exception:
            return set()
