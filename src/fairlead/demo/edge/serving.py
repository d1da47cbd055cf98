"""The first step: the server, and who is there when it says that it is ready."""

from __future__ import annotations

from collections import Counter

from fairlead.demo.edge.stage import PATIENCE_S, Stage
from fairlead.demo.findings import Findings
from fairlead.demo.words import spell

__all__ = ["run"]

STANDBYS = 2


def run(stage: Stage) -> Findings:
    server = stage.server()
    stage.say("router and dispatcher get their standbys")
    status = server.wait_until(
        lambda report: [one["state"] for one in report["components"]].count("standby") == STANDBYS, PATIENCE_S
    )
    roles = Counter(one["role"] for one in status["components"])
    told = ", ".join(f"{count} × {role}" if count > 1 else role for role, count in roles.items())
    return Findings(
        said=[f"{roles.total()} processes, ready after {spell(stage.ready_s)}, listening on {server.url}", told],
        checks={
            "every role is there": {"supervisor", "dispatcher", "router", "manager", "message-manager"} <= roles.keys(),
            "router and dispatcher have a standby": roles["router"] == roles["dispatcher"] == STANDBYS,
        },
    )
