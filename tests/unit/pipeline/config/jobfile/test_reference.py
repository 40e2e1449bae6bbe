"""docs/job-file.md is what the schema says, and says something of every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile import reference


def _items(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- `")]


def _undescribed() -> list[str]:
    """Keys and sections without a description, by their full names."""
    schema = Job.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = schema.get("$defs", {})
    missing = [name for name, text in reference._docs().items() if name in definitions and not text]
    for title, definition in definitions.items():
        for key, field in definition.get("properties", {}).items():
            if not field.get("description") and not reference._nested(field, definitions):
                missing.append(f"{title}.{key}")
    return sorted(missing)


def test_every_key_and_section_has_a_description() -> None:
    assert _undescribed() == []


def test_the_page_is_current() -> None:
    if not reference.PAGE.exists():
        pytest.skip("an installed package has no docs beside it")
    again = "python -m shadowsync.pipeline.jobfile.reference --write"
    assert reference.PAGE.read_text("utf-8") == reference.page(), f"run {again}"


def test_every_section_and_key_is_on_the_page() -> None:
    text = reference.page()
    for name, field in Job.model_fields.items():
        section = field.alias or name
        assert f"`[{section}]`" in text or f"`[{section}.NAME]`" in text, section
    assert len(_items(text)) > 80


@pytest.mark.parametrize(
    "item",
    [
        "- `seed`: integer, at least 0, less than 2,147,483,648; default `1`. ",
        '- `algorithm`: text; default `"bmuf"`. ',
        '- `mode`: `"shadow"` or `"fixed"`; default `"shadow"`. ',
        "- `path`: list of text, at least 1 of them; required. ",
        "- `link_bytes_per_second`: number, more than 0; default none. ",
        "- `deterministic`: true or false; default `false`. ",
        "- `rows`: integer, at least 1, less than 2,147,483,648; default none. ",
    ],
)
def test_types_limits_and_defaults(item: str) -> None:
    assert any(line.startswith(item) for line in _items(reference.page())), item


def test_write_and_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "PAGE", tmp_path / "page.md")
    assert reference.main([]) == 0
    printed = capsys.readouterr().out
    assert reference.main(["--write"]) == 0
    assert (tmp_path / "page.md").read_text("utf-8") == printed == reference.page()
    assert reference.main(["--help"]) == 2
