"""Cost of a job's key: whole jobs over TCP with and without it.

    python benchmarks/speed/network/encryption.py --out benchmarks/speed/results/encryption.json

All messages go over loopback TCP, none through shared memory, as between hosts: once with the default codecs,
float32 on every link, and once with bfloat16 vectors and gradients, half the bytes to encrypt. A pair is a
job without and one with the key, one right after the other, in alternating order. CPU seconds are read from
heartbeats, two a second, so a job should last for many of them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from shadowsync.benchmarks.job_runs import log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, table
from shadowsync.pipeline.wire.keys.http_token import TOKEN_VARIABLE
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey

EXAMPLES: Final = 1_000_000
EVAL_SHARE: Final = 20
LEAST_PAIRS: Final = 5
CODECS: Final[dict[str, dict[str, str]]] = {
    "float32 (default)": {},
    "bfloat16": {"vectors": "bfloat16", "gradients": "bfloat16"},
}
PLAIN, KEY = "plain", "key"
FIGURES = ("cpu_seconds_per_million", "examples_per_second")


def sections(log: Path, codecs: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return a job of two trainers, two embedding nodes and one sync node."""
    return {
        **on_log(log, seed=1),
        "model": {"embedding_dim": 16, "table_rows": 20_000},
        "trainer": {"count": 2, "batch": 256},
        "embedding": {"nodes": 2},
        "sync": {"algorithm": "easgd", "nodes": 1},
        "codecs": codecs,
        "network": {"transport": "tcp"},
        "report": {"pictures": False},
    }


def measured(log: Path, codecs: dict[str, str], key: Path | None) -> Figures:
    """Run one job; return its figures."""
    command = ("run", *(("--key", str(key)) if key is not None else ()))
    report = run_job(sections(log, codecs), command=command)
    assert report.ledger.adds_up
    figures = {name: getattr(report.throughput, name) for name in FIGURES}
    assert None not in figures.values()
    return figures


def ratios_of(results: Results) -> dict[str, dict[str, float]]:
    """Compare the jobs of each pair, with and without a key.

    Returns the median of the ratios, their range and the interval of `ratio`, by codecs and figure.
    """
    found = {}
    for codec in (name for name in CODECS if f"{name}, {KEY}" in results):
        for figure in FIGURES:
            key, plain = ([row[figure] for row in results[f"{codec}, {how}"]] for how in (KEY, PLAIN))
            paired = np.array(key) / np.array(plain)
            ends = {"least": float(paired.min()), "most": float(paired.max())}
            found[f"{codec}: {figure}, key over plain"] = ratio(key, plain) | ends
    return found


def show(name: str, value: dict[str, float]) -> str:
    """Return one line for a ratio."""
    spread = f"{value['least']:.3f} to {value['most']:.3f}"
    interval = f"95% {value['low']:.3f} to {value['high']:.3f}"
    return f"{name}: {value['median']:.3f} ({spread}; {interval}; {value['pairs']:.0f} pairs)"


def write(path: Path, results: Results) -> None:
    """Save the results so far."""
    what = "jobs over loopback TCP with and without a key"
    save(path, what, {"runs": results, "ratios": ratios_of(results)})


def main() -> None:
    """Run the pairs and save them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, help="a generated log; by default one is made")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="of the log that is made")
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS, help="of each codecs, with and without")
    parser.add_argument("--only", nargs="*", choices=list(CODECS), default=list(CODECS))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.pairs < LEAST_PAIRS:
        print(f"fewer than {LEAST_PAIRS} pairs: enough to see that it works, and not to report", flush=True)
    # Otherwise jobs without --key would take a key from the environment.
    for variable in (KEY_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        os.environ.pop(variable, None)
    with (
        log_or_generated(given.log, given.examples, given.examples // EVAL_SHARE) as log,
        tempfile.TemporaryDirectory(prefix="benchmark-key-") as folder,
    ):
        key = Path(folder) / "job.key"
        JobKey.generate().write(key)
        runs: dict[str, Callable[[], Figures]] = {
            f"{name}, {how}": partial(measured, log, codecs, file)
            for name, codecs in CODECS.items()
            if name in given.only
            for how, file in ((PLAIN, None), (KEY, key))
        }
        results = alternate(runs, given.pairs, after=partial(write, given.out))
    print(table(results))
    for name, value in ratios_of(results).items():
        print(show(name, value))


if __name__ == "__main__":
    main()
