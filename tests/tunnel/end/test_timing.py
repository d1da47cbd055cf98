"""Round trips, resends, giving up, idling: everything that has to do with waiting."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.end.timing import Timing
from fairlead.tunnel.packets import Kind
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.end.model import Plan, Work, run
from tests.tunnel.end.rig import Pair, ack, data, taken


def measured(rtt_s: float | None, *, pull_period_s: float = 0.0) -> Timing:
    timing = Timing(Rules(pull_period_s=pull_period_s))
    if rtt_s is not None:
        timing.measured(rtt_s)
    return timing


@pytest.mark.requirement("TUN-77")
@pytest.mark.requirement("TUN-78")
@pytest.mark.parametrize(
    ("rtt_s", "period_s", "waits"),
    [
        (None, 0, (3, 6, 12, 24, 48, 60, 60, 60)),
        (0.001, 0, (0.5, 1, 2, 4, 8, 16, 32, 60)),
        (1, 0, (2.25, 4.5, 9, 18, 36, 60, 60, 60)),
        (50, 0, (60,) * 8),
        (0.001, 20, (20.25, 40.5, 60, 60, 60, 60, 60, 60)),
        (None, 20, (20.25, 40.5, 60, 60, 60, 60, 60, 60)),
        (1, 100, (100.25,) * 8),
        (1, -5, (2.25, 4.5, 9, 18, 36, 60, 60, 60)),
    ],
)
def test_the_interval(rtt_s: float | None, period_s: float, waits: tuple[float, ...]) -> None:
    assert measured(rtt_s, pull_period_s=period_s).intervals_s == pytest.approx(list(waits))


@pytest.mark.requirement("TUN-76")
def test_the_estimate_is_smoothed() -> None:
    timing = measured(1.0)
    timing.measured(2.0)
    assert timing.rtt_s == pytest.approx(7 / 8 * 1 + 1 / 8 * 2)


@pytest.mark.requirement("TUN-77")
def test_a_lost_packet_is_sent_again_after_the_interval_and_then_after_twice_that() -> None:
    pair = Pair()
    client = pair.client
    client.write(b"x", 0)
    taken(client, 0)
    client.on_packets([ack(1, 256)], 1.0)  # a round trip of one second
    client.write(b"y", 10)
    taken(client, 10)
    times: list[float] = []
    while len(times) < 6:
        pair.go_to(client.next_at())
        if [found.sequence for found in taken(client, pair.now_s)] == [2]:
            times.append(pair.now_s)
    assert times == pytest.approx([12.25, 16.75, 25.75, 43.75, 79.75, 139.75])


@pytest.mark.requirement("TUN-76")
def test_a_packet_sent_twice_says_nothing_about_the_round_trip() -> None:
    client = Pair().client
    client.write(b"x", 0)
    taken(client, 0)
    client.on_time(3.0)
    taken(client, 3.0)
    client.on_packets([ack(1, 256)], 3.1)
    assert client.status(3.1).rtt_s is None
    assert client.status(3.1).acknowledged == 1


@pytest.mark.requirement("TUN-76")
@pytest.mark.parametrize(("known_s", "then_s"), [(None, 2.1), (0.1, 0.1), (9.3, 9.3 * 7 / 8 + 2.1 / 8)])
def test_a_packet_that_waited_for_one_sent_twice_says_only_that_it_takes_no_longer(
    known_s: float | None, then_s: float
) -> None:
    client = Pair(Rules(payload_max=1)).client
    client._timing.rtt_s = known_s
    client.write(b"x", 0)
    taken(client, 0)
    client.write(b"y", 1)
    taken(client, 1)
    client.on_time(3.0)
    assert [found.sequence for found in taken(client, 3.0)] == [1]
    client.on_packets([ack(2, 256)], 3.1)
    assert client.status(3.1).rtt_s == pytest.approx(then_s)


def test_behind_a_hole_only_the_first_packet_is_sent_again_when_its_time_has_come() -> None:
    pair = Pair(Rules(payload_max=1))
    pair.client.write(b"abcdefgh", 0)
    packets = taken(pair.client, 0)
    pair.broker.on_packets(packets[1:], 0)
    pair.carry(pair.broker)  # one duplicate ACK: something came behind the first
    resent = []
    for _ in range(4):
        pair.go_to(pair.client.next_at())
        resent.append([found.sequence for found in taken(pair.client, pair.now_s)])
    assert [numbers for numbers in resent if numbers] == [[1], [1]]


def test_in_silence_every_packet_is_sent_again_when_its_time_has_come() -> None:
    pair = Pair(Rules(payload_max=1))
    for number in range(5):
        pair.client.write(b"x", number)
        taken(pair.client, number * 0.1)
    pair.go_to(3.0)
    assert [found.sequence for found in taken(pair.client, 3.0)] == [1]
    pair.go_to(3.4)
    assert [found.sequence for found in taken(pair.client, 3.4)] == [2, 3, 4, 5]


@pytest.mark.requirement("TUN-76")
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_the_estimate_is_near_the_delay_also_under_loss(loss: float) -> None:
    work = Work(writes=300, chunk=50, write_gap_s=0.1, closes_at_s=inf)
    world = run(Plan(loss=loss, delay_s=0.25, heals_at_s=30.0, works=(work, work._replace(writes=0))))
    assert 0.5 <= (world.sides[0].end.status(0).rtt_s or 0) < 0.6


@pytest.mark.requirement("TUN-78", state="half", note="the pulls are a model: an answer waits up to the pull period")
@pytest.mark.parametrize("role", Role)
def test_with_a_pull_period_of_20_s_and_no_loss_nothing_is_sent_twice(role: Role) -> None:
    pair = Pair(Rules(pull_period_s=20))
    random, waiting = Random(1), []
    sender, _ = pair.by_role(role)
    for tick in range(20_000):
        pair.go_to(tick * 0.05)
        if random.random() < 0.002:
            sender.write(b"x", pair.now_s)
        pair.carry(pair.client)
        waiting += taken(pair.broker, pair.now_s)
        if tick % 400 == 0:
            pair.client.on_packets(waiting, pair.now_s)
            waiting = []
    assert sender.status(0).acknowledged > 20
    assert sender.status(0).resends == 0


@pytest.mark.parametrize("role", Role)
@pytest.mark.requirement("TUN-79")
def test_a_black_hole_ends_in_an_abort_at_the_limit(role: Role) -> None:
    pair = Pair()
    pair.go_to(1000.0)
    end, _ = pair.by_role(role)
    end.write(b"x", 1000.0)
    while end.state is State.OPEN:
        pair.go_to(end.next_at())
        taken(end, pair.now_s)
    assert pair.now_s == pytest.approx(1300)
    assert (end.reason.code if end.reason else 0) == 2
    assert [found.kind for found in taken(end, pair.now_s)] == []  # it went with the last sending
    assert end.is_done()


@pytest.mark.requirement("TUN-79")
def test_a_driver_that_takes_nothing_is_silence_too() -> None:
    pair = Pair()
    pair.client.write(b"x", 0)
    pair.go_to(299)
    assert pair.client.state is State.OPEN
    pair.go_to(301)
    assert pair.client.status(301).state is State.ABORTED


@pytest.mark.requirement("TUN-79")
def test_a_reader_asleep_for_ten_minutes_is_no_silence() -> None:
    pair = Pair(Rules(capacity=2, payload_max=10))
    pair.client.write(bytes(1000), 0)
    pair.settle()
    pair.wait(600)
    assert pair.client.state is pair.broker.state is State.OPEN
    assert pair.client.status(600).probes > 100
    received = bytearray()
    while len(received) < 1000:
        received += pair.broker.read(1 << 16, pair.now_s)
        pair.settle()
        pair.wait(0.03)
    assert received == bytes(1000)


@pytest.mark.requirement("TUN-79")
def test_data_without_acks_do_not_keep_a_tunnel_alive_that_waits_for_acks() -> None:
    pair = Pair(Rules(capacity=1000))
    pair.client.write(b"x", 0)
    for second in range(1, 310):
        pair.client.on_packets([data(second)], second)
        pair.client.on_time(second)
    assert pair.client.state is State.ABORTED


@pytest.mark.requirement("TUN-88")
@pytest.mark.parametrize("role", Role)
def test_an_idle_tunnel_stays_open_for_a_day_and_asks_for_nothing(role: Role) -> None:
    pair = Pair()
    end, _ = pair.by_role(role)
    end.write(b"x", 0)
    pair.settle()
    pair.wait(86_400)
    assert pair.client.state is pair.broker.state is State.OPEN
    assert pair.client.next_at() == pair.broker.next_at() == inf


@pytest.mark.requirement("TUN-88")
def test_an_idle_limit_closes_in_the_orderly_way() -> None:
    pair = Pair(Rules(idle_s=60), Rules())
    pair.go_to(10)
    pair.broker.write(b"x", 10)
    pair.settle()
    pair.client.read(1, 10)
    pair.wait(59.9)
    assert pair.client.state is State.OPEN
    pair.wait(0.2)
    assert {end.status(0).state for end in (pair.client, pair.broker)} == {State.CLOSED}
    assert pair.broker.is_eof()


@pytest.mark.requirement("TUN-86")
@pytest.mark.parametrize("role", Role)
def test_an_option_changes_both_ends(role: Role) -> None:
    pair = Pair()
    end, other = pair.by_role(role)
    end.set_option(Option.PULL_PERIOD, 7, 0)
    end.set_option(Option.INACTIVITY, 90, 0)
    end.set_option(Option.HOLD, 11, 0)
    assert [(found.kind, found.sequence, found.payload.hex()) for found in pair.carry(end)] == [
        (Kind.CONN_OPTION, 1, "0000000100000007"),
        (Kind.CONN_OPTION, 2, "000000020000005a"),
        (Kind.CONN_OPTION, 3, "000000030000000b"),
    ]
    for rules in (end.rules, other.rules):
        assert (rules.pull_period_s, rules.inactivity_s, rules.hold_s) == (7, 90, 11)
    assert other.status(0).interval_s >= 7.25


@pytest.mark.requirement("TUN-86")
def test_options_are_signed_and_come_in_order_even_when_carried_out_of_order() -> None:
    pair = Pair()
    for value in (7, -1, 2**31 - 1, -(2**31), 5):
        pair.broker.set_option(Option.PULL_PERIOD, value, 0)
        packets = taken(pair.broker, 0)
        assert int.from_bytes(packets[0].payload[4:], "big", signed=True) == value
        if value == 5:
            pair.client.on_packets(packets, 0)
    pair.wait(1000)
    assert pair.client.rules.pull_period_s == 5
    with pytest.raises(ValueError, match="2147483648"):
        pair.broker.set_option(Option.PULL_PERIOD, 2**31, 0)


@pytest.mark.requirement("TUN-86")
@pytest.mark.parametrize("payload", [bytes.fromhex("0000006300000001"), b"", bytes(7), bytes(9), bytes(8)])
def test_unknown_options_are_ignored(payload: bytes) -> None:
    end = Pair().client
    before = end.rules
    end.on_packets([data(1)._replace(kind=Kind.CONN_OPTION, payload=payload), data(2, b"z")], 0)
    assert end.rules == before
    assert end.read(9, 0) == b"z"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (Option.PULL_PERIOD, 2**31 - 1, (86_400, 60, 25)),
        (Option.PULL_PERIOD, -7, (-7, 60, 25)),
        (Option.INACTIVITY, 2**31 - 1, (0, 86_400, 25)),
        (Option.INACTIVITY, 0, (0, 60, 25)),
        (Option.HOLD, -1, (0, 60, 0)),
    ],
)
def test_what_an_option_may_ask_for(option: Option, value: int, expected: tuple[float, float, float]) -> None:
    rules = Rules().with_option(option, value)
    assert (rules.pull_period_s, rules.inactivity_s, rules.hold_s) == expected


def test_options_that_wait_replace_each_other() -> None:
    pair = Pair(Rules(capacity=1), is_open=False)
    for value in range(100):
        pair.client.set_option(Option.HOLD, value, 0)
    pair.settle()
    pair.wait(1)
    assert pair.broker.rules.hold_s == 99
    assert pair.client.status(1).acknowledged == 1


def test_next_at_is_never_in_the_past_after_on_time() -> None:
    pair = Pair(Rules(capacity=2, payload_max=1))
    end: End = pair.client
    end.write(b"abc", 0)
    end.take_packets(1, 0)
    for _ in range(50):
        at = end.next_at()
        if at == inf:
            break
        end.on_time(at)
        assert end.next_at() > at
