"""docs/protocol.md against the code: every message, every verb, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.control_reference import BEGIN, END, control_reference, renewed
from shadowsync.pipeline.wire.frames import PROTOCOL_VERSION
from shadowsync.pipeline.wire.messages import MESSAGES

ROOT = Path(shadowsync.__file__).resolve().parent
PAGE = ROOT / "docs" / "protocol.md"

if not PAGE.exists():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)

TEXT = PAGE.read_text("utf-8")


def _named(text: str) -> list[str]:
    """The messages or verbs that the rows of tables are about, in order."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_the_version_is_that_of_the_code() -> None:
    assert f"`version` is {PROTOCOL_VERSION}; a message of another version" in " ".join(TEXT.split())


def test_every_message_is_there_once_and_nothing_else() -> None:
    by_hand = TEXT.partition(BEGIN)[0] + TEXT.partition(END)[2]
    assert len(MESSAGES) > 15
    assert sorted(_named(by_hand)) == sorted(MESSAGES)


def test_the_verbs_are_as_they_were_written_from_the_classes() -> None:
    assert renewed(TEXT) == TEXT, "python -m shadowsync.pipeline.wire.control_reference --write renews it"


def test_a_changed_line_is_noticed() -> None:
    for words in ("A node asks to join the job.", "| reader, coordinator |"):
        planted = TEXT.replace(words, "other")
        assert planted != TEXT
        assert renewed(planted) == TEXT


def test_every_verb_has_its_row() -> None:
    assert _named(control_reference()) == [*CONTROL_VERBS.verbs]
