"""The places in the code that the documents name, `file:function` or `file`, are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import shadowsync

ROOT = Path(shadowsync.__file__).resolve().parent
PAGES = ["journey.md", "architecture.md"]
PLACE = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)(?::([A-Za-z_.0-9]+))?`")

if not (ROOT / "docs").is_dir():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)


def _names(file: Path) -> set[str]:
    """The classes and functions of a file, methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, kinds)}
    return found


def missing(text: str) -> list[str]:
    """The places in a text that are not in the tree."""
    wrong = []
    for file, name in PLACE.findall(text):
        path = ROOT / file
        if not path.is_file() or (name and name not in _names(path)):
            wrong.append(f"{file}:{name}" if name else file)
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_place_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    assert len(PLACE.findall(text)) > 10
    assert missing(text) == []


def test_a_wrong_place_is_found() -> None:
    """The control."""
    assert missing("`nodes/worker/worker.py:Worker._compute` and `nodes/worker/worker.py`") == []
    assert missing(
        "`nodes/worker/worker.py:Worker._comptue`, `nodes/wroker.py:Worker`, `nodes/wroker.py`"
    ) == [
        "nodes/worker/worker.py:Worker._comptue",
        "nodes/wroker.py:Worker",
        "nodes/wroker.py",
    ]
