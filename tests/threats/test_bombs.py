"""What nobody can set off, since the parts for it are not there: decompression, and text that becomes a program."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError
from fairlead.selector.compile import compile_selector

SOURCE = Path(fairlead.__file__).parent
DECOMPRESSORS = {"zlib", "gzip", "bz2", "lzma", "zipfile", "tarfile", "shelve", "brotli", "zstandard", "snappy", "lz4"}
OBJECTS = {"pickle", "marshal", "dill", "yaml", "cloudpickle", "shelve"}
UNPACKING = {"decompress", "decompressobj", "unpack_archive"}
PROGRAMS = {"eval", "exec", "system", "popen", "sql", "expr", "selectExpr", "shell"}
# Where one of these is meant well, and no peer chooses what goes in.
ALLOWED = {
    ("feeds/blocks.py", "zlib"): "a checksum",
    ("feeds/edge/administration/store.py", "zlib"): "a checksum",
    ("pipeline/recording.py", "zlib"): "a checksum",
    ("pipeline/accounts.py", "selectExpr"): "a constant",
    ("cli/pipeline.py", "sql"): "what an operator types on the command line, with his own rights",
    ("selector/compile.py", "exec"): "made of numbered variables: see below",
}


def trees(words: set[str]) -> Iterator[tuple[str, ast.Module]]:
    """Every module in which one of the words stands at all."""
    suspicious = re.compile(rf"\b(?:{'|'.join(words)})\b")
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if suspicious.search(text):
            yield path.relative_to(SOURCE).as_posix(), ast.parse(text)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def called(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            yield from (word.arg for word in node.keywords if word.arg == "shell")


def test_no_part_that_meets_peers_can_decompress() -> None:
    found = {(name, one) for name, tree in trees(DECOMPRESSORS) for one in imported(tree) if one in DECOMPRESSORS}
    found |= {(name, one) for name, tree in trees(UNPACKING) for one in called(tree) if one in UNPACKING}
    assert ("feeds/blocks.py", "zlib") in found  # it does find something
    assert found <= set(ALLOWED)


def test_no_text_becomes_a_program() -> None:
    found = {(name, one) for name, tree in trees(PROGRAMS) for one in called(tree) if one in PROGRAMS}
    assert ("selector/compile.py", "exec") in found
    assert found <= set(ALLOWED)


def test_no_objects_are_made_of_what_peers_send() -> None:
    assert not {(name, one) for name, tree in trees(OBJECTS) for one in imported(tree) if one in OBJECTS}


@pytest.mark.parametrize(
    "text",
    [
        "canary = 'canary'",
        'canary = \'"""); canary(\'',
        "canary LIKE '%canary\\n%' ESCAPE '!'",
        "canary IN ('canary', 'x'') or canary(', 'y')",
        "NOT (canary IS NULL) AND canary + 1 > 2.5 OR canary BETWEEN 'canary' AND 'z'",
        "$canary_1 = 1 OR canary.__class__ = 'x'",
        "__import__ = 'canary' AND headers = 'canary' AND facts = 'canary'",
    ],
)
def test_nothing_of_a_selector_gets_into_what_is_compiled(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    really = builtins.compile

    def spy(source: Any, filename: Any, *more: Any, **options: Any) -> Any:
        if filename == "<selector>":
            written.append(source)
        return really(source, filename, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "compile", spy)
        try:
            compile_selector(f"{text} AND {'1 = 1 AND ' * 3}canary_of_this_test <> 'canary'")
        except FairleadError:
            return  # refused: nothing was compiled
    assert written
    for word in ("canary", "__import__", '"', "'"):
        assert word not in "".join(written)
