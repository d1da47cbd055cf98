"""What `.option(…)` may say (`fairlead.pipeline.options`)."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fairlead.errors import BadPattern, ConfigError
from fairlead.pipeline.options import Access, Reading, Writing

SECRET = "s3cret/&@"


def reading(**options: str) -> Reading:
    return Reading.parse({"destination": "orders"} | options)


def test_names_are_taken_whatever_their_case() -> None:
    found = Reading.parse({"DESTINATION": "orders", "maxrowspertrigger": "10_000", "FailOnDataLoss": "FALSE"})
    assert (found.destinations, found.rows_max, found.fail_on_data_loss) == (("orders",), 10_000, False)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("maxRowPerTrigger", "Did you mean maxRowsPerTrigger"),
        ("startingOffset", "Did you mean startingOffsets"),
        ("kafka.bootstrap.servers", "There are: url"),
        ("create", "no meaning for reading"),
    ],
)
def test_an_option_that_is_not_one_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        reading(**{name: "1"})


def test_what_spark_adds_is_let_through() -> None:
    assert Writing.parse({"checkpointLocation": "/x", "queryName": "q", "path": "orders"}).destination == "orders"
    assert Reading.parse({"path": "orders"}).destinations == ("orders",), 'load("orders")'


def test_several_destinations() -> None:
    assert reading(destination="orders, trades.>,orders").destinations == ("orders", "trades.>")
    assert reading(destination="regex:a{1,2}").destinations == ("regex:a{1,2}",)
    with pytest.raises(BadPattern):
        reading(destination="a..b")
    for nothing in ("", " , "):
        with pytest.raises(ConfigError, match="Say what to read"):
            reading(destination=nothing)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    for options in ({"url": "fairlead://me:s3cret%2F%26%40@host:7400"}, {"user": "me", "password": SECRET}):
        found = reading(**options)
        assert (found.access.user, found.access.secret()) == ("me", SECRET)
        for shown in (repr(found), str(found), found.access.url, repr(found.access.connect())):
            assert SECRET not in shown
            assert "s3cret" not in shown
        assert pickle.loads(pickle.dumps(found)) == found
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    assert reading(passwordFile=str(file)).access.secret() == SECRET
    with pytest.raises(ConfigError, match="exclude one another"):
        reading(passwordFile=str(file), password="x")
    with pytest.raises(ConfigError, match="cannot be read"):
        reading(passwordFile=str(tmp_path / "none")).access.connect()
    with pytest.raises(ConfigError, match="exclude one another"):
        reading(tokenFile=str(file), password="x")
    with pytest.raises(ConfigError, match="cannot be read"):
        reading(tokenFile=str(tmp_path / "none")).access.connect()
    connection = reading(tokenFile=str(file)).access.connect()
    assert connection._hello().token == SECRET
    file.write_text("another\n")
    assert pickle.loads(pickle.dumps(connection))._hello().token == "another"


def test_a_wrong_url_is_complained_about_without_its_password() -> None:
    for url in ("fairlead://me:s3cret@host:x", "http://me:s3cret@host", "me:s3cret@host"):
        with pytest.raises(ConfigError) as raised:
            reading(url=url)
        assert "s3cret" not in str(raised.value)


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TLS files"):
        Access(url="fairleads://host", tls_ca=str(tmp_path / "none.pem")).connect()


def test_where_to_begin() -> None:
    assert reading(startingOffsets="latest").starting == "latest"
    assert reading(startingOffsets='{"orders": 17, "x": "earliest"}').starting == {"orders": 17, "x": "earliest"}
    assert reading(startingTime="2026-01-01T00:00:00").starting_ms == 1_767_225_600_000
    assert reading(startingTime="2026-01-01T01:00:00+01:00").starting_ms == 1_767_225_600_000
    assert reading(startingTime="1767225600000").starting_ms == 1_767_225_600_000
    for wrong in ("first", "[1]", '{"a": -1}', '{"a": true}', '{"a": 1.5}', "{", "[" * 100_000):
        with pytest.raises(ConfigError, match="earliest, latest, or JSON"):
            reading(startingOffsets=wrong)
    with pytest.raises(ConfigError, match="ISO"):
        reading(startingTime="yesterday")
    with pytest.raises(ConfigError, match="exclude"):
        reading(startingTime="1", startingOffsets="latest")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slices", "0"),
        ("slices", "-1"),
        ("slices", "²"),
        ("maxRowsPerTrigger", "9" * 5000),
        ("batchBytes", "1"),
        ("patience", "nan"),
        ("patience", "-1"),
        ("failOnDataLoss", "perhaps"),
        ("mode", "peek"),
    ],
)
def test_values_out_of_bounds(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        reading(**{name: value})


def test_columns() -> None:
    assert reading(columns="body, order_number").columns == ("body", "order_number")
    assert reading().columns[0] == "destination"
    with pytest.raises(ConfigError, match="Did you mean order_number"):
        reading(columns="order_numbr")


def test_a_sink_has_one_destination() -> None:
    for several in ("a,b", "a.>"):
        with pytest.raises(ConfigError, match="one name"):
            Writing.parse({"destination": several})
    with pytest.raises(ConfigError, match="query"):
        Writing.parse({"destination": "a", "batch": "1"})
    with pytest.raises(ConfigError, match="queue or topic"):
        Writing.parse({"destination": "a", "kind": "stack"})
