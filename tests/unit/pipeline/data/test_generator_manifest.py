"""log.json: who it belongs to, and what becomes of a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.data.generator.generator import LogManifest, generate_log, read_manifest
from shadowsync.pipeline.errors import DataError


def generate(directory: Path) -> LogManifest:
    return generate_log(directory, examples=500, eval_examples=100, seed=7, data_format="parquet")


def test_read_manifest_beside_a_data_file(tmp_path: Path) -> None:
    path = tmp_path / "train-000.parquet"
    assert read_manifest(str(path)) is None
    manifest = generate(tmp_path)
    assert read_manifest(str(path)) == manifest
    assert manifest.part_of(path) == manifest.train
    assert manifest.part_of("elsewhere/eval-000.parquet") == manifest.eval
    assert "reused" not in json.loads((tmp_path / "log.json").read_text())


def test_a_file_of_another_origin_has_none(tmp_path: Path) -> None:
    generate(tmp_path)
    (tmp_path / "other.parquet").write_bytes(b"")
    assert read_manifest(str(tmp_path / "other.parquet")) is None
    (tmp_path / "train-000.parquet").unlink()
    assert read_manifest(str(tmp_path / "train-000.parquet")) is None


def test_a_log_json_of_something_else_is_none(tmp_path: Path) -> None:
    generate(tmp_path)
    for text in ('{"log": "of something else"}', "", "[]"):
        (tmp_path / "log.json").write_text(text)
        assert read_manifest(str(tmp_path / "train-000.parquet")) is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"seed": "seven"}, "seed"),
        ({"version": 99}, "version 99"),
        ({"train": {}}, "train"),
        ({"a": 1}, "a "),
        (None, "damaged"),
    ],
    ids=str,
)
def test_damaged_or_cut_short(tmp_path: Path, damage: dict[str, Any] | None, reason: str) -> None:
    generate(tmp_path)
    path = tmp_path / "log.json"
    text = path.read_text()
    path.write_text(text[:-30] if damage is None else json.dumps(json.loads(text) | damage))
    with pytest.raises(DataError, match=f"log.json: .*{reason}") as caught:
        read_manifest(str(tmp_path / "train-000.parquet"))
    assert "\n" not in str(caught.value)
