"""What a job's key costs: whole jobs over TCP with and without it, in turn.

    python benchmarks/encryption.py --pairs 5 --out docs/results/encryption.json

All goes over loopback TCP, nothing through shared memory, as it would between hosts; with float32 vectors and
gradients, and with bfloat16 ones.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.pipeline.wire.job_key import KEY_VARIABLE, JobKey

EXAMPLES, EVAL_EXAMPLES = 400_000, 20_000
CODECS = ("float32", "bfloat16")


def sections(log: Path, codec: str) -> dict[str, dict[str, Any]]:
    """Return the job: two trainers, two embedding nodes."""
    return {
        **on_log(log, seed=1),
        "model": {"embedding_dim": 16, "table_rows": 20_000},
        "trainer": {"count": 2, "batch": 256},
        "embedding": {"nodes": 2},
        "codecs": {"vectors": codec, "gradients": codec},
        "network": {"transport": "tcp"},
        "report": {"pictures": False},
    }


def measured(log: Path, codec: str, key: Path | None) -> Figures:
    """Run one job; return its figures."""
    report = run_job(sections(log, codec), command=("run", *(("--key", str(key)) if key is not None else ())))
    throughput = report.throughput
    assert report.ledger.adds_up
    assert throughput.examples_per_second is not None
    assert throughput.cpu_seconds_per_million is not None
    return {
        "examples_per_second": throughput.examples_per_second,
        "cpu_seconds_per_million": throughput.cpu_seconds_per_million,
    }


def main() -> None:
    """Run the pairs and save them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    # A job without a key is to have none.
    os.environ.pop(KEY_VARIABLE, None)
    with (
        log_or_generated(given.log, EXAMPLES, EVAL_EXAMPLES) as log,
        tempfile.TemporaryDirectory(prefix="benchmark-key-") as folder,
    ):
        key = Path(folder) / "job.key"
        JobKey.generate().write(key)
        runs: dict[str, Callable[[], Figures]] = {
            f"{codec}, {'key' if file else 'plain'}": partial(measured, log, codec, file)
            for codec in CODECS
            for file in (None, key)
        }
        results = alternate(runs, given.pairs)
    print(table(results))
    ratios = {}
    for codec in CODECS:
        for figure in ("examples_per_second", "cpu_seconds_per_million"):
            with_key, plain = (
                [row[figure] for row in results[f"{codec}, {how}"]] for how in ("key", "plain")
            )
            ratios[f"{codec}: {figure}, key over plain"] = ratio(with_key, plain)
    for name, value in ratios.items():
        print(show_ratio(name, value))
    save(given.out, "jobs over loopback TCP with and without a key", {"runs": results, "ratios": ratios})


if __name__ == "__main__":
    main()
