"""The files of the page: small, complete, nothing from elsewhere, and no way to turn data into markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fairlead

STATIC = Path(fairlead.__file__).parent / "console" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MARKUP = re.compile(
    r"\.(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|"
    r"createContextualFragment|DOMParser|setHTML"
)


def test_the_whole_page_is_small() -> None:
    assert len(SCRIPTS) > 20
    assert sum(path.stat().st_size for path in FILES) < 200_000


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_of_data(path: Path) -> None:
    found = MARKUP.findall(path.read_text())
    assert not found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_what_is_there_and_use_what_they_import(path: Path) -> None:
    text = path.read_text()
    for names, where in re.findall(r'import \{([^}]*)\} from "([^"]+)"', text):
        target = (path.parent / where).resolve()
        assert target in FILES, f"{path.name} imports {where}"
        for name in filter(None, (part.strip() for part in names.split(","))):
            assert re.search(rf"export (async )?(function|const|class) {name}\b", target.read_text()), (where, name)
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{path.name} does not use {name}"


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|https?://", page)
    for path in FILES:
        found = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}", path.read_text())
        assert all("www.w3.org" in url for url in found), (path.name, found)
        assert "@import" not in path.read_text()


def test_all_modules_are_asked_for_at_once() -> None:
    """Else each would be found only when the one that imports it has come."""
    page = (STATIC / "index.html").read_text()
    modules = {f"static/{path.relative_to(STATIC).as_posix()}" for path in SCRIPTS if path.name != "theme.js"}
    assert set(re.findall(r'(?:modulepreload" href|module" src)="([^"]+)"', page)) == modules
