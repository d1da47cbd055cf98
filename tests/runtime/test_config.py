from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.options import Options
from fairlead.cluster.parameters import Parameters
from fairlead.errors import ConfigError
from fairlead.runtime import config as configuration
from fairlead.runtime.config import (
    advice,
    anonymous_allowed,
    check,
    from_wire,
    load,
    managers_count,
    to_wire,
    users_path,
)
from fairlead.runtime.settings import MANAGERS_MAX, SECTIONS, SETTINGS, Config, Destination, value_of


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fairlead.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(*arguments: object, **named: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **named)  # type: ignore[arg-type]
    return str(caught.value)


def unchecked(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check(load(overrides={name.replace("__", "."): value for name, value in values.items()}))
    return str(caught.value)


def test_the_defaults_are_good_and_come_from_nowhere() -> None:
    config = load()
    check(config)
    assert config == Config()
    assert config.origins == {}


def test_the_defaults_of_the_specification() -> None:
    config = load()
    assert (config.fairness.messages_per_round, config.fairness.limit, config.fairness.resume_below) == (1, 1000, 100)
    assert (config.limits.slow_client_messages, config.limits.slow_client_bytes) == (100_000, 64 << 20)
    assert (config.limits.header_max, config.limits.handshake_s, config.limits.ready_s) == (64 << 10, 30, 10)
    assert config.server.listen == ["127.0.0.1:7400"]


def test_every_setting_has_a_sentence_and_a_variable_of_its_own() -> None:
    assert all(setting.description.endswith(".") for setting in SETTINGS.values())
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)
    assert set(SECTIONS) == set(Config.__struct_fields__) - {"origins", "destinations", "agent"}


def test_the_later_place_wins_and_is_remembered(tmp_path: Path) -> None:
    path = written(tmp_path, '[server]\nmanagers = 2\nbacklog = 5\nlisten = ["unix:/a"]\n[limits]\npreface_s = 3\n')
    environ = {"FAIRLEAD_SERVER_MANAGERS": "3", "FAIRLEAD_SERVER_LISTEN": "unix:/b, [::1]:9"}
    config = load(path, environ, {"server.managers": 4, "log.level": None})
    assert (config.server.managers, config.server.backlog, config.limits.preface_s) == (4, 5, 3.0)
    assert config.server.listen == ["unix:/b", "[::1]:9"]
    assert config.origins == {
        "server.managers": "command line",
        "server.backlog": str(path),
        "server.listen": "FAIRLEAD_SERVER_LISTEN",
        "limits.preface_s": str(path),
    }


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("FAIRLEAD_SERVER_INSECURE", "yes", True),
        ("FAIRLEAD_SERVER_INSECURE", "off", False),
        ("FAIRLEAD_SERVER_INSECURE", "1", True),
        ("FAIRLEAD_SECURITY_ALLOW_ANONYMOUS", "false", False),
        ("FAIRLEAD_LIMITS_BODY_MAX", "1_048_576", 1 << 20),
        ("FAIRLEAD_LIMITS_FROZEN_S", "0.5", 0.5),
        ("FAIRLEAD_LOG_LEVEL", "debug", "debug"),
        ("FAIRLEAD_SERVER_DATA", "123", "123"),
    ],
)
def test_a_variable_is_read_by_the_type_of_its_setting(variable: str, text: str, value: object) -> None:
    config = load(environ={variable: text})
    (name,) = config.origins
    assert value_of(config, SETTINGS[name]) == value


def test_variables_of_others_are_left_alone() -> None:
    assert load(environ={"FAIRLEAD_PURE": "1", "FAIRLEAD_URL": "x", "FAIRLEAD_SERVER": "y", "HOME": "/x"}) == Config()


def test_the_data_directory_follows_xdg_unless_it_is_set() -> None:
    assert load(environ={"XDG_DATA_HOME": "/x"}).server.data == "/x/fairlead"
    assert load(environ={"XDG_DATA_HOME": "/x", "FAIRLEAD_SERVER_DATA": "/y"}).server.data == "/y"


def test_the_usual_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "fairlead").mkdir()
    written(tmp_path / "fairlead", "[server]\nmanagers = 7\n")
    assert load(environ={"XDG_CONFIG_HOME": str(tmp_path)}).server.managers == 7
    assert load(environ={"HOME": str(tmp_path)}).server.managers == 0
    named = written(tmp_path, "[server]\nmanagers = 8\n")
    assert load(environ={"XDG_CONFIG_HOME": str(tmp_path), "FAIRLEAD_CONFIG": str(named)}).server.managers == 8


def test_an_unknown_key_is_refused_by_name_with_the_nearest_known_one(tmp_path: Path) -> None:
    assert "`manager`; did you mean `managers`?" in refused(written(tmp_path, "[server]\nmanager = 1\n"))
    assert "[sever]; did you mean `server`?" in refused(written(tmp_path, "[sever]\nmanagers = 1\n"))
    assert "belongs under [server]" in refused(written(tmp_path, "[limits]\nmanagers = 1\n"))
    assert "belongs under [server]" in refused(written(tmp_path, "managers = 1\n"))
    assert "write [server]" in refused(written(tmp_path, "server = 1\n"))
    assert "known are level, file" in refused(written(tmp_path, "[log]\nxyzzy = 1\n"))
    assert "no section [origins]" in refused(written(tmp_path, "[origins]\na = 'b'\n"))
    assert "did you mean `level`?" in refused(environ={"FAIRLEAD_LOG_LEVL": "x"})
    assert "did you mean `level`?" in refused(overrides={"log.levl": "x"})
    assert "no section [lag]" in refused(overrides={"lag.level": "x"})


def test_a_value_of_the_wrong_kind_says_where_and_what(tmp_path: Path) -> None:
    assert "[server] managers = 'x'" in refused(environ={"FAIRLEAD_SERVER_MANAGERS": "x"})
    assert "managers = -1: expected `int` >= 0" in refused(overrides={"server.managers": -1})
    assert "one of debug, info, warning, error" in refused(overrides={"log.level": "loud"})
    # The file has types of its own, so text is no number there.
    assert "expected `int`, got `str`" in refused(written(tmp_path, '[server]\nmanagers = "4"\n'))


def test_a_file_that_cannot_be_read_is_one_clear_sentence(tmp_path: Path) -> None:
    assert "there is no configuration file" in refused(tmp_path / "none.toml")
    assert "not valid TOML" in refused(written(tmp_path, "[server\n"))
    assert "cannot read" in refused(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "cannot read" in refused(tmp_path / "bytes.toml")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "server.managers": st.integers(0, MANAGERS_MAX),
            "server.listen": st.lists(st.text(), min_size=1),
            "limits.parked_s": st.floats(0, 1e9),
            "security.allow_anonymous": st.booleans(),
            "log.file": st.text(),
        },
    )
)
def test_a_configuration_survives_the_way_to_a_child(overrides: dict[str, object]) -> None:
    config = load(overrides=overrides)
    assert from_wire(json.loads(json.dumps(to_wire(config)))) == config


def test_a_configuration_of_another_version_is_refused() -> None:
    wire = to_wire(load())
    wire["server"]["surprise"] = 1
    with pytest.raises(ConfigError, match="surprise"):
        from_wire(wire)


def test_frozen_means_frozen() -> None:
    with pytest.raises(AttributeError):
        load().server.managers = 3  # type: ignore[misc]


def test_listening_beyond_this_host_needs_users_or_a_word(tmp_path: Path) -> None:
    data = str(tmp_path)
    assert "fairlead user add" in unchecked(server__listen=["0.0.0.0:7400"], server__data=data)
    assert "fairlead user add" in unchecked(server__listen=["unix:/x", "[::]:7400"], server__data=data)
    insecure = load(overrides={"server.listen": [":1"], "server.insecure": True, "server.data": data})
    check(insecure)
    assert len(advice(insecure)) == 2
    (tmp_path / "users.toml").touch()
    with_users = load(overrides={"server.listen": [":1"], "server.data": data})
    check(with_users)
    assert "in the clear" in advice(with_users)[0]
    assert "--insecure" in unchecked(server__listen=[":1"], server__data=data, security__allow_anonymous=True)


def test_who_may_come_without_a_name(tmp_path: Path) -> None:
    config = load(overrides={"server.data": str(tmp_path)})
    assert users_path(config) is None
    assert anonymous_allowed(config)
    (tmp_path / "users.toml").touch()
    assert users_path(config) == tmp_path / "users.toml"
    assert not anonymous_allowed(config)
    assert anonymous_allowed(
        msgspec.structs.replace(config, security=msgspec.structs.replace(config.security, allow_anonymous=True))
    )


def test_a_users_file_that_is_named_has_to_exist(tmp_path: Path) -> None:
    assert "there is no users file" in unchecked(security__users=str(tmp_path / "none"))


def test_tls_needs_both_halves_and_both_files(tmp_path: Path) -> None:
    here = tmp_path / "cert.pem"
    here.touch()
    assert "tls_key is not set" in unchecked(security__tls_certificate=str(here))
    assert "tls_certificate is not set" in unchecked(security__tls_key=str(here))
    assert "no file" in unchecked(security__tls_certificate=str(here), security__tls_key=str(tmp_path / "no"))
    check(load(overrides={"security.tls_certificate": str(here), "security.tls_key": str(here)}))
    secure = {"server.listen": [":1"], "server.insecure": True, "security.tls_certificate": str(here)}
    assert len(advice(load(overrides=secure))) == 1


def test_tunnels_beyond_this_host_need_protection(tmp_path: Path) -> None:
    here = tmp_path / "secret"
    here.touch()
    data, file = str(tmp_path), str(here)
    assert "fairlead user add" in unchecked(tunnel__gateways=["gw.example.org:7401"], server__data=data)
    assert "write HOST:PORT" in unchecked(tunnel__gateways=["unix:/x"], server__data=data)
    assert "HOST:PORT" in unchecked(tunnel__gateways=["gw.example.org"], server__data=data)
    assert "tls_certificate" in unchecked(tunnel__link_listen=":7401")
    tls = {"security__tls_certificate": file, "security__tls_key": file}
    assert "fairlead node secret" in unchecked(tunnel__link_listen=":7401", **tls)
    assert "enabled = true" in unchecked(tunnel__link_listen="127.0.0.1:7401", tunnel__enabled=False)
    assert "no file" in unchecked(tunnel__link_secret_file=str(tmp_path / "no"))
    here.chmod(0o644)
    assert "chmod 600" in unchecked(tunnel__link_secret_file=file)
    assert "gateway_ca" in unchecked(tunnel__gateway_ca=str(tmp_path / "no"))
    check(load(overrides={"tunnel.link_listen": "127.0.0.1:7401"}))
    (tmp_path / "users.toml").touch()
    check(load(overrides={"tunnel.gateways": ["gw.example.org:7401"], "server.data": data}))
    with pytest.raises(ConfigError, match="name"):
        load(overrides={"tunnel.name": "a/b"})


def test_values_that_cannot_work_together_are_refused() -> None:
    assert "resume_below" in unchecked(fairness__limit=10, fairness__resume_below=11)
    assert "power of two" in unchecked(fairness__queue_bytes=100_000)
    assert "arena_bytes" in unchecked(limits__body_max=1 << 30)
    assert "arena_step_bytes" in unchecked(store__arena_step_bytes=1 << 30)
    assert "107 bytes" in unchecked(server__listen=["unix:/" + "x" * 200])
    assert "HOST:PORT" in unchecked(server__listen=["nonsense"])


def test_managers_follow_the_cores_within_what_the_store_can_hold() -> None:
    assert managers_count(load(), 6) == 6
    assert managers_count(load(), 500) == MANAGERS_MAX
    assert managers_count(load(), 0) == 1
    assert managers_count(load(overrides={"server.managers": 2}), 6) == 2


def test_the_public_names_exist() -> None:
    assert all(hasattr(configuration, name) for name in configuration.__all__)


def test_destinations_are_tables_with_their_parameters(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[destinations."orders.eu"]\nmax_messages = 5\n[destinations.news]\nkind = "topic"\nretain_s = 3600\n',
    )
    config = load(path)
    check(config)
    orders, news = config.destinations["orders.eu"], config.destinations["news"]
    assert (orders.kind, orders.parameters()) == ("queue", Parameters(max_messages=5))
    assert (news.kind, news.parameters()) == ("topic", Parameters(retain_s=3600.0))
    assert config.origins == {"destinations.orders.eu": str(path), "destinations.news": str(path)}
    assert from_wire(json.loads(json.dumps(to_wire(config)))) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[destinations.q]\nmax_mesages = 5\n", "did you mean `max_messages`?"),
        ("[destinations.orders.eu]\nmax_messages = 5\n", 'in quotes: [destinations."orders.eu"]'),
        ('[destinations.q]\nkind = "stack"\n', "[destinations.q]: "),
        ("[destinations.q]\nmax_messages = true\n", "[destinations.q]: "),
        ("[destinations._mine]\n", "underscore"),
        ('[destinations."a b"]\n', "cannot be a name"),
        ("[destinations]\nq = 5\n", "[destinations.NAME]"),
        ("destinations = 5\n", "[destinations.NAME]"),
        ("[destination.q]\n", "did you mean `destinations`?"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said.replace("in quotes", "into quotes") in refused(written(tmp_path, text))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"messages__low_water_commands": 1000}, "low_water_commands"),
        ({"messages__low_water_bytes": 9 << 20}, "low_water_bytes"),
        ({"messages__large_bytes": 4096}, "fragment_bytes"),
        ({"messages__quota_bytes": 1 << 20}, "four segments"),
    ],
)
def test_settings_of_messages_that_contradict_each_other(values: dict[str, object], said: str) -> None:
    assert said in unchecked(**values)


def test_the_message_managers_own_defaults_are_those_of_the_reference() -> None:
    settings, options = Config().messages, Options()
    for field in dataclasses.fields(Options):
        if field.name == "directory":  # a section of its own, handed on as it is
            continue
        assert getattr(settings, field.name) == getattr(options, field.name), field.name


def test_more_destinations_than_a_packet_holds_are_refused() -> None:
    many = {f"queue.number.{number}": Destination(max_messages=5) for number in range(2000)}
    with pytest.raises(ConfigError, match="admin create"):
        check(msgspec.structs.replace(Config(), destinations=many))


def test_client_certificates_need_a_signer_and_a_certificate_of_the_server(tmp_path: Path) -> None:
    here = str(written(tmp_path, ""))
    tls = {"security__tls_certificate": here, "security__tls_key": here}
    assert "needs tls_certificate" in unchecked(security__client_certificates="ask")
    assert "needs tls_client_ca" in unchecked(security__client_certificates="require", **tls)
    assert "do nothing" in unchecked(security__tls_client_ca=here, **tls)
    assert "no file" in unchecked(security__tls_crl=str(tmp_path / "none"), **tls)
    assert "one of off, ask, require" in unchecked(security__client_certificates="maybe")
    assert "links" in unchecked(links__tls_certificate=here)
    assert "link_key" in unchecked(tunnel__link_certificate=here)
    assert "over TLS" in unchecked(tunnel__link_ca=here)


def test_tokens_need_an_audience_and_keys_that_nobody_can_put_in(tmp_path: Path) -> None:
    here = str(written(tmp_path, ""))
    assert "audience is not set" in unchecked(tokens__keys=here)
    assert "no file" in unchecked(tokens__keys=str(tmp_path / "none"), tokens__audience=["a"])
    assert "write https://" in unchecked(tokens__keys="http://example.org/jwks", tokens__audience=["a"])
    assert "without a login" in unchecked(tokens__keys="https://a:b@example.org/jwks", tokens__audience=["a"])
    assert "algorithms is empty" in unchecked(tokens__keys=here, tokens__audience=["a"], tokens__algorithms=[])
    assert "invalid enum" in unchecked(tokens__algorithms=["none"])
    for url in ("https://example.org/jwks", "http://127.0.0.1:1/jwks", "http://localhost/jwks", here):
        check(load(overrides={"tokens.keys": url, "tokens.audience": ["*"]}))


def test_who_can_log_in_otherwise_need_not_be_let_in_without_a_name(tmp_path: Path) -> None:
    here = str(written(tmp_path, ""))
    data = {"server.data": str(tmp_path / "data")}
    assert anonymous_allowed(load(overrides=data))
    assert not anonymous_allowed(load(overrides=data | {"tokens.keys": here}))
    assert not anonymous_allowed(load(overrides=data | {"security.client_certificates": "require"}))
    assert anonymous_allowed(load(overrides=data | {"security.client_certificates": "ask"}))
    (tmp_path / "data").mkdir()
    configuration.token_keys_path(load(overrides=data)).write_text("{}")
    assert not anonymous_allowed(load(overrides=data))
