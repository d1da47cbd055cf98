"""What a stream administration is told by the settings of its server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.edge.secret import server_secret
from fairlead.errors import ConfigError
from fairlead.feeds.words import Relation
from fairlead.runtime import config as configuring
from fairlead.runtime.control import Start
from fairlead.runtime.streams_child import settings_of
from fairlead.security import inside


def start(folder: Path, **settings: Any) -> Start:
    config = configuring.load(None, {}, {"server.data": str(folder), "streams.serve": True, **settings})
    store = folder / "store"
    store.mkdir(exist_ok=True)
    return Start("streams", 0, config, store, 1, 5, 1, "active", {}, ["fairlead://127.0.0.1:41000"])


def test_it_logs_in_as_itself_and_has_its_file_in_the_data_directory(tmp_path: Path) -> None:
    begun = start(tmp_path)
    found = settings_of(begun)
    assert (found.own, found.user, found.file) == (
        "fairlead://127.0.0.1:41000",
        inside.STREAMS,
        tmp_path / "streams.state",
    )
    assert inside.is_own(server_secret(begun.store), found.user, found.password)
    assert found.rules.is_open


def test_its_settings_reach_it(tmp_path: Path) -> None:
    relations = ["prices: b equivalent a offset 3"]
    wanted = {"streams.token_life_s": 20, "streams.grace_s": 1, "streams.reports_missed": 9}
    options = settings_of(start(tmp_path, **wanted, **{"streams.relations": relations})).options
    assert (options.token_life_s, options.grace_s, options.reports_missed) == (20.0, 1.0, 9)
    assert options.relations == {"prices": {"b": (Relation(kind="equivalent", of="a", offset=3),)}}


def test_relations_that_are_none_stop_the_server_before_it_starts(tmp_path: Path) -> None:
    config = configuring.load(None, {}, {"server.data": str(tmp_path), "streams.relations": ["b is like a"]})
    with pytest.raises(ConfigError, match=r"streams\.relations"):
        configuring.check(config)
