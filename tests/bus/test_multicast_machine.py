"""The multicast machines under a simulated bad network: everything arrives, in order, once, and repair stays small."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.bus.multicast import packets
from fairlead.bus.multicast.receiving import AHEAD_MAX, Receiver
from fairlead.bus.multicast.sending import Out, Sender
from tests.bus.lossy import LossyNet, Weather

NAMES = ("r1", "r2", "r3")


def blocks_of(net: LossyNet, count: int) -> list[bytes]:
    made = []
    for number in range(count):
        body = b"%d " % number + net.rng.randbytes(net.rng.choice((0, 3, 90, 100, 101, 950)))
        made.append(body)
        net.sender.push(body)
        if net.rng.random() < 0.3:
            net.step()
    return made


def keeps_the_law(seed: int, sender: type[Sender] = Sender, receiver: type[Receiver] = Receiver) -> bool:
    """All receivers get all blocks, in order and once, whatever the network does."""
    net = LossyNet(seed, NAMES, Weather(), sender=sender, receiver=receiver)
    net.weather = Weather(net.rng.choice((0.0, 0.1, 0.3)), net.rng.choice((0.0, 0.2)), net.rng.choice((0.0, 0.01)))
    made = blocks_of(net, 60)
    net.run_until_all_have(len(made))
    return all(got == made for got in net.got.values()) and not net.excluded


@pytest.mark.requirement("CLU-39")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30))
def test_everything_arrives_in_order_once(seed: int) -> None:
    assert keeps_the_law(seed)


class NeverAsks(Receiver):
    def ask(self, now_s: float) -> list[tuple[int, int]]:
        return []


class TakesDoubles(Receiver):
    def on_data(self, number: int, flags: int, content: memoryview, now_s: float) -> list[tuple[int, bytes]]:
        if number < self.wanted:
            return [(number, bytes(content))]
        return super().on_data(number, flags, content, now_s)


class TakesAsItComes(Receiver):
    def on_data(self, number: int, flags: int, content: memoryview, now_s: float) -> list[tuple[int, bytes]]:
        self.wanted = max(self.wanted, number)
        return super().on_data(number, flags, content, now_s)


class IgnoresBeats(Receiver):
    def on_beat(self, highest: int, now_s: float) -> None:
        return


class ForgetsAtTheFirstReport(Sender):
    def on_report(self, listener: str, wanted: int) -> None:
        for name in NAMES:
            super().on_report(name, wanted)


class NeverRepeats(Sender):
    def on_ask(self, ranges: list[tuple[int, int]], now_s: float) -> None:
        return


class ForgetsTheLastFlag(Sender):
    def due(self, now_s: float) -> list[Out]:
        return [Out(out.number, out.flags & packets.FIRST, out.content) for out in super().due(now_s)]


@pytest.mark.parametrize("bug", [NeverAsks, TakesDoubles, TakesAsItComes, IgnoresBeats])
def test_planted_bugs_of_the_receiver_are_caught(bug: type[Receiver]) -> None:
    assert not all(keeps_the_law(seed, receiver=bug) for seed in range(12))


@pytest.mark.parametrize("bug", [ForgetsAtTheFirstReport, NeverRepeats, ForgetsTheLastFlag])
def test_planted_bugs_of_the_sender_are_caught(bug: type[Sender]) -> None:
    assert not all(keeps_the_law(seed, sender=bug) for seed in range(12))


@pytest.mark.requirement("CLU-43", state="scaled", note="by simulation")
def test_a_loss_that_all_have_is_asked_for_about_once() -> None:
    names = tuple(f"r{number}" for number in range(20))
    net = LossyNet(5, names, Weather(delay_s=0.001))
    net.sender.push(b"first")
    net.run(0.1)
    net.weather.silent = set(names)
    net.sender.push(b"lost by all")
    net.step()
    net.weather.silent = set()
    net.sender.push(b"seen by all")
    assert net.run_until_all_have(3)
    assert net.ask_packets <= 5, "twenty miss it, few ask"
    assert net.sender.repeats <= 3


class NeverKeepsQuiet(Receiver):
    def on_others_ask(self, ranges: list[tuple[int, int]], now_s: float) -> None:
        return


@pytest.mark.requirement("CLU-43", state="scaled", note="by simulation")
def test_requests_keep_quiet_while_others_ask() -> None:
    def asked(receiver: type[Receiver]) -> int:
        net = LossyNet(
            5, tuple(f"r{number}" for number in range(20)), Weather(), receiver=receiver, sender=NeverRepeats
        )
        net.weather.silent = set(net.receivers)
        net.sender.push(b"lost by all")
        net.step()
        net.weather.silent = set()
        net.run(0.5)
        return net.ask_packets

    assert asked(Receiver) * 2 < asked(NeverKeepsQuiet)


@pytest.mark.requirement("CLU-43", state="scaled", note="by simulation")
def test_cut_and_heal_makes_no_storm() -> None:
    """Five of six are cut off under load and healed: traffic stays below three times the normal."""
    names = tuple(f"r{number}" for number in range(6))
    net = LossyNet(6, names, Weather(), patience_s=1e9, kept=8 << 20)

    def second() -> int:
        before = net.data_packets + net.ask_packets + net.beats
        for _ in range(100):
            net.sender.push(b"x" * 80)
            net.run(0.01)
        return net.data_packets + net.ask_packets + net.beats - before

    normal = max(second() for _ in range(3))
    net.weather.silent = set(names[1:])
    cut = [second() for _ in range(10)]
    net.weather.silent = set()
    healed = [second() for _ in range(10)]
    assert max(cut) < 3 * normal
    assert sum(healed) < 3 * normal * len(healed)
    assert net.run_until_all_have(2300)


def test_nobody_to_listen_means_nothing_is_sent() -> None:
    sender = Sender(100, 1000)
    sender.push(b"x" * 5000)
    assert not sender.due(1.0)
    assert sender.beat(1.0) is None
    assert sender.waiting == 0


def test_who_was_removed_does_not_take_what_follows_for_its_own() -> None:
    sender = Sender(100, 10_000)
    receiver = Receiver(sender.add("r"), 3.0, lambda: 0.5)
    sender.push(b"1")
    got = [block for out in sender.due(0.0) for block in receiver.on_data(*out[:2], memoryview(out[2]), 0.0)]
    sender.remove("r", b"r is removed")
    sender.push(b"to nobody")
    sender.add("other")
    sender.push(b"3")
    got += [block for out in sender.due(0.1) for block in receiver.on_data(*out[:2], memoryview(out[2]), 0.1)]
    assert got == [(1, b"1")], "there is a gap before the third"
    sender.add("late")
    sender.remove("late", b"late is removed")
    assert [out.content for out in sender.due(0.2)] == [b"late is removed"]
    sender.on_report("other", sender.next)
    assert sender.waiting == 0


@pytest.mark.requirement("CLU-45", state="half", note="what an excluded member does next is its own")
def test_a_receiver_that_stands_still_is_excluded_at_the_bound_and_the_others_get_all() -> None:
    net = LossyNet(7, NAMES, Weather(), kept=50_000)
    net.weather.frozen = {"r2"}
    for number in range(200):
        net.sender.push(b"%d " % number + bytes(900))
        net.run(0.005)
        assert net.sender.waiting <= 51_000
    assert net.excluded == ["r2"]
    assert net.run_until_all_have(200)


def test_a_gap_nobody_fills_is_lost_after_the_patience() -> None:
    receiver = Receiver(1, 0.5, lambda: 0.5)
    receiver.on_data(2, 3, memoryview(b"x"), 1.0)
    asks = 0
    for step in range(600):
        asks += bool(receiver.ask(1.0 + step / 1000))
    assert receiver.lost
    assert 3 <= asks <= 12, "pauses grow"


def test_a_sender_far_ahead_fills_no_memory() -> None:
    receiver = Receiver(1, 3.0, lambda: 0.5)
    receiver.on_data(AHEAD_MAX + 2, 3, memoryview(b"x"), 0.0)
    assert receiver.lost
    other = Receiver(1, 3.0, lambda: 0.5)
    other.on_beat(1 << 60, 0.0)
    assert other.lost
    third = Receiver(1, 3.0, lambda: 0.5)
    for number in range(2, 400):
        third.on_data(number, 3, memoryview(bytes(60_000)), 0.0)
    assert third.lost


def test_reports_and_requests_of_the_impossible_do_nothing() -> None:
    sender = Sender(10, 1000)
    sender.add("r")
    sender.push(b"x" * 50)
    sender.due(0.0)
    sender.on_report("r", 1 << 60)
    sender.on_report("nobody", 3)
    sender.on_ask([(0, 1 << 63), (90, 4)], 0.1)
    assert sender.waiting == 50
    assert [out.number for out in sender.due(0.2)] == [1, 2, 3, 4, 5]
    sender.on_report("r", 6)
    assert sender.waiting == 0


@pytest.mark.requirement("CLU-207")
def test_packets_of_others_do_not_open() -> None:
    stream, other = bytes(16), b"o" * 16
    sealer = packets.Sealer(b"secret", stream)
    data = sealer.pack(packets.DATA, 3, 7, b"content")
    opened = sealer.open(memoryview(data))
    assert opened is not None
    assert (opened.number, bytes(opened.content)) == (7, b"content")
    assert packets.Sealer(b"wrong", stream).open(memoryview(data)) is None
    assert packets.Sealer(b"secret", other).open(memoryview(data)) is None
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        found = sealer.open(memoryview(changed))
        assert found is None or 6 <= at < 8, "only the padding of the head may differ"
        assert sealer.open(memoryview(data[:at])) is None


@given(st.binary(max_size=200))
def test_hostile_bytes_are_no_packets(data: bytes) -> None:
    assert packets.Sealer(b"secret", bytes(16)).open(memoryview(data)) is None
    packets.stream_of(memoryview(data))
    packets.parse_ask(memoryview(data))
    packets.Sealer(None, bytes(16)).open(memoryview(data))
