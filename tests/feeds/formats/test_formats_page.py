"""docs/feed-formats.md says what is so: its examples run, its tables are those of the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from fairlead.feeds.formats.itch import GIVES
from fairlead.feeds.formats.layouts import LAYOUTS, NOTICE
from fairlead.feeds.making import Maker
from fairlead.feeds.settings import ConvertSettings
from fairlead.feeds.sources.events import SourceBatch
from fairlead.feeds.sources.runs import rows_of, run_of
from fairlead.feeds.sources.settings import _KINDS, Common, UdpSource, read_sources
from fairlead.pipeline.converters import load

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "feed-formats.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_converters_of_the_page_make_records() -> None:
    module = ModuleType("my_feeds")
    for block in blocks("python"):
        exec(compile(block, "feed-formats.md", "exec"), module.__dict__)
    batch = SourceBatch("S", rows_of([run_of(1, [b"21.5", b"warm", b"-3"])]))
    made = Maker(load(module.thermometers)).make(batch)
    assert made.kinds.tolist() == [1, 3, 1]
    twice = Maker(load(module.scaled, {"by": 2.0})).make(SourceBatch("S", rows_of([run_of(1, [b"21.5"])])))
    assert twice.data[-8:] == b"\x00\x00\x00\x00\x00\x80E@", "43.0"


def test_the_tables_of_the_page_are_read() -> None:
    csv, entry, sources = (tomllib.loads(block) for block in blocks("toml"))
    settings = ConvertSettings(**csv["convert"])
    assert load(settings.converter, settings.options).gives.names == ["source_sequence", "symbol", "price", "at"]
    assert set(entry["project"]["entry-points"]) == {"fairlead.converters"}
    assert [one.id for one in read_sources(sources["source"])] == ["exchange", "reference"]


def test_all_kinds_of_messages_and_columns_are_in_the_page() -> None:
    rows = dict(re.findall(r"^\| `([A-Z])` \| [^|]+ \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert set(rows) == {kind.decode() for kind in (*LAYOUTS, NOTICE)}
    for kind, layout in LAYOUTS.items():
        sizes = [int(size) for size in re.findall(r"\((\d+)[^)]*\)", rows[kind.decode()])]
        assert sum(sizes) == layout.itemsize - 17, kind
    columns = re.search(r"A record has the columns (.*?);", PAGE, re.DOTALL)
    assert columns is not None
    assert re.findall(r"`(\w+)`", columns[1]) == GIVES.names[1:]


@pytest.mark.parametrize("kind", _KINDS)
def test_all_keys_of_sources_are_in_the_page(kind: str) -> None:
    section = PAGE[PAGE.index("## 5. Sources") : PAGE.index("**What is believed.**")]
    words = set(re.findall(r"\w+", section))
    assert set(_KINDS[kind].__struct_fields__) - words == set()
    assert set(Common.__struct_fields__) <= words
    defaults = re.search(r"^\| patience_s \| ([\d.]+) ", section, re.MULTILINE)
    assert defaults is not None
    assert float(defaults[1]) == UdpSource(id="x", listen=("a:1",)).patience_s
