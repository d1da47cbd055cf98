"""The membership machine alone: which line counts, who is there, when order is broken."""

from __future__ import annotations

import itertools
import random

import pytest

from fairlead.bus.handshake import Hello
from fairlead.bus.membership import End, Membership, Verdict
from fairlead.bus.records import Distant


class Line:
    """Two ends, as the two machines know it."""

    def __init__(self, dialler: str, other: str) -> None:
        self.ends = (dialler, other)


CLOCK = itertools.count(1000)


def machine(name: str, start: int = 1, buses: tuple[str, ...] = ("main",)) -> Membership[Line]:
    return Membership(name, start, buses, {}, lambda: next(CLOCK))


def hello(one: Membership[Line], bus: str = "main") -> Hello:
    return Hello("c", bus, one.node, one.start, "member", f"{one.node}:1", bytes(32), False)


def tell(line: Line, of: Membership[Line], to: Membership[Line]) -> None:
    to.informed(line, "main", of.node, of.info("main", to.node, to.start), f"{of.node}:1")


def connect(a: Membership[Line], b: Membership[Line], bus: str = "main") -> Line:
    """A line between them, as the edges would bring it up."""
    line = Line(a.node, b.node)
    low, high = sorted((a, b), key=lambda one: one.node)
    assert low.judge(line, bus, hello(high, bus), dialled=low is a) is Verdict.ACCEPT
    assert high.judge(line, bus, hello(low, bus), dialled=high is a) is Verdict.AWAIT
    high.accepted(line, bus, hello(low, bus))
    first, second = low.info(bus, high.node, high.start), high.info(bus, low.node, low.start)
    high.informed(line, bus, low.node, first, f"{low.node}:1")
    low.informed(line, bus, high.node, second, f"{high.node}:1")
    for one, other in ((a, b), (b, a)):
        if other.fellows[one.node].out is line:
            one.switch(line, other.node)
    return line


def test_of_two_calls_at_once_one_line_counts_on_both_sides() -> None:
    a, b = machine("a"), machine("b")
    first, second = Line("a", "b"), Line("b", "a")
    assert b.judge(first, "main", hello(a), dialled=False) is Verdict.AWAIT
    assert a.judge(second, "main", hello(b), dialled=False) is Verdict.ACCEPT
    assert a.judge(first, "main", hello(b), dialled=True) is Verdict.BUSY
    assert b.judge(second, "main", hello(a), dialled=True) is Verdict.AWAIT
    b.accepted(second, "main", hello(a))
    tell(second, a, b)
    tell(second, b, a)
    assert a.fellows["b"].out is b.fellows["a"].out is second
    assert not a.broken + b.broken


def test_the_one_who_decides_may_replace_a_line_that_the_other_thinks_alive() -> None:
    a, b = machine("a"), machine("b")
    old = connect(a, b)
    a.closed(old, "main", "b", End.RESET, until_s=9)
    assert a.broken == ["b"]
    assert "b" in a.view.peers, "doubted, not gone"
    new = connect(a, b)
    assert b.broken == ["a"]
    assert b.ended == [(old, End.REPLACED)]
    assert b.fellows["a"].out is new
    assert a.broken == ["b"], "told once"


def test_a_doubted_node_goes_when_its_call_is_refused_or_the_time_is_up() -> None:
    a, b, c = machine("a"), machine("b"), machine("c")
    a.closed(connect(a, b), "main", "b", End.RESET, until_s=5)
    a.closed(connect(a, c), "main", "c", End.RESET, until_s=5)
    assert a.redial == [("main", "b:1"), ("main", "c:1")]
    a.refused("b:1")
    assert set(a.view.peers) == {"a", "c"}
    a.tick(4.9)
    assert set(a.view.peers) == {"a", "c"}
    a.tick(5.0)
    assert set(a.view.peers) == {"a"}
    assert a.broken == ["b", "c"]


def test_goodbye_breaks_nothing() -> None:
    a, b = machine("a"), machine("b")
    a.closed(connect(a, b), "main", "b", End.LEFT)
    assert set(a.view.peers) == {"a"}
    assert a.broken == []


def test_a_later_life_replaces_the_earlier_and_not_the_other_way_round() -> None:
    a, b1, b2 = machine("a"), machine("b", 1), machine("b", 2)
    old = connect(a, b1)
    connect(a, b2)
    assert a.ended == [(old, End.REPLACED)]
    assert a.view.peers["b"].start == 2
    assert a.judge(Line("b", "a"), "main", hello(b1), dialled=False) is Verdict.OLDER
    assert a.judge(Line("a", "a"), "main", hello(a), dialled=True) is Verdict.OURSELVES
    assert a.judge(Line("a", "a"), "main", hello(machine("a", 7)), dialled=False) is Verdict.TWIN


def test_who_was_given_up_comes_back_with_the_last_rank() -> None:
    a, b, c = machine("a"), machine("b"), machine("c")
    line = connect(a, b)
    connect(b, c)
    connect(a, c)
    assert b.view.peers["a"].rank == 0
    b.closed(line, "main", "a", End.SILENT)
    a.closed(line, "main", "b", End.RESET, until_s=9)
    connect(a, b)
    assert a.view.peers["a"].rank == 2


def test_messages_go_by_one_bus_until_it_is_lost() -> None:
    a, b = machine("a", buses=("x", "y")), machine("b", buses=("x", "y"))
    x, y = connect(a, b, "x"), connect(a, b, "y")
    assert a.fellows["b"].out is x
    a.closed(x, "x", "b", End.SILENT)
    assert a.fellows["b"].out is y
    assert a.broken == ["b"]
    assert a.view.peers["b"].buses == ("y",)
    b.switch(y, "a")  # the other end learns it by the switch, before it sees that x is gone
    assert b.broken == ["a"]
    b.closed(x, "x", "a", End.RESET, until_s=9)
    assert b.broken == ["a"], "told once"


def test_each_direction_may_have_its_own_bus_and_losing_one_leaves_the_other() -> None:
    a, b = machine("a", buses=("x", "y")), machine("b", buses=("x", "y"))
    x, y = connect(a, b, "x"), connect(a, b, "y")
    b.fellows["a"].out = y  # it heard of that bus first
    a.fellows["b"].into = y
    assert (a.fellows["b"].out, a.fellows["b"].into) == (x, y)
    assert (b.fellows["a"].out, b.fellows["a"].into) == (y, x)
    for one, other in ((a, b), (b, a)):
        one.closed(y, "y", other.node, End.RESET, until_s=9)
    assert a.fellows["b"].out is x
    assert b.fellows["a"].out is x
    assert b.fellows["a"].into is x, "a announced it before, and does not do so again"


def test_distant_nodes_come_and_go_with_those_who_tell_of_them() -> None:
    a, bridge = machine("a", buses=("x",)), machine("bridge", buses=("x", "y"))
    line = connect(a, bridge, "x")
    far = Distant("far", 3, 1, ["y"], ["all"], {"kind": "mm"})
    near = Distant("near", 3, 1, ["x"], [], {})
    a.told_distant("bridge", [far, near])
    assert a.view.peers["far"].tag == {"kind": "mm"}
    assert "near" not in a.view.peers, "we would see it ourselves"
    assert a.route("far") == "bridge"
    assert list(a.distant_listeners("all")) == ["far"]
    a.told_distant("bridge", [])
    assert a.broken == ["far"]
    a.told_distant("bridge", [far])
    assert a.route("far") == "bridge"
    a.closed(line, "x", "bridge", End.SILENT)
    assert set(a.view.peers) == {"a"}
    assert sorted(a.broken) == ["bridge", "far", "far"]


@pytest.mark.requirement("CLU-40", state="half", note="views converge, they are not decided together")
@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_views_agree_when_it_has_happened(seed: int) -> None:
    """Lines come, break and are called again in any order; once all are up, all see the same, under one number."""
    rng = random.Random(seed)
    machines = {name: machine(name, rng.randrange(100)) for name in "abcde"}
    pairs = list(itertools.combinations(machines, 2))
    lines: dict[tuple[str, str], Line] = {}
    broken: dict[str, int] = dict.fromkeys(machines, 0)
    breaks = 0
    for _ in range(60):
        pair = rng.choice(pairs)
        a, b = (machines[name] for name in pair)
        if pair not in lines:
            lines[pair] = connect(a, b)
        else:
            line = lines.pop(pair)
            breaks += 1
            ends = [(a, b.node), (b, a.node)]
            rng.shuffle(ends)
            for one, other in ends:
                one.closed(line, "main", other, rng.choice((End.RESET, End.SILENT, End.SLOW)), until_s=9)
        for name in pair:
            broken[name] += len(machines[name].broken)
            machines[name].broken.clear()
    for pair in pairs:
        if pair not in lines:
            lines[pair] = connect(machines[pair[0]], machines[pair[1]])
    for _ in range(3):  # what the edges tell when views have changed
        for (first, second), line in lines.items():
            tell(line, machines[first], machines[second])
            tell(line, machines[second], machines[first])
    views = [one.view for one in machines.values()]
    assert all(set(view.peers) == set(machines) for view in views)
    assert len({view.number for view in views}) == 1
    assert len({tuple((name, peer.rank) for name, peer in view.peers.items()) for view in views}) == 1
    assert sum(broken.values()) == 2 * breaks, "each break is told once at each end"


def test_numbers_of_views_only_grow() -> None:
    a, b = machine("a"), machine("b")
    seen = [a.view.number]
    for _ in range(5):
        line = connect(a, b)
        seen.append(a.view.number)
        a.closed(line, "main", "b", End.SILENT)
        b.closed(line, "main", "a", End.SILENT)
        seen.append(a.view.number)
    assert seen == sorted(set(seen))
