"""Packets nobody would send, in any order: an end takes them without an error and within its limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.packets import Packet, split
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.end.rig import ID

NUMBERS = st.one_of(st.integers(0, 20), st.sampled_from([2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32 - 2]))
PACKETS = st.builds(
    Packet,
    kind=st.one_of(st.integers(1, 7), st.integers(0, 65535)),
    connection_id=st.sampled_from([ID, ID, ID, ID, 0, 1]),
    sequence=NUMBERS,
    window=st.sampled_from([0, 1, 8, 65535]),
    payload=st.binary(max_size=20),
    version=st.sampled_from([2, 2, 2, 1]),
)
RULES = Rules(capacity=8, transmit_max=6, payload_max=16, idle_s=0)
TYPES = [option.value for option in Option]


class Hostile(RuleBasedStateMachine):
    """A program that does anything at any time, and a peer that sends anything."""

    @initialize(role=st.sampled_from(list(Role)), first=st.sampled_from([1, 5, 2**32 - 3]))
    def begin(self, role: Role, first: int) -> None:
        self.now_s = 0.0
        self.end = End(RULES._replace(first_sequence=first), role, ID, 0.0, peer_window=4)
        self.was_over = False

    @rule(packets=st.lists(PACKETS, max_size=12))
    def hear(self, packets: list[Packet]) -> None:
        self.end.on_packets(packets, self.now_s)

    @rule(size=st.integers(0, 300))
    def write(self, size: int) -> None:
        room = self.end.room()
        assert self.end.write(bytes(size), self.now_s) == min(size, room)

    @rule(limit=st.integers(0, 60))
    def read(self, limit: int) -> None:
        readable = self.end.readable()
        assert len(self.end.read(limit, self.now_s)) == min(limit, readable)

    @rule(limit=st.sampled_from([0, 1, 100, 10_000]))
    def take(self, limit: int) -> None:
        expected = self.end.has_packets(self.now_s) and limit > 0
        raws = self.end.take_packets(limit, self.now_s)
        assert bool(raws) == expected
        body = split(b"".join(raws))
        assert len(body.packets) == len(raws)
        assert all(found.connection_id == ID for found in body.packets)

    @rule(wait=st.sampled_from([0.0, 0.01, 0.5, 40.0, 400.0]))
    def let_time_pass(self, wait: float) -> None:
        self.now_s += wait
        self.end.on_time(self.now_s)
        assert self.end.next_at() > self.now_s

    @rule(option=st.sampled_from(list(Option)), value=st.integers(-(2**31), 2**31 - 1))
    def set_option(self, option: Option, value: int) -> None:
        self.end.set_option(option, value, self.now_s)

    @rule(how=st.sampled_from(["close", "abort", "gone"]), chance=st.integers(0, 5))
    def finish(self, how: str, chance: int) -> None:
        if chance:
            return
        if how == "close":
            self.end.close(self.now_s)
        elif how == "abort":
            self.end.abort(1, "enough", self.now_s)
        else:
            self.end.on_gone(5, "gone", self.now_s)

    @invariant()
    def within_limits(self) -> None:
        if not hasattr(self, "end"):
            return
        end, status = self.end, self.end.status(self.now_s)
        assert 0 <= status.window <= 8
        assert end._receive.held() <= 8
        assert status.unacknowledged <= 6 + 3 + 1
        assert status.waiting_bytes <= 6 * 16
        assert len(end._transmit._again) <= 6 + 3 + 1
        assert end._receive.options == []
        assert (end.reason is not None) == (end.state is State.ABORTED)
        is_over = end.state in (State.CLOSED, State.ABORTED)
        assert is_over or not self.was_over
        self.was_over = is_over


Hostile.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestHostile = pytest.mark.requirement("TUN-22", state="half", note="the ends; the gateway is tested for itself")(
    Hostile.TestCase
)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=10))
def test_any_bytes_of_a_driver(bodies: list[bytes]) -> None:
    end = End(RULES, Role.BROKER, ID, 0.0)
    for body in bodies:
        end.on_packets(split(body).packets, 0.0)
    assert end.state in (State.OPENING, State.OPEN)
