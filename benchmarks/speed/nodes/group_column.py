"""What a column of groups costs: bytes of an example, and speed of readers and of a job.

    python benchmarks/speed/nodes/group_column.py --out benchmarks/speed/results/group_column.json

The log is that of the peers, with 13 numbers and 26 ids, in Parquet. A pair is the same input or job with and
without a column of kind "group", one right after the other, in alternating order. The column is one of the
ids, integers, or the same as texts. Bytes are those of the messages that deliver batches.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl
from shadowsync.benchmarks.job_runs import run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table
from shadowsync.benchmarks.peers.peer_log import write_peer_log
from shadowsync.benchmarks.speed.nodes.reader_speed import SHAPE, InputReader, figures
from shadowsync.nodes.reader.deliveries import delivery_of
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.wire.frames import encode

GROUPS: Final[dict[str, dict[str, Any]]] = {
    "without": {},
    "integers": {"user": {"kind": "group", "source": "C3"}},
    "texts": {"user": {"kind": "group", "source": "user_text"}},
}
JOB_FIGURES: Final = ("examples_per_second", "cpu_seconds_per_million")


def sections(log: Path, groups: str) -> dict[str, dict[str, Any]]:
    """Return a job of one trainer and one embedding node."""
    columns: dict[str, Any] = {"label": "label", **dict.fromkeys(SHAPE.dense_names, "dense")}
    columns |= dict.fromkeys(SHAPE.categorical_names, "categorical")
    return {
        "run": {"seed": 1, "node_timeout_seconds": 60.0, "start_timeout_seconds": 180.0},
        "data": {"format": "parquet", "path": [str(log)], "columns": columns | GROUPS[groups]},
        "model": {"embedding_dim": 16, "table_rows": 100_000, "bottom": [64], "top": [64]},
        "trainer": {"count": 1, "batch": 512},
        "sync": {"algorithm": "none"},
        "report": {"pictures": False},
    }


def bytes_per_example(log: Path, groups: str) -> float:
    """Encode the batches of the first span; return the bytes of an example."""
    job = job_of_tree(sections(log, groups))
    source, examples, size = JobInput(job), 0, 0
    span = source.plan(job.data.path)[0]
    batches = source.batches(span, epoch=0, seed=1, batch=512, shuffle_window=0, bad_rows=BadRows(0))
    for batch in batches:
        examples += len(batch)
        size += sum(memoryview(frame).nbytes for frame in encode(delivery_of(1, 0, batch)))
    return size / examples


def trained(log: Path, groups: str) -> Figures:
    """Run one job; return its figures."""
    report = run_job(sections(log, groups))
    assert report.ledger.adds_up
    return {name: getattr(report.throughput, name) for name in JOB_FIGURES}


def ratios_of(results: Results) -> dict[str, dict[str, float]]:
    """Compare each pair: with the column over without."""
    found = {}
    for name in results:
        what, _, groups = name.rpartition(", ")
        if groups == "without":
            continue
        for figure in results[name][0]:
            one, none = ([row[figure] for row in results[of]] for of in (name, f"{what}, without"))
            found[f"{name}: {figure}, over without"] = ratio(one, none)
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="group-column-") as folder:
        plain = write_peer_log(Path(folder) / "plain.parquet", given.rows)
        log = Path(folder) / "log.parquet"
        frame = pl.read_parquet(plain)
        user = pl.format("user-{}", pl.col("C3")).alias("user_text")
        frame.with_columns(user).write_parquet(log, row_group_size=50_000)
        sizes = {groups: bytes_per_example(log, groups) for groups in GROUPS}
        runs: dict[str, Callable[[], Figures]] = {}
        for groups in GROUPS:
            reader = InputReader(sections(log, groups))
            runs[f"a reader, {groups}"] = partial(figures, reader.encode)
        for groups in ("without", "integers"):
            runs[f"a job, {groups}"] = partial(trained, log, groups)

        def keep(results: Results) -> None:
            figures_of = {"bytes_per_example": sizes, "runs": results, "ratios": ratios_of(results)}
            save(given.out, __doc__ or "", figures_of)

        results = alternate(runs, given.rounds, keep)
    print(sizes)
    print(table(results))
    for name, value in ratios_of(results).items():
        print(show_ratio(name, value))


if __name__ == "__main__":
    main()
