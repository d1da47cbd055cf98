"""The steps of the tour: what each is called, what it shows, and what one would type to do the same by hand.

A step is imported when it is run, so that `fairlead demo --list` needs nothing but this page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fairlead.errors import ConfigError

__all__ = ["SPARK", "STEPS", "Step", "chosen"]

SPARK: Final = "archive"
"""The step that needs a Java, which `--no-spark` leaves out."""


class Step(NamedTuple):
    """One stop of the tour. `module` has `run(stage) -> Findings`."""

    name: str
    module: str
    title: str
    sentence: str
    commands: tuple[str, ...]


STEPS: Final = (
    Step(
        "server",
        "fairlead.demo.edge.serving",
        "A server starts",
        "One command starts a supervisor and the programs it looks after; what they know lies in shared memory and "
        "in a journal on disk, and outlives each of them.",
        ("fairlead serve", "fairlead status"),
    ),
    Step(
        "messages",
        "fairlead.demo.edge.talking",
        "Messages are sent and received",
        "A broadcast reaches every subscriber, a request one of those who serve it, and what is sent to a queue is on "
        "disk before the sender is told so.",
        (
            "fairlead sub 'tour.>'",
            "fairlead pub tour.hello world",
            "fairlead respond tour.mirror --echo",
            "fairlead request tour.mirror hello",
            "fairlead send orders 'a book'",
            "fairlead receive orders",
        ),
    ),
    Step(
        "router",
        "fairlead.demo.edge.updating",
        "The router is replaced under load",
        "While messages flow, another program takes over the routing; nobody is disconnected, and nothing is lost, "
        "doubled or out of order.",
        ("fairlead update router",),
    ),
    Step(
        "manager",
        "fairlead.demo.edge.crashing",
        "The message manager is killed under load",
        "kill -9 for the process that keeps the queues: it is started again, reads its journal, and every message that "
        "was confirmed is there.",
        ("fairlead status", "kill -9 PID-OF-THE-MESSAGE-MANAGER", "fairlead admin show tour.orders"),
    ),
    Step(
        "cluster",
        "fairlead.demo.edge.failing_over",
        "A node of a cluster loses its power",
        "Two nodes keep a copy of every message each; all processes of the one that leads are killed at once, and the "
        "other one goes on with everything that was confirmed.",
        (
            "fairlead cluster up --data ./cluster --cm 1 --groups 1 --backups 1",
            "fairlead cluster status --data ./cluster",
        ),
    ),
    Step(
        "proxy",
        "fairlead.demo.edge.tunnelling",
        "A client behind a proxy that lets only HTTP through",
        "The same connection travels in ordinary HTTP requests; the proxy refuses everything else, and cuts all its "
        "connections in the middle.",
        ("fairlead sub 'tour.>' --server 'https://gate?proxy=http://proxy:3128'",),
    ),
    Step(
        "feed",
        "fairlead.demo.edge.feeding",
        "A feed fails over without a hole",
        "Two adapters make the same stream of one source; the one in use is killed, and the program goes on with the "
        "other one at exactly the right message.",
        (
            "fairlead feed run --config a.toml",
            "fairlead feed run --config b.toml",
            "fairlead streams tail prices --events",
        ),
    ),
    Step(
        SPARK,
        "fairlead.demo.edge.archiving",
        "Messages are archived with Spark, and the books kept",
        "A job writes a topic to Parquet files, each message once; another one compares the files with the topic by "
        "number and writes a report.",
        (
            "fairlead pipeline run archive --destination trades --lake ./lake",
            "fairlead pipeline run reconcile --sent trades \\\n    --received lake:./lake --by order --output ./books",
        ),
    ),
)


def chosen(names: Iterable[str], *, spark: bool = True) -> list[Step]:
    """These steps in the order of the tour, or all; ConfigError for a name there is not."""
    wanted = list(names)
    known = [step.name for step in STEPS]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"The tour has no step {name!r}. There are: {', '.join(known)}.")
    return [step for step in STEPS if (not wanted or step.name in wanted) and (spark or step.name != SPARK)]
