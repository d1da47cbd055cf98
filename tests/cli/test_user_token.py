"""`fairlead user token-key`, `token`, and users who log in without a password."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.user import user_group
from fairlead.security import issuing, users
from fairlead.security.keysets import read_keys
from fairlead.security.tokens import Terms, identity_of

TERMS = Terms(issuing.ISSUER, (issuing.AUDIENCE,), ("HS256",), tenant_claim="tenant")


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(user_group, [*arguments, "--data", str(data)])


def test_a_token_is_good_for_whom_and_for_how_long_it_says(tmp_path: Path) -> None:
    assert run(tmp_path, "token-key").exit_code == 0
    file = tmp_path / "token-keys.json"
    assert file.stat().st_mode & 0o077 == 0
    result = run(tmp_path, "token", "ann", "--for", "2h", "--group", "a", "--group", "b", "--tenant", "acme", "--json")
    said = json.loads(result.output)
    found = identity_of(said["token"], read_keys(file.read_bytes()), TERMS)
    assert found[:3] == ("ann", ("a", "b"), "acme")
    assert said["expires_s"] == pytest.approx(time.time() + 7200, abs=60)
    assert json.loads(run(tmp_path, "token-key", "--json").output) == {"ok": True, "file": str(file)}
    keys = read_keys(file.read_bytes())
    assert len(keys.keys) == 2
    assert identity_of(run(tmp_path, "token", "bob").output.strip(), keys, TERMS).user == "bob"


@pytest.mark.parametrize("life", ["", "1", "h", "0s", "-1h", "1.5h", "367d", "1w"])
def test_a_life_that_is_none_is_refused(tmp_path: Path, life: str) -> None:
    run(tmp_path, "token-key")
    assert run(tmp_path, "token", "ann", "--for", life).exit_code == 2


def test_what_cannot_be_is_said_in_one_sentence(tmp_path: Path) -> None:
    assert "token-key" in run(tmp_path, "token", "ann").output
    run(tmp_path, "token-key")
    assert run(tmp_path, "token", "_registrar").exit_code == 1
    assert run(tmp_path, "add", "bob", "--no-password", "--certificate", "bob.example.org").exit_code == 0
    entry = users.read(tmp_path / "users.toml").entries["bob"]
    assert (entry.hash, entry.certificates) == ("", ["bob.example.org"])
    assert not users.read(tmp_path / "users.toml").verify("bob", "")
    assert "there is no user ann" in run(tmp_path, "token", "ann").output
    assert run(tmp_path, "token", "ann", "--group", "ops").exit_code == 0
    assert run(tmp_path, "token", "bob").exit_code == 0
    (tmp_path / "token-keys.json").write_text("nonsense")
    assert "no key file" in run(tmp_path, "token", "bob").output


def test_a_certificate_is_one_users(tmp_path: Path) -> None:
    run(tmp_path, "add", "ann", "--no-password", "--certificate", "same")
    refused = run(tmp_path, "add", "bob", "--no-password", "--certificate", "same")
    assert refused.exit_code == 1
    assert "ann" in refused.output
    assert list(users.read(tmp_path / "users.toml").entries) == ["ann"]
