"""Backup of a running journal, restore, and looking into one: `check` and `dump`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.journal.edge.backup import restore
from fairlead.journal.edge.inspect import check, dump
from fairlead.journal.edge.journal import Journal
from tests.journal.test_journal import checkpoint, open_journal, store


def filled(directory: Path) -> Journal:
    journal, _ = open_journal(directory)
    for order in range(1, 40):
        journal.append(8, *store(order))
        journal.flush()
        if order == 20:
            checkpoint(journal)
    return journal


def test_a_copy_of_a_running_journal_is_whole(tmp_path: Path) -> None:
    journal = filled(tmp_path / "mm" / "journal")
    (tmp_path / "mm" / "large").mkdir()
    (tmp_path / "mm" / "large" / "7").write_bytes(b"side file")
    copy = journal.backup(tmp_path / "copy", extra=tmp_path / "mm" / "large")
    for order in range(40, 80):  # it goes on meanwhile
        journal.append(8, *store(order))
        journal.flush()
    facts = copy.wait(30)
    assert facts["safe"] == 39
    journal.close()
    restored = restore(tmp_path / "copy", tmp_path / "new")
    assert restored["store"] == journal.store_id.hex()
    assert (tmp_path / "new" / "large" / "7").read_bytes() == b"side file"
    again, recovery = open_journal(tmp_path / "new" / "journal")
    assert dict(recovery.blobs()) == {b"state": b"as of 20"}
    entries = [row.facts.base for row in recovery.entries()]
    behind = [record.index for record in recovery.records()]
    assert entries + behind == list(range(1, 40))
    assert recovery.damage == []
    again.close()


def test_a_changed_copy_is_not_restored(tmp_path: Path) -> None:
    journal = filled(tmp_path / "journal")
    journal.backup(tmp_path / "copy").wait(30)
    journal.close()
    with pytest.raises(ConfigError, match="no manifest"):
        restore(tmp_path / "journal", tmp_path / "new")
    segment = tmp_path / "copy" / "journal" / "00000001.seg"
    data = bytearray(segment.read_bytes())
    data[700] ^= 1
    segment.write_bytes(data)
    with pytest.raises(ConfigError, match="not what was backed up"):
        restore(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.requirement("CLU-114")
def test_check_and_dump_work_beside_a_running_journal(tmp_path: Path) -> None:
    journal = filled(tmp_path / "mm" / "journal")
    (summary,) = check(tmp_path / "mm")
    assert summary["level"] == "info"
    assert "39 records" in summary["text"]
    assert "in use" in summary["text"]
    lines = list(dump(tmp_path / "mm", {8: "STORE"}))
    assert [line["index"] for line in lines] == list(range(1, 40))
    assert {line["kind"] for line in lines} == {"STORE"}
    journal.close()
    path = tmp_path / "mm" / "journal" / "00000001.seg"
    data = bytearray(path.read_bytes())
    data[lines[3]["offset"] + 60] ^= 8
    path.write_bytes(data)
    finding, summary = check(tmp_path / "mm" / "journal")
    assert (finding["level"], finding["segment"], finding["offset"], finding["first"]) == (
        "damage",
        1,
        lines[3]["offset"],
        4,
    )
    assert "in use" not in summary["text"]
    with pytest.raises(ConfigError, match="no journal"):
        list(check(tmp_path))
