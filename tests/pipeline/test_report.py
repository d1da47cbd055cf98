"""A page made of strangers' words: nothing of them runs, nothing is fetched, and it is written whole."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fairlead.pipeline import figures
from fairlead.pipeline.report import Page, Section, Table, Tile, bytes_text, time_text, write

EVIL = "<script>alert('x')</script>\"'&><img src=x onerror=alert(1)>"
WORDS = [EVIL, "]]>", "$x^{2", r"\frac{", "日本語", "\x00\x1b[31m", "a" * 10_000, "", "\u202egnp.exe", "}{", "#010101"]


class Seen(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(word: str) -> str:
    table = Table((word, "n"), [(word, 1), (word, 0.5), (None, None)], more=3)
    plots = [
        figures.bars("a", {word: 3.0, "b": 0.0}, word),
        figures.timeline("b", [0.0, 60.0, 120.0], {word: [1, 2, 3], "other": [0, 0, 1]}, "label"),
        figures.stacked("c", {word: {"delivered": 3.0, "lost": 1.0}}, ("delivered", "lost"), "messages"),
        figures.ladder("d", {word: {"p50": 1.0, "max": 30.0}, "none": {"p50": 0.0, "max": 0.0}}, "ms"),
        figures.map_of_faults(
            "e", {word: (1, 100)}, [{"kind": "lost", "stream": word, "first": 3, "last": 9}], ("lost", "overlap")
        ),
    ]
    return Page(word, word, [Tile(word, word)], [Section(word, word, plots, [table])]).html()


@pytest.mark.parametrize("word", WORDS)
def test_strangers_words_stay_words(word: str) -> None:
    html = page(word)
    seen = Seen()
    seen.feed(html)
    seen.close()
    assert seen.tags.count("script") == 1, "our own"
    assert "img" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert len(html) < 400_000
    if word == EVIL:
        assert EVIL in "".join(seen.text)


def test_nothing_is_fetched_and_no_other_script_may_run() -> None:
    html = page("orders")
    seen = Seen()
    seen.feed(html)
    outside = [value for name, value in seen.attributes if name in ("src", "href", "xlink:href") and value]
    assert all(value.startswith("#") for value in outside)
    assert not re.search(r"url\((?!#)|@import|<!DOCTYPE svg|<\?xml", html)
    assert "default-src 'none'" in html
    assert "script-src 'sha256-" in html
    assert "prefers-color-scheme:dark" in html
    assert html.count("var(--c1)") > 1, "plots take the page's colours"


def test_inner_names_of_plots_do_not_meet() -> None:
    ids = re.findall(r'<clipPath id="([^"]+)"', page("orders"))
    assert len(ids) == len(set(ids)) > 1


def test_both_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Page("Title", "sub")
    html, numbers = write(one, {"a": EVIL}, tmp_path / "r.html")
    assert json.loads(numbers.read_text()) == {"a": EVIL}
    before = html.read_text()
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        write(Page("Other", ""), {}, tmp_path / "r.html")
    assert html.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]


def test_numbers_for_people() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 << 40, 5 << 60)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 TiB", "5242880.0 TiB")
    ]
    assert [time_text(n) for n in (None, 12, 1500, 2_000_000, 180_000_000, 7_200_000_000)] == [
        *("–", "12 µs", "1.5 ms", "2 s", "3 min", "2.0 h")
    ]
    assert figures.plain("a" * 50, 9) == "aaaa…aaaa"
