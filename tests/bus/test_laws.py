"""The laws of port.Bus, held by every carrier over real sockets."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from fairlead.bus.edge import announce_death, read_peers
from fairlead.bus.faults import FaultSwitch
from tests.bus.rig import Station, Town

CARRIERS = ("tcp", "tls", "local", "udp")
SECRET = b"a secret of this cluster only, 32"


@pytest.fixture(params=CARRIERS)
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    with Town(request.param) as town:
        yield town


def numbers(station: Station, sender: str) -> list[int]:
    return [int(message.split()[0]) for who, message in station.got if who == sender]


def joined(town: Town, channel: str, *names: str) -> None:
    for name in names:
        town.stations[name].bus.join(channel)
    town.until(
        lambda: all(
            channel in fellow.channels
            for name, one in town.stations.items()
            for fellow in one.bus.members.fellows.values()
            if fellow.name in names
        )
    )


def is_usable(station: Station, name: str) -> bool:
    fellow = station.bus.members.fellows.get(name)
    return fellow is not None and fellow.out is not None


@pytest.mark.requirement("CLU-39")
@pytest.mark.requirement("CLU-44")
def test_messages_of_one_sender_come_in_order_once_each(town: Town) -> None:
    a, b, c = (town.add(name) for name in "abc")
    town.settled()
    joined(town, "all", "a", "b", "c")
    rng = random.Random(1)
    for number in range(300):
        body = bytes(rng.choice((0, 10, 1000, 70_000)))
        a.bus.send("b", "p", b"%d " % number, body)
        b.bus.cast("all", "p", b"%d " % number, memoryview(body))
        if rng.random() < 0.2:
            town.turn()
    town.until(lambda: len(b.got) == 300 and len(a.got) == 300 and len(c.got) == 300)
    town.go_on(0.05)
    assert numbers(b, "a") == numbers(a, "b") == numbers(c, "b") == list(range(300))
    assert not a.broken + b.broken + c.broken


def test_a_message_of_16_mib_comes_whole_and_a_larger_one_is_refused(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    joined(town, "all", "b")
    body = random.Random(2).randbytes(16 << 20)
    assert a.bus.send("b", "p", body)
    town.until(lambda: len(b.got) == 1)
    a.bus.cast("all", "p", body)
    town.until(lambda: len(b.got) == 2)
    assert [message for _, message in b.got] == [body, body]
    with pytest.raises(ValueError, match="too large"):
        a.bus.send("b", "p", body, b"x")


def test_a_message_to_ourselves_comes_in_the_next_turn(town: Town) -> None:
    a = town.add("a")
    assert a.bus.send("a", "p", b"me")
    assert not a.got
    assert a.bus.patience_s(time.monotonic()) == 0
    a.bus.turn(time.monotonic())
    assert a.got == [("a", b"me")]


def test_who_is_not_there_cannot_be_sent_to(town: Town) -> None:
    a = town.add("a")
    assert not a.bus.send("nobody", "p", b"x")
    assert a.bus.backlog("nobody") == 0


def test_only_members_of_a_channel_get_its_casts(town: Town) -> None:
    a, b, c = (town.add(name) for name in "abc")
    town.settled()
    joined(town, "x", "b")
    joined(town, "y", "c")
    a.bus.cast("x", "p", b"1")
    a.bus.cast("y", "p", b"2")
    town.until(lambda: bool(b.got and c.got))
    b.bus.leave("x")
    town.until(lambda: "x" not in a.bus.members.fellows["b"].channels)
    a.bus.cast("x", "p", b"3")
    a.bus.cast("y", "p", b"4")
    town.until(lambda: len(c.got) == 2)
    assert b.got == [("a", b"1")]
    assert c.got == [("a", b"2"), ("a", b"4")]


@pytest.mark.requirement("CLU-40", state="half", note="views converge, they are not decided together")
def test_views_agree_in_members_number_and_rank(town: Town) -> None:
    for name in ("n3", "n1", "n4", "n2"):
        town.add(name, tag={"kind": name})
        town.settled()
    views = [one.bus.view for one in town.stations.values()]
    ranks = [{name: peer.rank for name, peer in view.peers.items()} for view in views]
    assert all(rank == {"n3": 0, "n1": 1, "n4": 2, "n2": 3} for rank in ranks)
    assert all(view.peers["n1"].tag == {"kind": "n1"} for view in views)
    town.remove("n1", orderly=True)
    town.settled()
    assert all(not one.broken for one in town.stations.values()), "nothing is lost by an orderly leave"
    assert town.stations["n2"].bus.view.peers["n2"].rank == 2


def test_a_tag_is_seen_by_all_and_keeps_the_number_of_the_view(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    number = b.bus.view.number
    a.bus.tag("groups", {"g": {"role": "primary"}})
    town.until(lambda: b.bus.view.peers["a"].tag.get("groups") == {"g": {"role": "primary"}})
    assert a.bus.view.peers["a"].tag == b.bus.view.peers["a"].tag
    a.bus.tag("groups", None)
    town.until(lambda: b.bus.view.peers["a"].tag == {})
    assert b.bus.view.number == number


def test_a_tag_is_told_before_the_messages_sent_after_it(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    seen = []
    b.bus.listen("q", lambda sender, message: seen.append(b.bus.view.peers["a"].tag["n"]))
    for number in range(5):
        a.bus.tag("n", number)
        a.bus.send("b", "q", b"")
    town.until(lambda: len(seen) == 5)
    assert seen == list(range(5))


@pytest.mark.requirement("CLU-40", state="half", note="views converge, they are not decided together")
def test_a_node_that_dies_is_noticed_at_once_and_its_order_is_broken_once(town: Town) -> None:
    a, b, c = (town.add(name) for name in "abc")
    town.settled()
    c.bus.send("a", "p", b"1")
    town.until(lambda: bool(a.got))
    town.remove("c", orderly=False)
    took_s = town.until(lambda: a.sees() == b.sees() == {"a", "b"})
    assert took_s < 0.5, "its line was reset and it takes no calls"
    assert a.broken == b.broken == ["c"]


@pytest.mark.requirement("CLU-40", state="half", note="views converge, they are not decided together")
@pytest.mark.requirement("CLU-45", state="half", note="what an excluded member does next is its own")
def test_a_frozen_node_is_lost_after_the_time_of_detection_and_comes_back_last_in_rank(town: Town) -> None:
    a, b, c = (town.add(name) for name in "abc")
    town.settled()
    assert c.bus.view.peers["a"].rank == 0
    town.frozen.add("a")
    took_s = town.until(lambda: b.sees() == c.sees() == {"b", "c"})
    assert 0.7 < took_s < 2.5
    assert b.bus.view.number == c.bus.view.number
    town.frozen.clear()
    town.settled()
    town.until(lambda: all(one.bus.view.peers["a"].rank == 2 for one in town.stations.values()))
    assert b.broken == c.broken == ["a"]
    assert set(a.broken) == {"b", "c"}


def test_a_restarted_node_has_a_new_start_and_the_last_rank(town: Town) -> None:
    town.add("a")
    b = town.add("b")
    town.settled()
    first = b.bus.view.peers["a"].start
    seed = {"seeds": {"main": [b.bus.addresses()["main"]]}}
    town.remove("a", orderly=False)
    again = town.add("a", **seed)
    town.until(lambda: b.sees() == {"a", "b"} and b.bus.view.peers["a"].start == again.config.start)
    town.settled()
    assert b.bus.view.peers["a"].start > first
    assert b.bus.view.peers["a"].rank == again.bus.view.peers["a"].rank == 1
    assert b.broken == ["a"]
    again.bus.send("b", "p", b"new")
    town.until(lambda: b.got[-1:] == [("a", b"new")])


def test_an_older_life_of_a_node_is_refused(town: Town) -> None:
    b = town.add("b")
    town.add("a")
    town.settled()
    new = town.stations.pop("a")
    old = town.add("a", start=0)
    town.stations["new a"] = new
    town.go_on(0.4)
    assert b.bus.view.peers["a"].start == new.config.start
    assert old.sees() == {"a"}
    assert any("refused: older" in line or "twin" in line for line in town.log)


@pytest.mark.requirement("CLU-45", state="half", note="what an excluded member does next is its own")
def test_a_receiver_that_is_too_slow_is_excluded_and_the_others_go_on(town: Town) -> None:
    town.more = {"detection_s": 30.0, "send_bytes_max": 4 << 20}
    a, b, c = (town.add(name) for name in "abc")
    town.settled()
    town.frozen.add("c")
    piece = bytes(256 << 10)
    for number in range(200):
        a.bus.send("c", "p", b"%d " % number, piece)
        assert a.bus.backlog("c") <= 5 << 20
        if not number % 10:
            assert a.bus.send("b", "p", b"%d" % number)
            town.turn()
    town.until(lambda: a.broken == ["c"] and "c" not in a.sees())
    town.until(lambda: len(b.got) == 20)
    assert not a.bus.send("c", "p", b"lost")
    town.frozen.clear()
    town.settled()
    assert c.broken == ["a"]
    arrived = numbers(c, "a")
    assert arrived == list(range(len(arrived))), "what it got before is whole"
    a.bus.send("c", "p", b"77777")
    town.until(lambda: numbers(c, "a")[-1:] == [77777])


def test_broken_is_told_before_anything_of_the_new_order(town: Town) -> None:
    """Lines are cut by the other end again and again; between two breaks numbers rise by one."""
    a, b = town.add("a"), town.add("b")
    town.settled()
    rng = random.Random(3)
    number = 0
    for cut in range(12):
        for _ in range(rng.randrange(1, 40)):
            if a.bus.send("b", "p", b"%d " % number, bytes(rng.randrange(5000))):
                number += 1
            if rng.random() < 0.1:
                town.turn()
        wire = next(iter(rng.choice((a, b)).bus.lines.wires.values()))
        wire.socket.shutdown(2)
        town.until(lambda cut=cut: len(a.broken) == len(b.broken) == cut + 1 and is_usable(a, "b"))  # type: ignore[misc]
    a.bus.send("b", "p", b"%d " % number)
    town.until(lambda: bool(b.got) and numbers(b, "a")[-1] == number)
    last = -1
    for event in b.events:
        if event[0] == "broken":
            last = -1
        else:
            found = int(event[1].split()[0])
            assert last == -1 or found == last + 1
            last = found
    assert len(b.broken) == 12
    assert len(a.broken) == 12
    assert len(set(numbers(b, "a"))) == len(numbers(b, "a")), "none came twice"


def test_a_death_told_by_the_keeper_is_believed_at_once(town: Town) -> None:
    file = town.path("peers.json")
    a, b = town.add("a"), town.add("b")
    c = town.add("c", peers_file=str(file))
    town.settled()
    peers = read_peers(file)
    assert sorted(peers["main"]) == sorted(one.bus.addresses()["main"] for one in (a, b))
    town.frozen.add("c")  # its socket stays open: only the keeper can know
    heard: list[int] = []
    keeper = threading.Thread(target=lambda: heard.append(announce_death(c.config, "c", c.config.start, peers, 5.0)))
    keeper.start()
    took_s = town.until(lambda: a.sees() == b.sees() == {"a", "b"})
    town.until(lambda: bool(heard))
    keeper.join()
    assert took_s < 0.7
    assert heard == [2]
    assert a.dead == b.dead == [("c", c.config.start)]
    assert announce_death(c.config, "c", c.config.start, {"main": ["/nobody/there.sock", "127.0.0.1:1"]}) == 0


def test_a_death_of_an_earlier_life_changes_nothing(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    assert not a.bus.members.dead("b", b.config.start - 1)
    assert a.sees() == {"a", "b"}


@pytest.mark.requirement("CLU-207")
def test_a_wrong_secret_joins_no_view(town: Town) -> None:
    a = town.add("a", secret=SECRET)
    b = town.add("b", secret=SECRET[::-1])
    c = town.add("c")
    d = town.add("d", secret=SECRET)
    town.until(lambda: a.sees() == d.sees() == {"a", "d"})
    town.go_on(0.3)
    assert a.sees() == {"a", "d"}
    assert b.sees() == {"b"}
    assert c.sees() == {"c"}
    assert any("does not know the cluster's secret" in line for line in town.log)
    assert any("one side has a secret" in line for line in town.log)
    assert a.bus.figures()["refused"] > 0
    assert not any(SECRET.decode() in line for line in town.log)


def test_sealed_lines_carry_as_open_ones_do(town: Town) -> None:
    a, b = town.add("a", secret=SECRET), town.add("b", secret=SECRET)
    town.settled()
    body = random.Random(4).randbytes(3 << 20)
    for number in range(50):
        a.bus.send("b", "p", b"%d " % number, body[: number * 20_000])
    town.until(lambda: len(b.got) == 50)
    assert numbers(b, "a") == list(range(50))
    assert all(message == b"%d " % number + body[: number * 20_000] for number, (_, message) in enumerate(b.got))


def test_a_cut_of_one_direction_is_noticed_and_heals(town: Town) -> None:
    faults = FaultSwitch()
    a, b = town.add("a", faults=faults), town.add("b")
    town.settled()
    faults.cut("a", "b")
    a.bus.send("b", "p", b"lost")
    town.until(lambda: a.sees() == {"a"} and b.sees() == {"b"})
    assert not b.got
    faults.heal()
    town.settled()
    assert b.broken == ["a"]
    a.bus.send("b", "p", b"again")
    town.until(lambda: b.got == [("a", b"again")])


def test_a_handler_that_fails_breaks_the_order_it_has_spoilt(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    joined(town, "all", "b")

    def fail(sender: str, message: memoryview) -> None:
        raise RuntimeError("handler")

    for way in (a.bus.send, a.bus.cast):
        b.bus.listen("bad", fail)
        to = "b" if way == a.bus.send else "all"
        way(to, "bad", b"")
        way(to, "p", b"1")
        before = len(b.broken)
        with pytest.raises(RuntimeError, match="handler"):
            town.until(lambda: False)
        town.until(lambda before=before: len(b.broken) == before + 1)  # type: ignore[misc]
        town.settled()
        town.until(lambda: is_usable(a, "b"))
        a.bus.send("b", "p", b"2")
        town.until(lambda: b.got[-1:] == [("a", b"2")])


def test_a_handler_may_close_the_bus(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    b.bus.listen("end", lambda sender, message: b.bus.close())
    a.bus.send("b", "end", b"")
    a.bus.send("b", "p", b"too late")
    del town.stations["b"]
    while not b.bus.lines.epoll.closed:
        town.turn(0.001)
        b.bus.turn(time.monotonic())
    b.bus.turn(time.monotonic())
    town.until(lambda: a.sees() == {"a"})
    assert not b.got
