"""Rows a second that one core reads into batches, and where the time goes.

    python benchmarks/speed/nodes/reader_speed.py --rows 1000000 --rounds 5 \\
        --out benchmarks/speed/results/reader_speed.json

One thread of this process does what a reader does, without its sockets: it reads the files, parses and
hashes, shuffles windows of the default size, cuts batches and encodes the messages. Figures are rows per CPU
second of the process, and rows per second of the clock, which count only on a quiet machine. A stage's share
is the time that it adds to the stages before it.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.job_runs import job_text
from shadowsync.benchmarks.pairs import Figures, alternate, save, table
from shadowsync.benchmarks.peers.peer_log import write_peer_log
from shadowsync.nodes.reader.deliveries import DeliveryState
from shadowsync.nodes.runtime.process import tune_malloc
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.data.schema import FeatureShape
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.messages import Credit

WORKER = b"trainer/0"
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


class InputReader:
    """One job's input, read whole again and again."""

    def __init__(self, sections: dict[str, Any]) -> None:
        # A reader's parsing thread does the same.
        tune_malloc()
        self._job: Job = job_of_tree(sections)
        self._input = JobInput(self._job)
        self._spans = self._input.plan(self._job.data.path)

    def parse(self) -> int:
        """Read, parse and hash; return the number of rows."""
        return sum(
            len(chunk.examples) for span in self._spans for chunk in self._input.chunks(span, self._bad())
        )

    def cut(self) -> int:
        """Also shuffle and cut batches; return the number of rows."""
        return sum(len(batch) for span in self._spans for batch in self._batches(span))

    def encode(self) -> int:
        """Also encode the batches as messages; return the number of rows.

        Each message is confirmed before the next.
        """
        state = DeliveryState(self._job.data.retain_bytes)
        sent = 0
        for span in self._spans:
            for batch in self._batches(span):
                state.credit(WORKER, Credit(limit=sent + 1, received=sent, done=sent))
                state.offer(0, batch)
                for _, delivery in state.deliveries(0.0):
                    encode(delivery)
                sent += 1
        return state.read_examples

    def _batches(self, span: Span) -> Any:
        data = self._job.data
        return self._input.batches(
            span,
            epoch=0,
            seed=self._job.run.seed,
            batch=self._job.trainer.batch,
            shuffle_window=data.shuffle_window,
            bad_rows=self._bad(),
        )

    def _bad(self) -> BadRows:
        return BadRows(self._job.data.max_bad_rows)


def figures(run: Callable[[], int]) -> Figures:
    """Rows a second, of CPU and of the clock."""
    gc.collect()
    cpu, clock = time.process_time(), time.perf_counter()
    rows = run()
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return {"rows_per_cpu_second": rows / cpu, "rows_per_second": rows / clock}


def stages(medians: dict[str, float]) -> str:
    """Nanoseconds a row by stage, from the medians of rows per CPU second."""
    parse, cut, whole = (1e9 / medians[stage] for stage in ("parse", "cut", "encode"))
    return f"read, parse, hash {parse:.0f} ns; shuffle, cut {cut - parse:.0f}; encode {whole - cut:.0f} a row"


def measure(sections: dict[str, Any], rounds: int) -> dict[str, list[Figures]]:
    """All three stages of one input, in turn."""
    reader = InputReader(sections)
    runs: dict[str, Callable[[], Figures]] = {
        name: partial(figures, getattr(reader, name)) for name in ("parse", "cut", "encode")
    }
    return alternate(runs, rounds)


def median_of(rows: list[Figures]) -> float:
    """Median of the rows per CPU second."""
    return sorted(row["rows_per_cpu_second"] for row in rows)[len(rows) // 2]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each input, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=list(INPUTS))
    parser.add_argument("--batch", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, default=Path("reader_speed.json"))
    given = parser.parse_args()
    results: dict[str, dict[str, list[Figures]]] = {}
    for name in given.inputs:
        data = input_of(name, given.data, given.rows)
        for batch in given.batch:
            print(f"{name}, batch {batch}")
            sections = {"data": data, "model": {"table_rows": 100_000}, "trainer": {"batch": batch}}
            results[f"{name}, batch {batch}"] = measure(sections, given.rounds)
    print(table({name: rows["encode"] for name, rows in results.items()}))
    for name, rows in results.items():
        print(f"{name}: {stages({stage: median_of(values) for stage, values in rows.items()})}")
    save(given.out, "reader speed", results)


if __name__ == "__main__":
    main()
