"""Source and sink on executors that are processes of their own, and from a client without Spark: takes minutes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

import fairlead
import fairlead.sync
from fairlead.pipeline import java
from fairlead.testing import Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HOME = Path(pyspark.__file__).parent
KEEP = {"retain_messages": -1}
ROWS = 20_000

# Reads a topic, consumes a queue, and writes both to one destination; run by itself, so that no session is shared.
PROGRAM = """
import sys
from fairlead.pipeline.session import spark_session
master, url, checkpoint = sys.argv[1:]
spark = spark_session("cluster", master)
options = {"url": url, "slices": 4}
table = spark.read.format("fairlead").options(**options).load("feed")
print("rows", table.count(), table.selectExpr("count(distinct order_number)").first()[0])
stream = spark.readStream.format("fairlead").options(**options, cursor="c", maxRowsPerTrigger=15_000).load("work")
query = (
    stream.select("body", "key").writeStream.format("fairlead").options(url=url, destination="done", create=True)
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
table.limit(100).select("body").write.format("fairlead").mode("append").options(
    url=url, destination="some", create=True
).save()
print("written", spark.read.format("fairlead").options(**options).load("done").count())
spark.stop()
"""


@contextmanager
def spark_process(tmp_path: Path, name: str, *arguments: str, port: int) -> Iterator[None]:
    """One of Spark's own servers, until it listens."""
    environment = os.environ | {
        "JAVA_HOME": str(java.find().home),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(tmp_path / "worker"),
    }
    with open(tmp_path / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [str(HOME / "bin" / arguments[0]), *arguments[1:]], env=environment, stdout=log, stderr=log, cwd=tmp_path,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 200
        while True:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            assert process.poll() is None, (tmp_path / f"{name}.log").read_text()[-3000:]
            assert time.monotonic() < deadline_s, (tmp_path / f"{name}.log").read_text()[-3000:]
            time.sleep(0.1)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(server: Server, tmp_path: Path, master: str) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as client:
        feed, work = client.topic("feed", parameters=KEEP), client.queue("work")
        for base in range(0, ROWS, 1000):
            feed.send_many([b"%d" % n for n in range(base, base + 1000)])
            work.send_many([b"%d" % n for n in range(base, base + 1000)])
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        done = subprocess.run(
            [sys.executable, program, master, server.url, str(tmp_path / "checkpoint")],
            capture_output=True, text=True, timeout=500, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert f"rows {ROWS} {ROWS}" in done.stdout, done.stderr[-4000:]
        assert f"written {ROWS}" in done.stdout, done.stderr[-4000:]
        found = []
        with client.queue("done").consume() as consumer:
            while more := consumer.receive_many(5000, timeout=1):
                found += [int(message.body) for message in more]
                consumer.ack_many(more)
        assert sorted(found) == list(range(ROWS))


def test_executors_of_a_standalone_cluster(server: Server, tmp_path: Path) -> None:
    port, web = free_port(), free_port()
    master = ["spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    worker = ["spark-class", "org.apache.spark.deploy.worker.Worker", "--cores", "2", "--memory", "1g"]
    with spark_process(tmp_path, "master", *master, "--port", str(port), "--webui-port", str(web), port=port):
        port_of_worker, web = free_port(), free_port()
        places = ["--host", "127.0.0.1", "--port", str(port_of_worker), "--webui-port", str(web)]
        url = f"spark://127.0.0.1:{port}"
        with spark_process(tmp_path, "worker", *worker, *places, url, port=port_of_worker):
            run(server, tmp_path, url)


def test_spark_connect(tmp_path: Path) -> None:
    port = free_port()
    arguments = [
        "spark-submit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master",
        "local[2]",
    ]
    conf = [
        f"spark.connect.grpc.binding.port={port}",
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.ui.enabled=false",
    ]
    for one in conf:
        arguments += ["--conf", one]
    with (
        Server(managers=1) as server,
        spark_process(tmp_path, "connect", *arguments, "spark-internal", port=port),
    ):
        run(server, tmp_path, f"sc://127.0.0.1:{port}")
