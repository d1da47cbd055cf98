"""`python -m fairlead.runtime.member_node PLAN`: a keeper, from a plan on disk. For people: `fairlead node mm`."""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.runtime.member_node.keeper import run_mm_node
from fairlead.runtime.member_node.plan import Plan

if __name__ == "__main__":
    plan = Plan.read(Path(sys.argv[1]))
    sys.exit(run_mm_node(plan.node, plan.cluster, plan.settings))
