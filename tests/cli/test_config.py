from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.config import config_group
from fairlead.runtime.settings import SETTINGS


@pytest.fixture(autouse=True)
def _nothing_set_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("FAIRLEAD_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(config_group, arguments, env=env)


def test_show_names_every_setting_and_its_origin() -> None:
    result = run("show", FAIRLEAD_SERVER_MANAGERS="3")
    assert result.exit_code == 0
    assert all(name in result.output for name in SETTINGS)
    assert "FAIRLEAD_SERVER_MANAGERS" in result.output


def test_show_for_programs(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("[fairness]\nlimit = 500\n", encoding="utf-8")
    report = json.loads(run("show", "--json", "--config", str(file)).output)
    assert report["fairness.limit"] == {"value": 500, "origin": str(file)}
    assert report["fairness.resume_below"] == {"value": 100, "origin": "default"}
    changed = json.loads(run("show", "--json", "--changed", "--config", str(file)).output)
    assert changed.keys() == {"fairness.limit", "server.data"}


def test_a_mistake_is_one_sentence_and_exit_code_one(tmp_path: Path) -> None:
    for command in ("show", "check"):
        result = run(command, "--config", str(tmp_path / "none.toml"))
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: there is no configuration file")


def test_check_judges() -> None:
    assert run("check").output == "The configuration is good.\n"
    refused = run("check", "--json", FAIRLEAD_SERVER_LISTEN="0.0.0.0:7400")
    assert refused.exit_code == 1
    assert "fairlead user add" in json.loads(refused.output)["problem"]
    noted = run("check", FAIRLEAD_SERVER_LISTEN="0.0.0.0:7400", FAIRLEAD_SERVER_INSECURE="yes")
    assert noted.exit_code == 0
    assert "Note: anybody" in noted.output


def test_check_reads_the_users_file_too(tmp_path: Path) -> None:
    (tmp_path / "fairlead").mkdir()
    (tmp_path / "fairlead" / "users.toml").write_text("[users", encoding="utf-8")
    result = run("check")
    assert result.exit_code == 1
    assert "not valid TOML" in result.stderr
