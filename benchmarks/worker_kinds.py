"""Workers as threads and as processes, in the same job.

    python benchmarks/worker_kinds.py [--log FOLDER] [--rounds 10] [--batch 512] [--layers 512,256,64]
        [--out FILE.json]

Figures are examples/s, CPU seconds and memory, with 1 and 2 workers.

One trainer without synchronization, so that the workers are all that differs; alternating runs, and for each
number of workers the paired ratio of processes over threads with a 95% bootstrap interval. "trainer MiB" adds
the peaks of the trainer and its worker processes, with pages that they share counted in each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shadowsync.benchmarks.job_runs import log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table

WORKERS = (1, 2)
KINDS = ("thread", "process")


def measure(log: Path, kind: str, workers: int, batch: int, layers: list[int]) -> Figures:
    """One job's figures."""
    sections = on_log(log, seed=1)
    sections["model"] = {"embedding_dim": 16, "bottom": layers, "top": layers}
    sections["trainer"] = {"count": 1, "workers": workers, "worker_kind": kind, "batch": batch}
    sections["sync"] = {"algorithm": "none"}
    report = run_job(sections)
    (trainer,) = (node for node in report.nodes if node.role == "trainer")
    assert report.eval is not None
    assert report.eval.ne is not None
    return {
        "examples/s": report.throughput.examples_per_second or 0.0,
        "CPU s / million": report.throughput.cpu_seconds_per_million or 0.0,
        "trainer CPU s / million": (trainer.cpu_seconds or 0.0) / report.examples.trained * 1e6,
        "trainer MiB": (trainer.peak_memory_bytes or 0) / 2**20,
        "NE": report.eval.ne,
    }


def compare(
    log: Path, rounds: int, batch: int, layers: list[int]
) -> tuple[Results, dict[str, dict[str, float]]]:
    """All figures by what was run, and the ratios."""
    runs: dict[str, Callable[[], Figures]] = {
        f"{workers} {kind}": partial(measure, log, kind, workers, batch, layers)
        for workers in WORKERS
        for kind in KINDS
    }
    results = alternate(runs, rounds)
    ratios = {}
    for workers in WORKERS:
        for key in ("examples/s", "CPU s / million", "NE"):
            threads, processes = ([one[key] for one in results[f"{workers} {kind}"]] for kind in KINDS)
            ratios[f"{key}, {workers} workers, process / thread"] = ratio(processes, threads)
    return results, ratios


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, help="a generated log; one is made without it")
    parser.add_argument("--examples", type=int, default=300_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--layers", default="512,256,64", help="of the bottom and of the top")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    layers = [int(width) for width in options.layers.split(",")]
    with log_or_generated(options.log, options.examples, eval_examples=30_000) as log:
        results, ratios = compare(log, options.rounds, options.batch, layers)
    print(table(results))
    for name, value in ratios.items():
        print(show_ratio(name, value))
    if options.out is not None:
        settings = {
            "rounds": options.rounds,
            "batch": options.batch,
            "layers": layers,
            "log": options.examples,
        }
        what = (__doc__ or "").splitlines()[0]
        save(options.out, what, {"runs": results, "ratios": ratios, "settings": settings})


if __name__ == "__main__":
    main()
