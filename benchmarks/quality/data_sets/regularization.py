"""Whether dropout, layer norm, decay of rows and a moving average pay on small data, over several epochs.

    OMP_NUM_THREADS=1 python benchmarks/quality/data_sets/regularization.py --job examples/adult.toml \\
        --set data.path=DIR/adult.data.gz data.eval_path=DIR/adult.test.gz \\
        --out benchmarks/quality/results/regularization_adult.json
    OMP_NUM_THREADS=1 python benchmarks/quality/data_sets/regularization.py --job examples/movielens.toml \\
        --set data.path=DIR/ml-100k.inter.gz data.order=file data.shuffle_window=65536 trainer.batch=64 \\
        data.split.progressive=0 data.split.by=fraction data.split.test=0.2 \\
        --out benchmarks/quality/results/regularization_movielens.json

Emulated jobs; a seed sets the first values and the order of batches. Runs that are in the file already are
not made again.
"""

from __future__ import annotations

from typing import Any, Final

from shadowsync.benchmarks.quality.synchronization.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing

EPOCHS: Final = "data.epochs=4"
VARIANTS: Final[dict[str, Variant]] = {
    "1 epoch": (("data.epochs=1",), Timing()),
    "2 epochs": (("data.epochs=2",), Timing()),
    "4 epochs": ((EPOCHS,), Timing()),
    "dropout 0.1": ((EPOCHS, "model.dropout=0.1"), Timing()),
    "dropout 0.3": ((EPOCHS, "model.dropout=0.3"), Timing()),
    "layer norm": ((EPOCHS, "model.layer_norm=true"), Timing()),
    "row decay 0.001": ((EPOCHS, "embedding.weight_decay=0.001"), Timing()),
    "row decay 0.01": ((EPOCHS, "embedding.weight_decay=0.01"), Timing()),
    "row decay 0.1": ((EPOCHS, "embedding.weight_decay=0.1"), Timing()),
    "moving average 0.99": ((EPOCHS, "trainer.ema=0.99"), Timing()),
    "moving average 0.998": ((EPOCHS, "trainer.ema=0.998"), Timing()),
    "1 epoch, moving average 0.99": (("data.epochs=1", "trainer.ema=0.99"), Timing()),
}


def _figures(result: VirtualResult) -> dict[str, Any]:
    return {"ne": result.ne, "auc": result.auc, "training_ne": result.training_ne}


if __name__ == "__main__":
    run_variants(__doc__, VARIANTS, _figures)
