"""Bugs planted into member nodes, to see that the books notice them, and disks that can be hurt.

The nodes of a cluster that is started in such an environment import `planting/sitecustomize.py` when their interpreter
starts, which puts the bug in place of the right code. Nothing of this is known to the nodes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PLANTING: Final = Path(__file__).with_name("planting")

PLANTS: Final[dict[str, str]] = {
    "confirm_alone": "the primary confirms what only its own disk has",
    "skip_epoch_check": "backups take records from a primary of an older epoch",  # lease and bus keep them away, too
    "forget_resend_keys": "a new primary does not know which sends were accepted",
    "roll_back_prepared": "a new primary rolls back what is prepared, without asking the decider",
}


def environment_of(plant: str, *, with_disk: bool = False) -> dict[str, str]:
    assert not plant or plant in PLANTS, plant
    if not plant and not with_disk:
        return {}
    path = os.pathsep.join(filter(None, (str(PLANTING), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "FAIRLEAD_PLANT": plant, "FAIRLEAD_DISK": "1" if with_disk else ""}
