"""Cost of one slow trainer, and gain of balancing its dense updates.

The machines are emulated.

    shadowsync generate demo-data-300k --examples 300000 --eval-examples 50000 --seed 1 --reuse
    python benchmarks/quality/unequal_trainers.py --job examples/demo.toml --seeds 3 \\
        --set 'data.path="demo-data-300k/train-*.parquet"' 'data.eval_path="demo-data-300k/eval-*.parquet"' \\
        --out benchmarks/quality/results/unequal_trainers.json

*equal* trainers together are as fast as trainers of which the first is three times slower. All times are ten
times the defaults, so that the job takes minutes, not seconds; this changes only how soon a balance is found.
Runs that are in the file already are not made again; `--only` names variants.
"""

from __future__ import annotations

from typing import Any, Final

from shadowsync.benchmarks.quality.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing

SLOWER: Final = 3.0
TEN_TIMES: Final = Timing(
    step_seconds=0.2,
    lookup_seconds=0.01,
    push_seconds=0.01,
    round_cpu_seconds=0.02,
    round_seconds=0.04,
    center_seconds=0.01,
)
BALANCED: Final = "trainer.balance=updates"
ALGORITHMS: Final = {
    "easgd": ("sync.algorithm=easgd",),
    "ma": ("sync.algorithm=ma",),
    "ma weighted": ("sync.algorithm=ma", "sync.options={weighted=true}"),
}


def machines(count: int) -> dict[str, Variant]:
    """Return settings and machines of `count` trainers, whose total speed is the same."""
    equal = TEN_TIMES.model_copy(update={"slower": (count / (count - 1 + 1 / SLOWER),) * count})
    one_slow = TEN_TIMES.model_copy(update={"slower": (SLOWER,)})
    return {"equal": ((), equal), "one slow": ((), one_slow), "one slow, balanced": ((BALANCED,), one_slow)}


VARIANTS: Final[dict[str, Variant]] = {
    f"{count} trainers, {algorithm}, {name}": ((f"trainer.count={count}", *settings, *more), timing)
    for count in (2, 4)
    for algorithm, settings in ALGORITHMS.items()
    for name, (more, timing) in machines(count).items()
}


def figures(result: VirtualResult) -> dict[str, Any]:
    """Return the figures to keep of a run."""
    return {
        "ne": result.ne,
        "training_ne": result.training_ne,
        "iterations": result.iterations,
        "dense_updates": result.dense_updates,
        "rounds": result.rounds,
        "divergence": result.divergence,
        "seconds": result.seconds,
    }


if __name__ == "__main__":
    run_variants(__doc__, VARIANTS, figures)
