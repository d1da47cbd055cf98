"""What `feed.toml` may say, and how what it may not say is refused."""

from __future__ import annotations

import tomllib

import pytest

from fairlead.errors import ConfigError
from fairlead.feeds.settings import EXAMPLE, FeedSettings, advice, check, parse

SHORT = """
[feed]
stream = "prices"
name = "a"
[source]
kind = "generator"
[convert]
converter = "itch"
"""


def good(text: str = SHORT, **overrides: str) -> FeedSettings:
    settings = parse(text, "feed.toml", {name.replace("__", "."): value for name, value in overrides.items()})
    check(settings)
    return settings


def test_little_is_needed_and_the_defaults_are_those_of_the_specification() -> None:
    settings = good()
    assert settings.source == ({"kind": "generator"},)
    assert (settings.feed.threshold, settings.feed.heartbeat_s, settings.feed.lead) == (8, 0.2, 16)
    assert (settings.feed.revise_s, settings.feed.lag_max) == (0.05, 10_000)
    assert (settings.retain.messages, settings.retain.seconds) == (100_000, 60.0)
    assert settings.administration.url == "fairlead://127.0.0.1:7403"
    assert advice(settings) == []


def test_the_example_is_a_whole_file() -> None:
    settings = good(EXAMPLE)
    assert settings.feed.stream == "prices.emea"
    assert set(tomllib.loads(EXAMPLE)) <= set(FeedSettings.__struct_fields__)


def test_several_sources_are_several_tables() -> None:
    text = SHORT.replace("[source]", "[[source]]") + '\n[[source]]\nkind = "file"\n'
    assert [one["kind"] for one in good(text).source] == ["generator", "file"]


def test_the_command_line_wins() -> None:
    settings = good(feed__name="b", listen__address="127.0.0.1:7501", feed__threshold="-2", retain__seconds="0.5")
    assert (settings.feed.name, settings.listen.address) == ("b", "127.0.0.1:7501")
    assert (settings.feed.threshold, settings.retain.seconds) == (-2, 0.5)


def test_options_and_sources_can_be_set_too() -> None:
    settings = good(**{"convert.options.columns": '[["symbol", "string"]]', "source.rate": "10", "source.id": "DAY"})
    assert settings.convert.options == {"columns": [["symbol", "string"]]}
    assert settings.source[0] == {"kind": "generator", "rate": 10, "id": "DAY"}


def test_a_name_that_looks_like_a_number_stays_a_name() -> None:
    assert good(feed__name="17").feed.name == "17"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("[feeds]\nx = 1", r"there is no section \[feeds\]; did you mean `feed`\?"),
        ("[listen]\nadress = '127.0.0.1:1'", r"\[listen\] has no key `adress`; did you mean `address`\?"),
        ("[listen]\nheartbeat_s = 1", r"\[listen\] has no key `heartbeat_s`; it belongs under \[feed\]"),
        ("[retain]\nmessages = 'many'", r"retain.messages: expected `int`"),
        ("[retain]\nmessages = 0", r"retain.messages: expected `int` >= 1"),
        ("[listen]\naddress = 'unix:x'", r"\[listen\] address = 'unix:x': lines are TCP"),
        ("[listen]\naddress = 'here'", r"\[listen\] address: listen address 'here' has no port"),
        ("[listen]\ntls_key = 'k'", r"\[listen\] tls_certificate is not set"),
        ("[listen]\naddress = ':7500'", r"\[listen\] advertise is needed"),
        ("[listen]\naddress = '10.1.2.3:7500'", r"tls_certificate and tls_key, or say --insecure"),
        ("[listen]\nadvertise = 'host:0'", r"others need host and port"),
        ("[administration]\npassword = 'a'\npassword_file = 'b'", r"leave one out"),
        ("listen = 3", r"`listen` is a section"),
        ("threshold = 3", r"`threshold` belongs under \[feed\]"),
        ("x = [", r"is not valid TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(change: str, sentence: str) -> None:
    text = f"{SHORT}\n{change}" if change.startswith("[") else f"{change}\n{SHORT}"
    with pytest.raises(ConfigError, match=sentence):
        good(text)


@pytest.mark.parametrize("section", ["feed", "source", "convert"])
def test_what_is_missing_is_named(section: str) -> None:
    document = SHORT.replace(f"[{section}]", "[retain]").replace("kind", "seconds").replace('"generator"', "1")
    if section == "source":
        with pytest.raises(ConfigError, match=r"there is no section \[source\]"):
            good(document)
    else:
        with pytest.raises(ConfigError):
            good(document)
    with pytest.raises(ConfigError, match=r"\[feed\] name is not set"):
        good(SHORT.replace('name = "a"', ""))


def test_snapshots_need_keys() -> None:
    with pytest.raises(ConfigError, match="keys"):
        good(feed__snapshots="true")
    assert good(feed__snapshots="true", convert__keys='["symbol"]').convert.keys == ("symbol",)


def test_an_insecure_address_works_and_is_told_of() -> None:
    settings = good(listen__address="10.1.2.3:7500", listen__insecure="true")
    assert "in the clear" in advice(settings)[0]


def test_a_topic_is_told_of() -> None:
    assert "holes" in advice(good(output__topic="prices"))[0]


@pytest.mark.parametrize("given", ["listen", "listen.", ".x"])
def test_a_setting_on_the_command_line_has_section_and_key(given: str) -> None:
    with pytest.raises(ConfigError):
        parse(SHORT, "feed.toml", {given: "1"})
