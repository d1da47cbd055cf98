"""Bugs planted into the message manager, to see that the books notice them.

The message manager of a server that runs in `environment_of(name)` imports `planting/sitecustomize.py` when its
interpreter starts, which puts the bug in place of the right code. Nothing of this is known to the server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PLANTING: Final = Path(__file__).with_name("planting")

PLANTS: Final[dict[str, str]] = {
    "confirm_before_sync": "receipts are given when a record is handed to the writer, not when it is safe",
    "double_delivery": "a message stays available while a consumer has it",
    "fail_unforeseen": "some commands fail in a way nobody foresaw, when they have done their work",
    "forget_resend_keys": "after a restart nobody knows which sends were accepted",
    "lose_acknowledgements": "acknowledgements are confirmed, but not written down",
    "visible_before_commit": "sends of a transaction can be seen at once",
}

OF_STAGES: Final[dict[str, str]] = {
    "forget_batches": "after a restart nobody knows which batches were published",
    "give_up_staged_files": "files of the journal are given up though messages are staged in them",
}
"""Those the books of the flows do not notice; tests/processes/durable/test_stages.py does."""


def environment_of(plant: str) -> dict[str, str]:
    assert plant in PLANTS or plant in OF_STAGES, plant
    path = os.pathsep.join(filter(None, (str(PLANTING), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "FAIRLEAD_PLANT": plant}
