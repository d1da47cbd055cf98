"""Three files: every key has one place, and whoever puts it elsewhere is told where."""

from __future__ import annotations

import hashlib
import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.configuration.checks import (
    check_cluster,
    check_node,
    check_settings,
    electorate_warning,
    voters_warning,
)
from fairlead.cluster.configuration.documents import (
    canonical,
    changed_settings,
    essential_digest,
    from_canonical,
    parse_cluster,
    parse_node,
    parse_settings,
    to_toml,
)
from fairlead.cluster.configuration.types import ClusterConfig, ClusterSettings, GroupSpec, NodeConfig
from fairlead.errors import ConfigError
from fairlead.runtime.settings import Messages, Server

CLUSTER = 'name = "x"\ncarrier = "tcp"\nvoters = ["c1", "a1", "a2"]\n'
SETTINGS = '[[groups]]\nname = "a"\nmembers = ["a1", "a2"]\n'
NODE = 'name = "a1"\nkind = "mm"\ndata = "data"\n[buses]\nmain = "127.0.0.1:7404"\n'


def cluster(text: str = "") -> ClusterConfig:
    return parse_cluster(CLUSTER + text)


def settings(text: str = "") -> ClusterSettings:
    return parse_settings(text + SETTINGS)


def node(**changes: object) -> NodeConfig:
    plain = tomllib.loads(NODE) | changes
    return parse_node(to_toml(NodeConfig(**{key: value for key, value in plain.items() if key != "extra"})))


# --- Reading ------------------------------------------------------------------------------------------------------
def test_the_files_as_an_administrator_writes_them() -> None:
    found = cluster('detection_s = 2.0\n[[buses]]\nname = "main"\n')
    assert found.detection_s == 2.0
    assert found.lease_s == 3.0
    assert settings("min_copies = 1\n").group("a") == GroupSpec(name="a", members=["a1", "a2"])
    assert parse_node(NODE + '[server]\nlisten = ["127.0.0.1:0"]\n').server == Server(listen=["127.0.0.1:0"])


@pytest.mark.requirement("CLU-187")
@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (
            parse_cluster,
            CLUSTER + "min_copies = 2\n",
            "`min_copies` does not belong in cluster.toml but in settings.toml",
        ),
        (parse_cluster, CLUSTER + 'kind = "mm"\n', "not belong in cluster.toml but in node.toml"),
        (parse_settings, "lease_s = 2.0\n" + SETTINGS, "does not belong in settings.toml but in cluster.toml"),
        (parse_settings, SETTINGS + "[messages]\nsite_id = 1\n", "say `site_id` in cluster.toml"),
        (parse_settings, SETTINGS + "[messages]\nenabled = false\n", "kind `mm`"),
        (parse_node, 'carrier = "tcp"\n' + NODE, "does not belong in node.toml but in cluster.toml"),
        (parse_node, "removal_s = 2.0\n" + NODE, "does not belong in node.toml but in settings.toml"),
        (parse_node, NODE + '[server]\ndata = "x"\n', "say `data` at the top"),
        (parse_node, NODE + '[security]\nusers = "x"\n', "`users` of settings.toml"),
    ],
)
def test_a_key_in_the_wrong_file_is_told_where_it_belongs(parse: object, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)  # type: ignore[operator]
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (parse_cluster, CLUSTER + "leas_s = 2.0\n", "did you mean `lease_s`?"),
        (parse_cluster, CLUSTER + '[[buses]]\nname = "m"\nmulticasts = "x"\n', "did you mean `multicast`?"),
        (parse_settings, SETTINGS + 'member = ["x"]\n', "did you mean `members`?"),
        (parse_settings, SETTINGS + "[messages]\ncache_byte = 1\n", "did you mean `cache_bytes`?"),
        (parse_node, NODE + "[server]\nlisten_on = 1\n", "did you mean `listen`?"),
        (parse_cluster, "name = 'x'\n", "voters"),
        (parse_cluster, CLUSTER.replace("tcp", "pigeon"), "carrier"),
        (parse_cluster, CLUSTER.replace('"x"', '"x y"'), "name"),
        (parse_cluster, "name = ", "not valid TOML"),
    ],
)
def test_a_mistake_is_named(parse: object, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)  # type: ignore[operator]
    assert sentence in str(error.value)


def test_the_essential_digest_is_that_of_sha256sum() -> None:
    assert essential_digest(b"name") == hashlib.sha256(b"name").hexdigest()


texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@given(users=texts, copies=st.integers(1, 7), cache=st.integers(1 << 20, 1 << 40), pins=st.lists(texts, max_size=3))
def test_what_is_written_is_read_again_and_has_the_same_digest(
    users: str, copies: int, cache: int, pins: list[str]
) -> None:
    made = ClusterSettings(
        groups=[GroupSpec(name="a", members=["a1"], pins=pins), GroupSpec(name="b")],
        users=users,
        min_copies=copies,
        messages=Messages(cache_bytes=cache),
        predecessor="ab" * 32,
        revision=7,
    )
    read = parse_settings(to_toml(made, "two\nlines"))
    assert read == made
    assert canonical(read) == canonical(made)
    assert from_canonical(canonical(made)) == made


def test_comments_order_and_defaults_do_not_change_the_digest_of_settings() -> None:
    one = parse_settings("# hello\nmin_copies = 2\nremoval_s = 7.0\n" + SETTINGS)
    other = parse_settings("removal_s = 7.0\n" + SETTINGS)
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"groups":[{"name":"a"}],"x":1}', b"\xff", b"[" * 100_000])
def test_settings_that_are_none_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        from_canonical(data)


def test_a_change_names_its_predecessor() -> None:
    before = settings()
    after = changed_settings(before, {"messages.cache_bytes": 1 << 21, "min_copies": 1})
    assert after.revision == before.revision + 1
    assert after.predecessor == hashlib.sha256(canonical(before)).hexdigest()
    assert after.messages.cache_bytes == 1 << 21


# --- Together -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('form = "a"\n[[buses]]\nname = "main"\n[[buses]]\nname = "main"\n', "named 2 times"),
        ('[[buses]]\nname = "one"\n[[buses]]\nname = "two"\n', "has one bus, not 2"),
    ],
)
def test_a_cluster_that_cannot_work(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_cluster(cluster(text))


def test_multicast_needs_a_group_address() -> None:
    with pytest.raises(ConfigError, match="needs a multicast address"):
        check_cluster(parse_cluster('name = "x"\nvoters = ["a"]\n'))
    check_cluster(parse_cluster('name = "x"\nvoters = ["a"]\n[[buses]]\nname = "main"\nmulticast = "239.255.74.1"\n'))


@pytest.mark.requirement("CLU-87")
def test_a_name_is_pinned_to_one_group() -> None:
    with pytest.raises(ConfigError, match="orders is pinned to 2 groups"):
        check_settings(parse_settings('[[groups]]\nname="a"\npins=["orders"]\n[[groups]]\nname="b"\npins=["orders"]\n'))


BUSES = '[[buses]]\nname = "one"\n[[buses]]\nname = "two"\n'


@pytest.mark.requirement("CLU-46")
@pytest.mark.requirement("CLU-48")
@pytest.mark.parametrize(
    ("form", "kind", "on", "sentence"),
    [
        ("a", "cm", "one two", ""),
        ("a", "cm", "one", "is not on two"),
        ("a", "mm", "two", ""),
        ("a", "mm", "one two", "exactly one bus"),
        ("b", "mm", "one", "is not on two"),
        ("b", "mm", "one two", ""),
        ("b", "cm", "one", ""),
        ("b", "cm", "one two", "exactly one bus"),
        ("b", "witness", "one two", ""),
        ("b", "mm", "", "is on no bus"),
        ("b", "cm", "three", "there is no bus three"),
    ],
)
def test_attachments_fit_the_form(form: str, kind: str, on: str, sentence: str) -> None:
    shared = cluster(f'form = "{form}"\n{BUSES}')
    found = node(kind=kind, name="n1", buses=dict.fromkeys(on.split(), "127.0.0.1:1"))
    if sentence:
        with pytest.raises(ConfigError, match=sentence):
            check_node(found, shared, settings())
    else:
        check_node(found, shared, settings())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "a2", "kind": "cm"}, "settings.toml names a2 as a member of a"),
        ({"groups": ["b"]}, "there is no group b"),
        ({"kind": "cm", "name": "c1", "groups": ["a"]}, "only a node of kind `mm` hosts groups"),
        ({"seeds": {"two": ["127.0.0.1:2"]}}, "is not on it"),
    ],
)
def test_a_node_that_does_not_fit(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_node(node(**changes), cluster(), settings())


@pytest.mark.requirement("CLU-207")
@pytest.mark.parametrize("address", ["10.0.0.1:7404", "0.0.0.0:7404", "some-host:7404", "[2001:db8::1]:7404"])
def test_a_bus_others_can_reach_needs_a_secret(address: str) -> None:
    with pytest.raises(ConfigError, match="anybody on the network could join"):
        check_node(node(buses={"main": address}), cluster(), settings())
    check_node(node(buses={"main": address}, secret_file="secret"), cluster(), settings())
    check_node(node(buses={"main": "[::1]:7404"}), cluster(), settings())


@pytest.mark.requirement("CLU-147")
@pytest.mark.parametrize(
    ("machines", "sentence"),
    [
        ({"c1": "x", "a1": "x", "c2": "y", "a2": "y"}, "2 of 4 votes are on x"),
        ({"c1": "x", "a1": "x", "c2": "y", "a2": "y", "w1": "z"}, ""),
        ({"c1": "x", "a1": "y", "a2": "z"}, ""),
        ({"c1": "x", "a1": "x", "a2": "z"}, "2 of 3 votes are on x"),
        ({"c1": "x", "a1": "x", "a2": "x"}, "all 3 votes are on one machine"),
        ({"a1": "x"}, "there is one vote"),
        ({}, ""),
    ],
)
def test_an_electorate_that_one_machine_can_take_away_is_pointed_out(machines: dict[str, str], sentence: str) -> None:
    found = electorate_warning(machines)
    assert (sentence in found) if sentence else not found


def test_an_even_electorate_is_pointed_out() -> None:
    assert not voters_warning(cluster(), settings())
    assert "make them odd" in voters_warning(parse_cluster('name="x"\nvoters=["a","b"]'), settings())


def test_certificates_of_nodes_are_whole_and_for_tcp() -> None:
    whole = {"tls_certificate": "a.pem", "tls_key": "a.key", "tls_ca": "ca.pem"}
    with pytest.raises(ConfigError, match="tls_ca is not set"):
        check_node(node(**(whole | {"tls_ca": ""})), cluster(), settings())
    with pytest.raises(ConfigError, match="multicast is not encrypted"):
        check_node(node(**whole), msgspec.structs.replace(cluster(), carrier="udp"), settings())
    check_node(node(**whole), msgspec.structs.replace(cluster(), carrier="tcp"), settings())
