"""Averaging with and without momentum, by gap, delay, model and trainers, emulated.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/quality/momentum.py --job examples/demo.toml --seeds 1 \\
        --out benchmarks/quality/results/momentum.json

Each setting is run with EASGD, with BMUF as it is by default, and with the published momentum from the first
round on. Settings that name no number of trainers have eight, and a round every 4 iterations.
"""

from __future__ import annotations

from shadowsync.benchmarks.quality.ablation import ALONE, BMUF, BMUF_AUTO, every, figures
from shadowsync.benchmarks.quality.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.timing import Timing

MODELS = {
    "dlrm": (),
    "dcn_v2": ('model.name="dcn_v2"',),
    "deepfm": ('model.name="./examples/own_model/deepfm.py:DeepFM"',),
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "gap 4": (),
    "gap 16": ("sync.gap=16",),
    "gap 30": ("sync.gap=30",),
    "50 ms": ('network.delay="50ms"',),
    "200 ms": ('network.delay="200ms"',),
    "2 trainers": ("trainer.count=2",),
    "4 trainers": ("trainer.count=4",),
    "32 trainers": ("trainer.count=32",),
    "dcn_v2": MODELS["dcn_v2"],
    "dcn_v2, gap 16": (*MODELS["dcn_v2"], "sync.gap=16"),
    "deepfm": MODELS["deepfm"],
    "deepfm, 2 trainers": (*MODELS["deepfm"], "trainer.count=2"),
    "deepfm, 4 trainers": (*MODELS["deepfm"], "trainer.count=4"),
}
ALGORITHMS = {"easgd": (), "bmuf auto": BMUF_AUTO, "bmuf": BMUF}


def variants() -> dict[str, Variant]:
    """Return all variants: one trainer by model, then each setting by algorithm."""
    found: dict[str, Variant] = {
        f"{name}, 1 trainer": ((*ALONE, *model), Timing()) for name, model in MODELS.items()
    }
    for setting, changes in SETTINGS.items():
        for name, algorithm in ALGORITHMS.items():
            settings = ("trainer.count=8", *every(4), *algorithm, *changes)
            found[f"{setting}, {name}"] = (settings, Timing())
    return found


if __name__ == "__main__":
    run_variants(__doc__, variants(), figures)
