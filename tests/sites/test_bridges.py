"""Laws of bridges: on any graph of servers every subscriber gets every message once, and links carry nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.sites.adverts import Advert
from fairlead.sites.chart import SERVED, SUBSCRIBED, Chart, weight
from fairlead.sites.marks import Mark, Seen
from tests.sites.world import World

PATTERNS = ["a.>", "a.b", "b.*", "c", ">"]
TOPICS = ["a.b", "a.c.d", "b.x", "c", "z"]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Servers and their parents: trees, several parents, cycles; not always in one piece."""
    count = draw(st.integers(2, 7))
    names = [f"s{number}" for number in range(count)]
    return {
        name: draw(st.lists(st.sampled_from([n for n in names if n != name]), max_size=3, unique=True))
        for name in names
    }


def pieces(parents: dict[str, list[str]]) -> dict[str, set[str]]:
    """Which servers belong together."""
    piece = {name: {name} for name in parents}
    for name, above in parents.items():
        for parent in above:
            joined = piece[name] | piece[parent]
            for member in joined:
                piece[member] = joined
    return piece


@pytest.mark.requirement("SRV-120")
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.data())
def test_every_subscriber_gets_each_message_once_on_any_graph(
    parents: dict[str, list[str]], data: st.DataObject
) -> None:
    order = random.Random(data.draw(st.integers(0, 1 << 32)))
    world = World(parents, order.randrange)
    wishes = {name: data.draw(st.lists(st.sampled_from(PATTERNS), max_size=2, unique=True)) for name in parents}
    for name, patterns in wishes.items():
        for pattern in patterns:
            world.servers[name].subscribe(pattern)
    world.run()
    together = pieces(parents)
    for origin in parents:
        for topic in TOPICS:
            body = f"{origin} {topic}".encode()
            before = {name: server.carried[topic] for name, server in world.servers.items()}
            world.servers[origin].publish(1, topic, b"", body)
            world.run()
            for name, server in world.servers.items():
                wanted = name in together[origin] and any(matches(p, topic) for p in wishes[name])
                assert server.got[body] == int(wanted), (origin, topic, name)
                assert server.carried[topic] - before[name] <= 1
            if not any(matches(p, topic) for other in together[origin] - {origin} for p in wishes[other]):
                after = {name: server.carried[topic] for name, server in world.servers.items()}
                assert after == before, "nobody wants it, but it went over a link"


def matches(pattern: str, topic: str) -> bool:
    from fairlead.topics import compile as compile_pattern

    return compile_pattern(pattern).matches(topic)


def test_interest_that_ends_is_taken_back_everywhere() -> None:
    world = World({"root": [], "a": ["root"], "b": ["root"]}, lambda count: 0)
    world.servers["b"].subscribe("news.>")
    world.run()
    assert world.bridges["a"].own.count(SUBSCRIBED) == 1
    world.servers["b"].unsubscribe("news.>")
    world.run()
    assert [end.count(SUBSCRIBED) for bridge in world.bridges.values() for end in bridge.ends] == [0] * 4


def test_what_a_client_says_about_its_path_is_not_believed() -> None:
    """SRV-43: only what a link says counts; a header of a client cannot keep its message from anybody."""
    from fairlead.wire.headers import encode_headers

    world = World({"root": [], "a": ["root"], "b": ["root"]}, lambda count: 0)
    world.servers["b"].subscribe("x")
    world.run()
    forged = encode_headers([(":origin", "b,b,1"), (":path", "root,b")])
    world.servers["a"].publish(1, "x", forged, b"forged")
    world.run()
    assert world.servers["b"].got[b"forged"] == 1


def chart_of(*adverts: Advert) -> Chart:
    chart = Chart()
    for advert in adverts:
        assert chart.take(advert)
    return chart


def test_two_hubs_share_the_topics_and_one_takes_over_when_the_other_is_lost() -> None:
    def servers(number: int, *hubs: str) -> list[Advert]:
        roots = [
            Advert(server=name, number=number, parents=list(hubs), subscribed=["t.*"], served={"r": 2})
            for name in ("east", "west")
        ]
        return roots + [Advert(server=hub, number=number, links=["east", "west"]) for hub in hubs]

    chart = chart_of(*servers(1, "h1", "h2"))
    ways = [chart.way("east", f"t.{n}") for n in range(100)]
    assert all(len(way) == 2 for way in ways)
    used = {hub: sum(("east", hub) in way for way in ways) for hub in ("h1", "h2")}
    assert min(used.values()) > 20
    assert chart.wanted("h1", "west", SUBSCRIBED) == {"t.*"}
    assert chart.nearest("east", ["h1", "h2"], SERVED, "r") == ["h1", "h2"]
    for advert in servers(2, "h2"):
        chart.take(advert)
    assert {chart.way("east", f"t.{n}") for n in range(20)} == {frozenset({("east", "h2"), ("h2", "west")})}
    chart.forget_unreachable("east")
    assert set(chart.adverts) == {"east", "west", "h2"}


def test_an_older_word_about_a_server_does_not_count() -> None:
    chart = chart_of(Advert(server="a", number=2, subscribed=["x"]))
    assert not chart.take(Advert(server="a", number=1))
    assert chart.adverts["a"].subscribed == ["x"]


def test_of_two_words_with_one_number_all_keep_the_same() -> None:
    one, other = Advert(server="a", number=2, subscribed=["x"]), Advert(server="a", number=2, subscribed=["y"])
    charts = chart_of(one), chart_of(other)
    charts[0].take(other)
    charts[1].take(one)
    assert charts[0].adverts == charts[1].adverts


def test_a_number_is_seen_once_and_the_window_is_bounded() -> None:
    seen = Seen(window=10)
    marks = [Mark("o", "b", number, ()) for number in range(100)]
    assert all(seen.is_new(mark) for mark in marks)
    assert not any(seen.is_new(mark) for mark in marks[-10:])
    seen.forget(set())
    assert seen.is_new(marks[-1])


def test_weights_are_the_same_everywhere() -> None:
    assert weight("o", "t", "h") == weight("o", "t", "h") != weight("o", "t", "g")
