"""Each fault a path can have, alone and together, under a transfer in both directions: every byte once and in order."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox

UP, DOWN = 1_000_000, 1_500_000
PUSH, PULL = {"push"}, {"pull"}
PLAIN = {"websocket": "never"}
# Losses are found out after the resend interval: smaller packets, so that a file has many of them.
SMALL = {"payload_max": 8 << 10}


FAULTS: dict[str, tuple[Act, set[str], dict[str, Any]]] = {
    "every third push is lost": (Act.DROP_REQUEST, PUSH, {"every": 3}),
    "a fifth of the pushes' answers are lost": (Act.DROP_ANSWER, PUSH, {"share": 0.2}),
    "a fifth of the pull answers are lost": (Act.DROP_ANSWER, PULL, {"share": 0.2}),
    "every push comes twice": (Act.REPLAY, PUSH, {}),
    "every pull comes twice": (Act.REPLAY, PULL, {"every": 2}),
    "every second push is a second late": (Act.DELAY, PUSH, {"every": 2, "seconds": 1.0}),
    "every third pull is late": (Act.DELAY, PULL, {"every": 3, "seconds": 0.3}),
    "bodies above 100 KiB are refused": (Act.CAP_REQUEST, PUSH, {"size": 100 << 10}),
    "a bit of every 50th packet": (Act.FLIP, PUSH | PULL, {"every": 50}),
    "no keep-alive": (Act.NO_KEEP_ALIVE, PUSH | PULL, {}),
    "whole answers only": (Act.BUFFER, PUSH | PULL, {}),
    "closed between requests": (Act.CLOSE_IDLE, PUSH | PULL, {"every": 2}),
    "every fourth answer is a page": (Act.ERROR_PAGE, PUSH | PULL, {"every": 4}),
    "an eager cache": (Act.CACHE, PUSH | PULL, {}),
}
SHOWN = {
    "a fifth of the pull answers are lost": ["TUN-68"],
    "every second push is a second late": ["TUN-37"],
}


@pytest.mark.requirement("TUN-5", half="each fault alone")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.requirement(id_) for id_ in SHOWN.get(name, ())]) for name in FAULTS]
)
def test_one_fault(world: World, box: Middlebox, name: str) -> None:
    act, kinds, more = FAULTS[name]
    fault = box.faults.add(act, kinds, **more)
    # Where every second answer is lost an end takes its time: the bytes are what is shown.
    client = world.client(box.address, up=UP, down=DOWN, options=PLAIN, rules={**SMALL, "linger_s": 80.0})
    (result,) = client.results()
    assert result["carrier"] == "push/pull"
    if act is Act.CACHE:
        assert fault.done == 0
        assert not box.cached  # everything said no-store (TUN-26)
    elif act is not Act.BUFFER:
        assert fault.done > 0


@pytest.mark.requirement("TUN-5", "TUN-35", "TUN-37", "TUN-100", half="minutes, not months")
def test_many_faults_at_once(world: World, box: Middlebox) -> None:
    box.faults.add(Act.DROP_REQUEST, PUSH | PULL, share=0.05)
    box.faults.add(Act.DROP_ANSWER, PUSH | PULL, share=0.05)
    box.faults.add(Act.REPLAY, PUSH | PULL, share=0.1)
    box.faults.add(Act.DELAY, PUSH | PULL, share=0.1, seconds=0.2)
    box.faults.add(Act.FLIP, PUSH | PULL, share=0.01)
    box.faults.add(Act.ERROR_PAGE, PUSH | PULL, share=0.05)
    box.faults.add(Act.CLOSE_IDLE, PUSH | PULL, share=0.2)
    box.faults.add(Act.CAP_REQUEST, PUSH, size=64 << 10)
    world.client(box.address, up=1_000_000, down=1_000_000, options=PLAIN, rules=SMALL).results()


@pytest.mark.requirement("TUN-20")
def test_every_flipped_bit_is_counted_and_none_is_delivered(world: World, box: Middlebox) -> None:
    before = world.gateway_status()["counters"]["damaged"]
    up = box.faults.add(Act.FLIP, PUSH, every=50)
    down = box.faults.add(Act.FLIP, PULL, every=50)
    client = world.client(box.address, up=UP, down=DOWN, options=PLAIN, rules=SMALL)
    client.results()
    box.faults.clear()
    (status,) = client.status()
    assert up.done > 0
    assert down.done > 0
    assert world.gateway_status()["counters"]["damaged"] - before == up.done
    assert status["damaged"] == down.done


@pytest.mark.requirement("TUN-20")
def test_without_flips_nothing_counts_as_damaged(world: World, box: Middlebox) -> None:
    before = world.gateway_status()["counters"]["damaged"]
    client = world.client(box.address, up=UP, down=DOWN, options=PLAIN)
    client.results()
    assert client.status()[0]["damaged"] == 0
    assert world.gateway_status()["counters"]["damaged"] == before


def test_no_thread_of_the_box_is_left(world: World) -> None:
    assert [one.name for one in threading.enumerate() if one.name == "middlebox"] == []
