"""Checkpoints of large tables during training: pauses, seconds and bytes.

    python benchmarks/speed/nodes/checkpoints.py --rows 600000 --every-seconds 10
    python benchmarks/speed/nodes/checkpoints.py --python ../before/.venv/bin/python --log LOG

The job has one embedding node and 26 tables of --rows rows each, with 16 floats and Adagrad's sums: 600,000
rows are 2 GB. The first checkpoint has all rows, later ones those that changed. The output is JSON: of each
checkpoint the longest pause of the shard, seconds, and bytes written; and examples/s of the whole job. With
`--python` another checkout's job is measured.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import Sections, job_text, log_or_generated, on_log

PAUSE = re.compile(r"wrote \d+ files; pushes waited for (?:at most )?([0-9.]+) s")
WHOLE = re.compile(r"wrote a checkpoint at (\d+) examples in ([0-9.]+) s")


def main() -> None:
    """Run the job once, and print what its checkpoints cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="rows of each table")
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--every-seconds", type=float, default=10.0, help="0: no checkpoints")
    parser.add_argument("--log", type=Path, help="a folder of `shadowsync generate demo-data`")
    parser.add_argument("--python", default=sys.executable, help="of the checkout to measure")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with log_or_generated(options.log, options.examples, 1000) as folder:
        found = measure(folder, options)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


def large_tables(log: Path, rows: int, every_seconds: float, *, optimizer: str) -> Sections:
    """Return a job with one embedding node and tables of `rows` rows."""
    return {
        **on_log(log, 1),
        "model": {"table_rows": rows, "embedding_dim": 16},
        "embedding": {"nodes": 1, "optimizer": optimizer, "placement": "rows"},
        "trainer": {"count": 1, "batch": 512},
        "checkpoint": {"every_seconds": every_seconds},
        "report": {"pictures": False},
    }


def measure(log: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job, and return its figures."""
    sections = large_tables(log, options.rows, options.every_seconds, optimizer="adagrad")
    sections["data"]["epochs"] = options.epochs
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        sections["run"]["directory"] = folder
        file = Path(folder) / "job.toml"
        file.write_text(job_text(sections), encoding="utf-8")
        command = [options.python, "-m", "shadowsync.cli", "run", str(file), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"the job ended with {done.returncode}: {done.stderr[-2000:]}")
        run = Path(folder) / "latest"
        report = json.loads((run / "report.json").read_text("utf-8"))
        shard, coordinator = lines(run, "embedding-0"), lines(run, "coordinator")
        times = [WHOLE.search(line) for line in coordinator]
        return {
            "rows": options.rows,
            "every_seconds": options.every_seconds,
            "examples_per_second": report["throughput"]["examples_per_second"],
            # The last pause is at the job's end.
            "pauses_seconds": [float(m[1]) for line in shard if (m := PAUSE.search(line))][:-1],
            "checkpoints_seconds": [float(m[2]) for m in times if m],
            "lines": [line for line in coordinator if WHOLE.search(line)],
        }


def lines(run: Path, node: str) -> list[str]:
    """Return the texts that a node logged."""
    text = (run / "logs" / f"{node}.jsonl").read_text("utf-8")
    return [json.loads(line)["text"] for line in text.splitlines()]


if __name__ == "__main__":
    main()
