"""Quality by the number of trainers, emulated, on 10 million examples.

    shadowsync generate long-data --examples 10000000 --eval-examples 200000 --seed 1
    python benchmarks/quality/synchronization/long_log.py --job examples/demo.toml \\
        --out benchmarks/quality/results/long_log.json \\
        --set 'data.path="long-data/train-*.parquet"' 'data.eval_path="long-data/eval-*.parquet"'

Each number of trainers is run with EASGD, with BMUF as it is by default and with the published momentum, and
as synchronous data parallelism: one trainer with a batch n times as large. The rates are those of the job
file, which are the best of five for all on a million examples (data_parallel.py). The control is no
synchronization.
"""

from __future__ import annotations

from shadowsync.benchmarks.quality.synchronization.ablation import ALONE, BMUF, BMUF_AUTO, every, figures
from shadowsync.benchmarks.quality.synchronization.data_parallel import BATCH
from shadowsync.benchmarks.quality.synchronization.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.timing import Timing

TRAINERS = (2, 4, 8, 16, 32)
CONTROL = 8


def variants() -> dict[str, Variant]:
    """Return all variants."""
    found: dict[str, Variant] = {"1 trainer": (ALONE, Timing())}
    unsynchronized = (f"trainer.count={CONTROL}", "sync.algorithm=none")
    found[f"{CONTROL} trainers, none"] = (unsynchronized, Timing())
    for count in TRAINERS:
        shadow = (f"trainer.count={count}", *every(4))
        found[f"{count} trainers, easgd"] = (shadow, Timing())
        found[f"{count} trainers, bmuf"] = ((*shadow, *BMUF), Timing())
        found[f"{count} trainers, bmuf auto"] = ((*shadow, *BMUF_AUTO), Timing())
        found[f"{count} trainers, data parallel"] = ((*ALONE, f"trainer.batch={BATCH * count}"), Timing())
    return found


if __name__ == "__main__":
    run_variants(__doc__, variants(), figures)
