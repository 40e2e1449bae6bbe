"""Shadow synchronization against synchronous data parallelism, at rates that suit each, on emulated machines.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/quality/synchronization/data_parallel.py --job examples/demo.toml --seeds 2 \\
        --out benchmarks/quality/results/data_parallel.json

Data parallelism of n trainers steps by the mean gradient of n batches. It is run as one trainer with a batch
n times as large. The learning rates of the dense model and of the rows are multiplied by one factor; all runs
try the same five factors. All train the same number of examples; their time over a slow link is not compared.
"""

from __future__ import annotations

from shadowsync.benchmarks.quality.synchronization.ablation import BMUF, BMUF_AUTO, every, figures
from shadowsync.benchmarks.quality.synchronization.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.timing import Timing

BATCH = 512
DENSE_LR, ROWS_LR = 0.01, 0.02
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
TRAINERS = (1, 8, 32)


def variants() -> dict[str, Variant]:
    """Return all variants: trainers, synchronization, and a factor on the rates."""
    found: dict[str, Variant] = {}
    for factor in FACTORS:
        rates = (f"trainer.lr={DENSE_LR * factor:g}", f"embedding.lr={ROWS_LR * factor:g}")
        for count in TRAINERS:
            alone = ("trainer.count=1", "sync.algorithm=none", f"trainer.batch={BATCH * count}")
            found[f"{count} trainers, data parallel, rates x{factor:g}"] = ((*alone, *rates), Timing())
            if count > 1:
                shadow = (f"trainer.count={count}", *every(4), *rates)
                found[f"{count} trainers, easgd, rates x{factor:g}"] = (shadow, Timing())
                found[f"{count} trainers, bmuf, rates x{factor:g}"] = ((*shadow, *BMUF), Timing())
                found[f"{count} trainers, bmuf auto, rates x{factor:g}"] = ((*shadow, *BMUF_AUTO), Timing())
    return found


if __name__ == "__main__":
    run_variants(__doc__, variants(), figures)
