"""A process that writes is killed, again and again: whatever it said was safe is there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.journal.test_journal import open_journal

CHILD = """
import sys
from pathlib import Path
from tests.journal.test_journal import open_journal, store
journal, recovery = open_journal(Path(sys.argv[1]))
assert not recovery.damage, recovery.damage
list(recovery.records())
while True:
    for _ in range(3):
        order = journal.last + 1
        journal.append(8, *store(order, size=order * 37 % 900 // 8 * 8))
    journal.submit()
    sys.stdout.write(f"{journal.flush()}\\n")
    sys.stdout.flush()
"""


@pytest.mark.requirement("CLU-114")
@pytest.mark.scaled
def test_what_a_killed_process_confirmed_is_there(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    confirmed = 0
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(chance.random() * 0.1)
        child.send_signal(signal.SIGKILL)
        said = child.stdout.read().split("\n")[:-1]
        child.stdout.close()
        child.wait()
        confirmed = max([confirmed, *(int(line) for line in said)])
    journal, recovery = open_journal(tmp_path)
    found = [record.index for record in recovery.records()]
    assert found == list(range(1, recovery.last + 1))
    assert recovery.last >= confirmed > 0
    assert recovery.damage == []
    journal.close()
