"""The inputs of `reader_speed.py`: the same kinds of rows in each format, written once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.job_runs import job_text
from shadowsync.benchmarks.peers.peer_log import write_peer_log
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.data.schema import FeatureShape

INPUTS: Final = ("criteo_tsv", "csv", "parquet", "prepared")
PART_ROWS: Final = 200_000
SHAPE: Final = FeatureShape(13, 26, (100_000,) * 26)


def input_of(name: str, folder: Path, rows: int) -> dict[str, Any]:
    """The [data] section of an input under `folder`, of at least `rows` rows."""
    folder.mkdir(parents=True, exist_ok=True)
    if name == "parquet":
        path = write_peer_log(folder / f"peer-{rows}.parquet", rows)
        return {"format": "parquet", "path": [str(path)]}
    if name == "prepared":
        return _prepared(folder, rows)
    path = folder / f"speed-{rows}.{name}"
    if not path.exists():
        _write_text(path, folder, rows, comma=name == "csv")
    if name == "criteo_tsv":
        return {"format": name, "path": [str(path)]}
    kinds = {"label": "label", **dict.fromkeys(SHAPE.dense_names, "dense")}
    return {
        "format": "csv",
        "path": [str(path)],
        "columns": kinds | dict.fromkeys(SHAPE.categorical_names, "categorical"),
    }


def _write_text(path: Path, folder: Path, rows: int, *, comma: bool) -> None:
    """Write a generated log over and over: text with the lengths of Criteo's fields."""
    log = folder / "speed-part"
    generate_log(log, examples=PART_ROWS, eval_examples=0, seed=1, data_format="criteo_tsv", reuse=True)
    part = (log / "train-000.tsv").read_bytes()
    head = b""
    if comma:
        names = ["label", *SHAPE.dense_names, *SHAPE.categorical_names]
        head, part = ",".join(names).encode() + b"\n", part.replace(b"\t", b",")
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(head)
        for _ in _parts(rows):
            file.write(part)
    partial.rename(path)


def _parts(rows: int) -> Iterator[int]:
    yield from range(-(-rows // PART_ROWS))


def _prepared(folder: Path, rows: int) -> dict[str, Any]:
    """The log of the peers, prepared by the command."""
    out = folder / f"prepared-{rows}"
    data = input_of("parquet", folder, rows)
    if not out.exists():
        job = folder / f"prepare-{rows}.toml"
        job.write_text(job_text({"data": data, "model": {"table_rows": 100_000}}), encoding="utf-8")
        command = [sys.executable, "-m", "shadowsync.cli", "prepare", str(job), "--out", str(out)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return {"prepared": str(out)}
