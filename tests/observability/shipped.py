"""The metrics that the dashboard and the alert rules of this tree ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGING = Path(__file__).resolve().parent.parent.parent / "packaging"
DASHBOARD = PACKAGING / "grafana" / "fairlead.json"
RULES = PACKAGING / "prometheus" / "fairlead-rules.yml"
NAME = re.compile(r"\bfairlead_[a-z0-9_]+")
OF_CLUSTERS = re.compile(r"fairlead_(group|member|cluster)_")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[str]:
    """Of all panels, variables and annotations, and of all rules."""
    board = dashboard()
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (one["query"]["query"] for one in board["templating"]["list"] if isinstance(one["query"], dict))
    yield from (one["expr"] for one in board["annotations"]["list"])
    yield from re.findall(r"^\s+expr: (.+)$", RULES.read_text(encoding="utf-8"), re.M)


def names() -> set[str]:
    return {name for expression in expressions() for name in NAME.findall(expression)}
