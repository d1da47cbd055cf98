"""A Spark session set up for Fairlead: `spark_session("my-report")`, and `format("fairlead")` works.

Any other session works too: see docs/pipeline.md for the few settings that matter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from fairlead.pipeline import java, worker_python

__all__ = ["SETTINGS", "spark_session"]

SETTINGS: Mapping[str, str] = {
    "spark.sql.python.filterPushdown.enabled": "true",  # for the option pushdown
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
}
"""What a session gets unless it is told otherwise."""

# Warnings of every session on every machine are of no use to anybody; errors are.
LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
# What ends a query is raised where it is awaited; its trace of Java beside it hides the sentence that helps.
logger.stream.name = org.apache.spark.sql.execution.streaming.runtime
logger.stream.level = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def spark_session(app: str, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, made if there is none; `sc://host` connects to a server of Spark Connect.

    A Java is looked for, and everything stays on the loopback interface, when the master is a local one.
    """
    if master.startswith("sc://"):
        remote = SparkSession.builder.remote(master).appName(app)
        return remote.config(map=dict(conf or {})).getOrCreate()
    java.use()
    worker_python.use(master)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {**SETTINGS, "spark.driver.extraJavaOptions": "", **(conf or {})}
    if "log4j2.configurationFile" not in settings["spark.driver.extraJavaOptions"]:
        settings["spark.driver.extraJavaOptions"] += f" -Dlog4j2.configurationFile={_logging().as_uri()}"
    return SparkSession.builder.appName(app).master(master).config(map=dict(settings)).getOrCreate()


def _logging() -> Path:
    file = java.cache_directory() / "log4j2-quiet.properties"
    java.write_once(file, LOGGING)
    return file
