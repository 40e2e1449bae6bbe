"""The input that a checkpoint states, and what of it differs later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.checkpoint.running import describe_input, input_differences, scored_digest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.sections import ValidationSection
from shadowsync.pipeline.data.span import Span


@pytest.fixture
def spans(tmp_path: Path) -> list[Span]:
    """Two files, the first in two spans."""
    paths = [tmp_path / name for name in ("a.tsv", "b.tsv")]
    for path in paths:
        path.write_bytes(b"x" * 100)
    a, b = map(str, paths)
    return [Span(0, a, "bytes", 0, 50), Span(1, a, "bytes", 50, 100), Span(2, b, "bytes", 0, 100)]


def test_the_same_input_is_the_same_also_from_json(spans: list[Span]) -> None:
    described = describe_input(spans)
    assert input_differences(json.loads(json.dumps(described)), describe_input(spans)) == []


def test_what_differs_is_named(spans: list[Span], tmp_path: Path) -> None:
    saved = describe_input(spans)
    a, b = tmp_path / "a.tsv", tmp_path / "b.tsv"
    assert input_differences(saved, describe_input(spans[:2])) == [f"{b} is missing"]
    assert input_differences(describe_input(spans[:2]), saved) == [f"{b} was not there"]
    b.write_bytes(b"x" * 101)
    assert input_differences(saved, describe_input(spans)) == [f"{b} has 101 bytes instead of 100"]
    b.write_bytes(b"x" * 100)
    whole = [Span(0, str(a), "bytes", 0, 100), Span(1, str(b), "bytes", 0, 100)]
    assert input_differences(saved, describe_input(whole)) == [f"{a} is cut into 1 spans instead of 2"]
    moved = [spans[2], *spans[:2]]
    assert input_differences(saved, describe_input(moved)) == ["the spans are cut differently"]


def test_a_file_elsewhere_has_no_size_here() -> None:
    described = describe_input([Span(0, "s3://bucket/x", "stream", 0, 9)])
    assert described["files"]["s3://bucket/x"] == {"spans": 1, "stop": 9, "bytes": None}


def test_scores_by_other_groups_or_among_other_items_are_of_other_data(
    spans: list[Span], tmp_path: Path
) -> None:
    items = tmp_path / "items.csv"
    items.write_text("item\n1\n")

    def digest(**validation: Any) -> str:
        job = Job.model_construct(validation=ValidationSection.model_construct(**validation))
        return scored_digest(job, spans)

    rules: list[dict[str, Any]] = [
        {},
        {"group": "user"},
        {"group": "film"},
        {"group": "user", "items": "training"},
        {"group": "user", "items": "training", "exclude_trained": True},
        {"group": "user", "items": str(items)},
    ]
    found = [digest(**rule) for rule in rules]
    assert len(set(found)) == len(rules)
    assert [digest(**rule) for rule in rules] == found
    assert digest(every_examples=7, patience=1) == found[0]
    items.write_text("item\n1\n2\n")
    assert digest(**rules[-1]) != found[-1]
