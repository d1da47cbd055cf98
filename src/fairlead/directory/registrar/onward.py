"""What becomes of a message that goes to another broker, after each attempt (DIR-73, DIR-77, DIR-78).

The surprising part is doubt. A message that may have been stored at a broker whose answer never came is not sent to
another broker, or the recipient could get it twice; it waits for that broker, which knows its id again. Only when an
operator has taken that broker out of the directory does it go elsewhere, marked as one that may have come before.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple

from fairlead.directory.delivery.instructions import HOPS_MAX, Instructions
from fairlead.directory.delivery.queues import carried_to
from fairlead.directory.delivery.routes import Route, app_queue

__all__ = ["ANSWER", "Outcome", "Step", "fault_of", "next_reader", "next_step", "unread_selector"]

ANSWER: Final = "temporary:"  # begins the names of queues for answers, which the server makes
PATIENCE_S: Final = 30.0


class Outcome(Enum):
    """Of one attempt."""

    STORED = "stored"
    ABSENT = "absent"  # the broker has no such queue
    UNREACHABLE = "unreachable"  # nothing was said
    DOUBTFUL = "doubtful"  # it may have been stored
    REFUSED = "refused"  # and will be again


class Step(NamedTuple):
    """`send` to `broker`; `wait` a moment and try again; `later`: give it back for a while; or an end of it."""

    do: Literal["done", "send", "wait", "later", "dead", "drop"]
    broker: str = ""
    reason: str = ""


DONE: Final = Step("done")
WAIT: Final = Step("wait")
LATER: Final = Step("later")


def fault_of(instructions: Instructions | None, app: str | None = None) -> str:
    """Why it cannot be carried at all; empty: it can. Its sender is not trusted to name any queue it likes.

    `app`: to whom a message in this carry queue may go; empty: to temporary queues, as an answer.
    """
    if instructions is None:
        return "it has no delivery instructions"
    if app is not None and (app != instructions.to if app else not instructions.queue.startswith(ANSWER)):
        return f"it is in the queue of what goes to {app or 'connections that asked'}"
    if app and instructions.queue != app_queue(app):
        return f"its queue {instructions.queue[:60]!r} is not that of {app}"
    if instructions.doubt is not None and not _is_way_to(instructions.doubt[1], instructions.to):
        return f"the queue {instructions.doubt[1][:60]!r} that may have it is not one on its way"
    if instructions.hops >= HOPS_MAX:
        return f"{HOPS_MAX} brokers have passed it on already"
    if instructions.queue != app_queue(instructions.to) and not instructions.queue.startswith(ANSWER):
        return f"its queue {instructions.queue[:60]!r} is not that of an application"
    return ""


def _is_way_to(queue: str, app: str) -> bool:
    carried = carried_to(queue)
    return carried.app == app if carried is not None else queue == app_queue(app)


def next_step(
    outcome: Outcome,
    instructions: Instructions,
    *,
    at: str,
    route: Route | None,
    in_doubt: bool,
    is_gone: bool = False,
    age_s: float,
    patience_s: float = PATIENCE_S,
) -> Step:
    """What to do after an attempt at broker `at`.

    `route`: what the directory says now; None: it cannot be asked, or need not be. `is_gone`: there is no such broker
    any more. `age_s`: how long the message has been here.
    """
    if outcome is Outcome.STORED:
        return DONE
    if outcome is Outcome.REFUSED:
        return Step("dead", reason=f"{at} refuses it")
    is_old = age_s > patience_s
    if instructions.is_answer:
        if outcome is Outcome.ABSENT or is_old:
            return Step("drop", reason="the connection that asked is gone")
        return WAIT
    if not is_gone and (outcome is Outcome.DOUBTFUL or (outcome is Outcome.UNREACHABLE and in_doubt)):
        return WAIT
    pause = LATER if outcome is Outcome.ABSENT else WAIT
    if route is None:
        return pause
    if not route.is_known:
        return Step("dead", reason=f"nobody knows {instructions.to!r} any more") if is_old else pause
    if route.broker != at:
        return Step("send", route.broker)
    if outcome is Outcome.ABSENT and is_old:
        return Step("dead", reason=f"{at} does not know {instructions.to!r}, where it should be")
    return pause


def next_reader(instructions: Instructions, others: Sequence[str]) -> str:
    """The broker at which somebody may read what nobody reads here; empty: it stays here.

    It goes to each once, and not so often that it would be dead if the recipient then moved.
    """
    if instructions.hops >= HOPS_MAX - 1:
        return ""
    return next((name for name in others if name not in instructions.via), "")


def unread_selector(others: Sequence[str]) -> str:
    """Chooses, of the messages in a queue, those for which there may be a next reader."""
    untried = " OR ".join(f"via NOT LIKE '%{_escaped(name)}%' ESCAPE '!'" for name in others)
    return f"hops IS NULL OR (hops < {HOPS_MAX - 1} AND (via IS NULL OR {untried}))"


def _escaped(name: str) -> str:
    for letter in "!%_":
        name = name.replace(letter, f"!{letter}")
    return name.replace("'", "''")
