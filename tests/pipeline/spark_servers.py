"""Spark's own servers as processes of this machine: a master with workers, and a server of Spark Connect."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark

from fairlead.pipeline import java

HOME = Path(pyspark.__file__).parent
START_S = 200.0
STOP_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(
    directory: Path, name: str, program: str, *arguments: str, port: int, memory: str = "256m"
) -> Iterator[None]:
    """One of them, ready when its port is; it and its children end with the block."""
    environment = os.environ | {
        "JAVA_HOME": str(java.find().home),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_WORKER_DIR": str(directory / name),
        "PYSPARK_PYTHON": sys.executable,
    }
    file = directory / f"{name}.log"
    with open(file, "wb") as log:
        found = subprocess.Popen(
            [str(HOME / "bin" / program), *arguments], env=environment, stdout=log, stderr=log, cwd=directory,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + START_S
        while not _listens(port):
            assert found.poll() is None, file.read_text()[-3000:]
            assert time.monotonic() < deadline_s, file.read_text()[-3000:]
            time.sleep(0.1)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(found.pid, signal.SIGTERM)
        try:
            found.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(found.pid, signal.SIGKILL)
            found.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


@contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[str]:
    """A master and workers of one core and 1 GiB each; the URL for `--master`."""
    package = "org.apache.spark.deploy"

    def places(port: int) -> list[str]:
        return ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())]

    with ExitStack() as stack:
        port = free_port()
        master = (f"{package}.master.Master", *places(port))
        stack.enter_context(process(directory, "master", "spark-class", *master, port=port))
        url = f"spark://127.0.0.1:{port}"
        for number in range(workers):
            port = free_port()
            worker = (f"{package}.worker.Worker", "--cores", "1", "--memory", "1g", *places(port), url)
            stack.enter_context(process(directory, f"worker-{number}", "spark-class", *worker, port=port))
        yield url


@contextmanager
def connect(directory: Path) -> Iterator[str]:
    """A server of Spark Connect on two cores; its URL."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    arguments = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    for name, value in settings.items():
        arguments += ["--conf", f"{name}={value}"]
    with process(directory, "connect", "spark-submit", *arguments, "spark-internal", port=port, memory="1g"):
        yield f"sc://127.0.0.1:{port}"
