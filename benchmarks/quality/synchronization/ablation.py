"""What each cause costs: one setting changed at a time, on emulated machines.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/quality/synchronization/ablation.py --job examples/demo.toml --seeds 3 \\
        --out benchmarks/quality/results/ablation.json

Runs that are in the file already are not made again. `--only` names variants. Each run takes as long as its
arithmetic on one core, half a minute for the demo's log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shadowsync.benchmarks.quality.synchronization.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing

PLATEAU_NE = 0.95
# The demo's job file warms up the learning rates of rows.
COLD = "embedding.warmup_iterations=0"
ALONE = ("trainer.count=1", "sync.algorithm=none")
COLD_ALONE = (*ALONE, COLD)
KEEP = ("sync.algorithm=ma", 'sync.options={form="keep"}')
WARM_UP = "trainer.schedule={warmup_examples=100000}"
# 15 iterations of each of 8 trainers.
DENSE_WARM_UP = "trainer.schedule={warmup_examples=60000, tables=false}"
BOTH_WARM_UP = "trainer.schedule={warmup_examples=60000}"
# Lookups and pushes take no time, so that rows are stale only because others train meanwhile.
FRESH = Timing(lookup_seconds=0.0, push_seconds=0.0)


def every(iterations: int) -> tuple[str, ...]:
    """Return shadow settings with a round every `iterations` iterations of a trainer.

    The algorithm is EASGD, unless a later setting names another one.
    """
    return ("sync.algorithm=easgd", "sync.duty=1.0", f"sync.gap={iterations}")


FOUR = ("trainer.count=4", *every(4))
EIGHT = ("trainer.count=8", *every(4))
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "algorithms"
DILOCO = f"sync.algorithm={EXAMPLES}/diloco.py:DiLoCo"
DOWNPOUR = f"sync.algorithm={EXAMPLES}/downpour.py:Downpour"
SYMMETRIC_EASGD = f"sync.algorithm={EXAMPLES}/easgd_symmetric.py:SymmetricEASGD"
BMUF = ("sync.algorithm=bmuf",)
# The published momentum from the first round on.
BMUF_AUTO = (*BMUF, 'sync.options={elastic_rate=0.5, block_momentum="auto"}')
STATE = "sync.optimizer_state=synchronized"
ADAM = ("trainer.optimizer=adam", "trainer.lr=0.001")
# The rows warm up over as many examples as with 2 or 4 trainers.
TWO_WORKERS = (*ALONE, "trainer.workers=2", "embedding.warmup_iterations=60")
FOUR_WORKERS = (*ALONE, "trainer.workers=4", "embedding.warmup_iterations=120")
COLD_FOUR, COLD_EIGHT = (*FOUR, COLD), (*EIGHT, COLD)
VARIANTS: dict[str, Variant] = {
    "1 trainer": (COLD_ALONE, Timing()),
    "1 trainer, float32": ((*COLD_ALONE, "trainer.precision=float32"), Timing()),
    "2 trainers, easgd, gap 4": (("trainer.count=2", COLD, *every(4)), Timing()),
    "4 trainers, none": (("trainer.count=4", COLD, "sync.algorithm=none"), Timing()),
    "4 trainers, easgd, gap 4": (COLD_FOUR, Timing()),
    "4 trainers, easgd, gap 1": (("trainer.count=4", COLD, *every(1)), Timing()),
    "4 trainers, easgd, gap 20": (("trainer.count=4", COLD, *every(20)), Timing()),
    "4 trainers, easgd, gap 4, fresh rows": ((*COLD_FOUR, "trainer.lookups_ahead=0"), FRESH),
    "4 trainers, easgd, gap 4, float32": ((*COLD_FOUR, "trainer.precision=float32"), Timing()),
    "4 trainers, easgd, gap 4, elastic rate 0.3": ((*COLD_FOUR, "sync.options={elastic_rate=0.3}"), Timing()),
    "4 trainers, easgd, gap 4, lr doubled": ((*COLD_FOUR, "trainer.lr=0.02"), Timing()),
    "4 trainers, easgd, gap 4, warm-up": ((*COLD_FOUR, WARM_UP), Timing()),
    "1 trainer, warm-up": ((*COLD_ALONE, WARM_UP), Timing()),
    "1 trainer, lr halved": ((*COLD_ALONE, "trainer.lr=0.005"), Timing()),
    "1 trainer, lr doubled": ((*COLD_ALONE, "trainer.lr=0.02"), Timing()),
    "4 trainers, easgd, gap 4, lr halved": ((*COLD_FOUR, "trainer.lr=0.005"), Timing()),
    "4 trainers, ma, gap 4": ((*COLD_FOUR, "sync.algorithm=ma"), Timing()),
    "4 trainers, ma keep, gap 4": ((*COLD_FOUR, *KEEP), Timing()),
    "4 trainers, downpour, gap 4": ((*COLD_FOUR, DOWNPOUR), Timing()),
    "8 trainers, easgd, gap 4": (COLD_EIGHT, Timing()),
    "8 trainers, ma keep, gap 4": ((*COLD_EIGHT, *KEEP), Timing()),
    "8 trainers, none": (("trainer.count=8", COLD, "sync.algorithm=none"), Timing()),
    "8 trainers, easgd, gap 4, embedding lr 0.007": ((*COLD_EIGHT, "embedding.lr=0.007"), Timing()),
    "8 trainers, easgd, gap 4, dense warm-up": ((*COLD_EIGHT, DENSE_WARM_UP), Timing()),
    "8 trainers, easgd, gap 4, both warm-up": ((*COLD_EIGHT, BOTH_WARM_UP), Timing()),
    "1 trainer, rows warm up": (ALONE, Timing()),
    "2 trainers, easgd, gap 4, rows warm up": (("trainer.count=2", *every(4)), Timing()),
    "4 trainers, easgd, gap 4, rows warm up": (FOUR, Timing()),
    "8 trainers, easgd, gap 4, rows warm up": (EIGHT, Timing()),
    "8 trainers, easgd, gap 1, rows warm up": (("trainer.count=8", *every(1)), Timing()),
    "8 trainers, ma keep, gap 4, rows warm up": ((*EIGHT, *KEEP), Timing()),
    "8 trainers, easgd, gap 4, rows warm up, lr 0.015": ((*EIGHT, "trainer.lr=0.015"), Timing()),
    "8 trainers, none, rows warm up": (("trainer.count=8", "sync.algorithm=none"), Timing()),
    "8 trainers, easgd, gap 4, rows warm up 40": ((*EIGHT, "embedding.warmup_iterations=40"), Timing()),
    "1 trainer, 2 workers, rows warm up": (TWO_WORKERS, Timing()),
    "1 trainer, 4 workers, rows warm up": (FOUR_WORKERS, Timing()),
    "1 trainer, 4 workers, rows warm up, lr halved": ((*FOUR_WORKERS, "trainer.lr=0.005"), Timing()),
    "1 trainer, rows warm up, lr halved": ((*ALONE, "trainer.lr=0.005"), Timing()),
    "1 trainer, rows warm up, lr doubled": ((*ALONE, "trainer.lr=0.02"), Timing()),
    "1 trainer, batches of 2048, rows warm up": ((*ALONE, "trainer.batch=2048"), Timing()),
    "4 trainers, easgd, gap 4, rows warm up, lr halved": ((*FOUR, "trainer.lr=0.005"), Timing()),
    "2 trainers, diloco, gap 4, rows warm up": (("trainer.count=2", *every(4), DILOCO), Timing()),
    "4 trainers, diloco, gap 4, rows warm up": ((*FOUR, DILOCO), Timing()),
    "8 trainers, diloco, gap 4, rows warm up": ((*EIGHT, DILOCO), Timing()),
    "2 trainers, bmuf auto, gap 4, rows warm up": (("trainer.count=2", *every(4), *BMUF_AUTO), Timing()),
    "4 trainers, bmuf auto, gap 4, rows warm up": ((*FOUR, *BMUF_AUTO), Timing()),
    "8 trainers, bmuf auto, gap 4, rows warm up": ((*EIGHT, *BMUF_AUTO), Timing()),
    "4 trainers, easgd, gap 4, rows warm up, state synchronized": ((*FOUR, STATE), Timing()),
    "1 trainer, adam, rows warm up": ((*ALONE, *ADAM), Timing()),
    "4 trainers, easgd, gap 4, adam, rows warm up": ((*FOUR, *ADAM), Timing()),
    "4 trainers, easgd, gap 4, adam, rows warm up, state synchronized": ((*FOUR, *ADAM, STATE), Timing()),
}


def figures(result: VirtualResult) -> dict[str, Any]:
    """Return the figures to keep of a run.

    `plateau_examples` is how many examples all trainers had trained when the NE in training first fell below
    PLATEAU_NE.
    """
    after = [point.examples for point in result.curve if point.ne is not None and point.ne < PLATEAU_NE]
    return {
        "ne": result.ne,
        "training_ne": result.training_ne,
        "plateau_examples": min(after, default=None),
        "gap": result.gap_mean,
        "staleness": result.staleness,
        "divergence": result.divergence,
    }


if __name__ == "__main__":
    run_variants(__doc__, VARIANTS, figures)
