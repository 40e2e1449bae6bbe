"""docs/protocol.md against the code: every message with its fields, every verb, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.wire import messages
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.control_reference import SECTIONS, marks, renewed
from shadowsync.pipeline.wire.frames import PROTOCOL_VERSION
from shadowsync.pipeline.wire.schema import Message

ROOT = Path(shadowsync.__file__).resolve().parent
PAGE = ROOT / "docs" / "protocol.md"

if not PAGE.exists():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)


def _rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def _without_sections(text: str) -> str:
    """The page as it was written by hand; verbs have some names of messages."""
    for section in SECTIONS:
        begin, end = marks(section)
        before, _, rest = text.partition(begin)
        text = before + rest.partition(end)[2]
    return text


def test_the_version_is_that_of_the_code() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"`version` is {PROTOCOL_VERSION}; a message of another version" in text


ROWS = _rows(_without_sections(PAGE.read_text("utf-8")))


def _named(row: str) -> list[str]:
    """The messages or verbs that a row of a table is about."""
    return re.findall(r"`(\w+)`", row.split("|")[1])


def _kinds() -> dict[str, type[Message]]:
    found = [item for item in vars(messages).values() if isinstance(item, type) and issubclass(item, Message)]
    return {kind.KIND: kind for kind in found if kind is not Message}


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


def test_the_verbs_are_as_they_were_written_from_the_classes() -> None:
    text = PAGE.read_text("utf-8")
    for section in SECTIONS:
        assert all(mark in text for mark in marks(section)), section
    assert text == renewed(text), "python -m shadowsync.pipeline.wire.control_reference --write renews it"


def test_a_changed_field_is_noticed() -> None:
    text = PAGE.read_text("utf-8")
    for field in ("synced_iterations", "elastic_rate"):
        assert text != text.replace(field, "other")
        assert renewed(text.replace(field, "other")) == text


def test_nothing_else_is_there() -> None:
    reported = {name for row in ROWS for name in _named(row)}
    assert reported - set(_kinds()) == set(), "rows of docs/protocol.md that nothing stands for"


def test_every_verb_has_its_row() -> None:
    (section,) = SECTIONS.values()
    rows = _rows(section())
    assert {name for row in rows for name in _named(row)} == {*CONTROL_VERBS.verbs}
    assert len(rows) == len(CONTROL_VERBS.verbs)
