"""The rules a client sees on one server hold on a cluster, with every connection at another client manager (CLU-1)."""

from __future__ import annotations

import inspect
import itertools

import pytest

from tests.cluster_requirements.tools import group_of
from tests.processes.durable import test_conformance as rules

# Without the mark `nodes`: what these tests are marked with for one server they show here no more than half.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.requirement("CLU-1", state="half", note="dead messages of a further group are in its own _DMQ.GROUP"),
]

ELSEWHERE = {"test_messages_of_one_session_stay_in_order"}  # test_failover.py has it with failovers
DEAD = {"test_an_expired_message_is_never_delivered", "test_after_the_last_delivery_a_message_is_dead_and_says_why"}

for _name, _rule in vars(rules).items():  # those that start a server of their own, to kill it, are not about this one
    if _name.startswith("test_") and _name not in ELSEWHERE and "join" in inspect.signature(_rule).parameters:
        globals()[_name] = _rule

_numbers = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A destination of this test only; in the first group if the test looks into its dead message queue."""
    stem = request.node.name.partition("[")[0]
    while True:
        found = f"{stem}.{next(_numbers)}"
        if stem not in DEAD or group_of(found) == group_of(f"{found}.dead") == "a":
            return found
