"""Full pipeline over plain Hogwild, and shadow synchronization over none.

All runs are on one machine.

    python benchmarks/speed/machines/pipeline.py --rounds 10 [--peer P2_TORCH.py] \\
        --out benchmarks/speed/results/pipeline.json

All nodes are counted: reader, embedding, sync, coordinator and trainers share the cores that Hogwild has
to itself. `shadow` has the default algorithm. To check the baseline, `--peer` also runs another program,
which prints a JSON line with `ex_s` and `cpu_s_per_M`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import run_job
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.benchmarks.peers.peer_log import write_peer_log

HERE = Path(__file__).resolve().parent
COMPARED = (
    ("shadow", "hogwild"),
    ("none", "hogwild"),
    ("shadow", "none"),
    ("easgd", "none"),
    ("hogwild", "peer"),
)


def hogwild(batch: int) -> Figures:
    """The baseline, in a process of its own."""
    command = [sys.executable, str(HERE / "hogwild.py"), "--batch", str(batch)]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def peer(script: str, batch: int) -> Figures:
    """Another program's Hogwild with a fused table."""
    command = [sys.executable, script, "--mode", "hogwild", "--emb", "fused", "--batch", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(script).parent)
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return {"examples_per_second": line["ex_s"], "cpu_seconds_per_million": line["cpu_s_per_M"]}


def ours(log: Path, batch: int, sync: dict[str, Any]) -> Figures:
    """The figures of a whole job of ours.

    1 reader, 1 embedding node, 2 trainers of 1 worker, and a sync node if the algorithm has a center.
    """
    report = run_job(
        {
            "data": {"format": "parquet", "path": str(log)},
            "model": {"table_rows": 100_000},
            "trainer": {"count": 2, "workers": 1, "batch": batch, "optimizer": "sgd", "lr": 0.01},
            "embedding": {"nodes": 1, "optimizer": "sgd", "lr": 0.01},
            "sync": sync,
        }
    )
    figures = {
        "examples_per_second": report.throughput.examples_per_second or 0.0,
        "cpu_seconds_per_million": report.throughput.cpu_seconds_per_million or 0.0,
    }
    if report.sync.gap_mean is not None:
        figures |= {"gap_mean": report.sync.gap_mean, "sync_megabytes": report.sync.bytes / 1e6}
    return figures


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=600_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--peer")
    parser.add_argument("--only", nargs="+", help="cases; by default all")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, default=Path("pipeline.json"))
    given = parser.parse_args()
    log = write_peer_log(given.data / f"peer-{given.examples}.parquet", given.examples)
    runs: dict[str, Callable[[], Figures]] = {
        "hogwild": lambda: hogwild(given.batch),
        "shadow": lambda: ours(log, given.batch, {}),
        "easgd": lambda: ours(log, given.batch, {"algorithm": "easgd"}),
        "none": lambda: ours(log, given.batch, {"algorithm": "none"}),
    }
    if given.peer:
        runs["peer"] = lambda: peer(given.peer, given.batch)
    results = alternate({name: runs[name] for name in given.only or runs}, given.rounds)
    ratios = {
        f"{over} / {under}, {figure}": ratio(
            [row[figure] for row in results[over]], [row[figure] for row in results[under]]
        )
        for over, under in COMPARED
        if over in results and under in results
        for figure in ("examples_per_second", "cpu_seconds_per_million")
    }
    print(table(results))
    for name, value in ratios.items():
        print(show_ratio(name, value))
    save(given.out, f"pipeline, batch {given.batch}", {"ratios": ratios, "runs": results})


if __name__ == "__main__":
    main()
