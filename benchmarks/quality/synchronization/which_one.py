"""Which algorithm where: NE by algorithm, number of trainers, and what disturbs them, on emulated machines.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/quality/synchronization/which_one.py --job examples/demo.toml --seeds 1 \\
        --out benchmarks/quality/results/which_one.json

A round is due every 4 iterations. *slow*: trainer 0 is three times slower. *stands still*: trainer 0 does for
3 s in every 9, where a step takes 60 ms instead of 20: for 50 iterations in 150. The links of *50 ms* and
*200 ms* delay each way. `--only` names variants; runs that are in the file already are not made again. Ends
with the table of means over the seeds.
"""

from __future__ import annotations

import statistics
from typing import Any, Final

from shadowsync.benchmarks.quality.synchronization.ablation import (
    ALONE,
    DILOCO,
    DOWNPOUR,
    SYMMETRIC_EASGD,
    every,
)
from shadowsync.benchmarks.quality.synchronization.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.text.markdown import markdown_table

ALONE_NAME: Final = "1 trainer"
COUNTS: Final = (2, 4, 8, 32)
ALGORITHMS: Final = ("bmuf", "decoupled", "easgd", "easgd_symmetric", "downpour", "diloco")
DISTURBED: Final[dict[str, Variant]] = {
    "undisturbed": ((), Timing()),
    "slow": ((), Timing(slower=(3.0,))),
    "stands still": ((), Timing(step_seconds=0.06, stop_seconds=3.0, stop_every_seconds=9.0)),
    "50 ms": (('network.delay="50ms"',), Timing()),
    "200 ms": (('network.delay="200ms"',), Timing()),
    "10 Mbit/s": (('network.bandwidth="10mbit"',), Timing()),
}


def settings_of(algorithm: str, trainers: int) -> tuple[str, ...]:
    """Return the settings of an algorithm with so many trainers."""
    chosen = {
        "easgd_symmetric": (SYMMETRIC_EASGD,),
        "downpour": (DOWNPOUR, f"sync.options={{rate={1 / trainers}}}"),
        "diloco": (DILOCO,),
    }
    return (
        f"trainer.count={trainers}",
        *every(4),
        *chosen.get(algorithm, (f"sync.algorithm={algorithm}",)),
    )


VARIANTS: Final[dict[str, Variant]] = {
    ALONE_NAME: (ALONE, Timing()),
    **{
        f"{algorithm}, {trainers}, {how}": ((*settings_of(algorithm, trainers), *link), timing)
        for algorithm in ALGORITHMS
        for trainers in COUNTS
        for how, (link, timing) in DISTURBED.items()
    },
}


def figures(result: VirtualResult) -> dict[str, Any]:
    """Return the figures to keep of a run."""
    return {
        "ne": result.ne,
        "rounds": result.rounds,
        "gap": result.gap_mean,
        "iterations": result.iterations,
        "seconds": result.seconds,
    }


def rows(made: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each number of trainers and disturbance, with a mean NE for each algorithm."""
    found: list[tuple[str, ...]] = []
    for trainers in COUNTS:
        for how in DISTURBED:
            cells = [made.get(f"{algorithm}, {trainers}, {how}", {}) for algorithm in ALGORITHMS]
            if any(cells):
                found.append((str(trainers), how, *map(cell, cells)))
    return found


def cell(runs: dict[str, Any]) -> str:
    """Return the mean NE of runs, and how many there are."""
    return f"{statistics.fmean(run['ne'] for run in runs.values()):.4f} ({len(runs)})" if runs else ""


if __name__ == "__main__":
    _, made = run_variants(__doc__, VARIANTS, figures)
    print("\n".join(markdown_table(("trainers", "", *ALGORITHMS), rows(made))))
