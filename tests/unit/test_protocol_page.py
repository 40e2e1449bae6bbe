"""docs/protocol.md against the code: every message with its fields, every verb, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.wire import messages
from shadowsync.pipeline.wire.schema import Message

ROOT = Path(shadowsync.__file__).resolve().parent
PAGE = ROOT / "docs" / "protocol.md"
ANSWERING = (
    *("coordinator/requests", "runtime/node", "reader/role", "embedding/role", "sync/role", "trainer/role"),
)

if not PAGE.exists():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)

ROWS = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]


def _named(row: str) -> list[str]:
    """The messages or verbs that a row of a table is about."""
    return re.findall(r"`(\w+)`", row.split("|")[1])


def _kinds() -> dict[str, type[Message]]:
    found = [item for item in vars(messages).values() if isinstance(item, type) and issubclass(item, Message)]
    return {kind.KIND: kind for kind in found if kind is not Message}


def _verbs() -> set[str]:
    """What the coordinator and the roles answer: texts that a parameter `verb` is compared with, and the keys
    of the tables in which it is looked up."""
    verbs: set[str] = set()
    for name in ANSWERING:
        for function in ast.walk(ast.parse((ROOT / "nodes" / f"{name}.py").read_text("utf-8"))):
            if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef) and any(
                argument.arg == "verb" for argument in function.args.args
            ):
                verbs |= _told_apart(function)
    return verbs


def _told_apart(function: ast.AST) -> set[str]:
    places: list[ast.AST] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "verb":
            places += node.comparators
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            handled = [key for key in node.value.keys if key is not None]
            if all(isinstance(value, ast.Attribute) for value in node.value.values):
                places += handled
    texts = [inner for place in places for inner in ast.walk(place) if isinstance(inner, ast.Constant)]
    return {text.value for text in texts if isinstance(text.value, str)}


def test_every_message_is_there_with_its_fields() -> None:
    rows = {kind: row for row in ROWS for kind in _named(row)}
    kinds = _kinds()
    assert len(kinds) > 15
    for kind, message in kinds.items():
        if kind == "failure":
            assert "`failure` (request, what)" in PAGE.read_text("utf-8")
            continue
        assert kind in rows, f"{kind} is not in docs/protocol.md"
        shared = ("generation", "number") if kind.startswith("peer_") else ()
        for field in dataclasses.fields(message):  # type: ignore[arg-type]
            if field.name not in shared:
                assert re.search(rf"\b{field.name}\b", rows[kind]), f"{kind}: {field.name} is not in its row"


def test_every_verb_is_there() -> None:
    verbs = _verbs()
    assert {"hello", "trained", "next_span", "checkpoint", "replica_sample", "finish", "exited"} <= verbs
    told = {name for row in ROWS for name in _named(row)}
    assert verbs - told == set(), "verbs that are not in docs/protocol.md"


def test_nothing_else_is_there() -> None:
    told = {name for row in ROWS for name in _named(row)}
    assert told - set(_kinds()) - _verbs() == set(), "rows of docs/protocol.md that nothing stands for"
