from __future__ import annotations

import pytest

from fairlead.runtime import extensions


def test_every_source_has_its_module() -> None:
    assert all(
        name.startswith("fairlead.") and name.rpartition(".")[2].startswith("_") for name in extensions.expected()
    )


def test_the_sentence_says_which_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_PURE", "1")
    assert "twins in use" in extensions.sentence()
    monkeypatch.setenv("FAIRLEAD_PURE", "0")
    monkeypatch.setattr(extensions, "expected", lambda: ["fairlead.wire._missing", "fairlead.nowhere._missing"])
    assert "NOT COMPILED: fairlead.wire._missing, fairlead.nowhere._missing" in extensions.sentence()
    monkeypatch.setattr(extensions, "expected", list)
    assert "compiled extensions in use" in extensions.sentence()
