"""Quality against bytes of synchronization, by codec, in the virtual lab.

    python benchmarks/quality/synchronization/few_bits.py --job examples/demo.toml --seeds 3 \\
        --out benchmarks/quality/results/few_bits.json

Eight trainers, both ways by the same codec. `decoupled` sends deltas to centers, `bmuf` is an all-reduce.
"""

from __future__ import annotations

from typing import Any

from shadowsync.benchmarks.quality.synchronization.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing

WAYS = {"decoupled": "center", "bmuf": "peers"}
CODECS: dict[str, tuple[str, ...]] = {
    "float32": (),
    "bfloat16": ("bfloat16",),
    "int8": ("int8",),
    "int4": ("int4",),
    "int2": ("int2",),
    "topk 20%": ("topk", "topk_fraction=0.2"),
    "topk 10%": ("topk", "topk_fraction=0.1"),
    "topk 5%": ("topk", "topk_fraction=0.05"),
    "topk 5%, 4 bits": ("topk", "topk_fraction=0.05", "topk_bits=4"),
    "topk 2%": ("topk", "topk_fraction=0.02"),
    "topk 1%": ("topk", "topk_fraction=0.01"),
}


def settings(algorithm: str, codec: tuple[str, ...]) -> tuple[str, ...]:
    """Return the settings of a job with this codec both ways."""
    common = ("trainer.count=8", f"sync.algorithm={algorithm}")
    if not codec:
        return common
    name, *options = codec
    both = [f"{WAYS[algorithm]}_{way}={name}" for way in ("up", "down")]
    return (*common, *(f"codecs.{one}" for one in (*both, *options)))


VARIANTS: dict[str, Variant] = {
    f"{algorithm}, {name}": (settings(algorithm, codec), Timing())
    for algorithm in WAYS
    for name, codec in CODECS.items()
}


def figures(result: VirtualResult) -> dict[str, Any]:
    """Return what the table has of a run."""
    return {
        "ne": result.ne,
        "sync_bytes": result.sync_bytes,
        "rounds": result.rounds,
        "gap_mean": result.gap_mean,
        "divergence": result.divergence,
    }


def main() -> None:
    """Make the runs, and print a table."""
    _, made = run_variants(__doc__, VARIANTS, figures)
    print("| codec | NE by seed | over float32 | MB | fewer bytes | gap |\n|---|---|---|---|---|---|")
    for name, runs in made.items():
        plain = made.get(f"{name.split(',')[0]}, float32", {})
        seeds = [seed for seed in runs if seed in plain]
        if not seeds:
            continue
        ratio = sum(runs[seed]["ne"] for seed in seeds) / sum(plain[seed]["ne"] for seed in seeds) - 1
        fewer = sum(plain[seed]["sync_bytes"] for seed in seeds) / sum(
            runs[seed]["sync_bytes"] for seed in seeds
        )
        megabytes = runs[seeds[0]]["sync_bytes"] / 1e6
        scores = ", ".join(f"{runs[seed]['ne']:.4f}" for seed in seeds)
        gap = sum(runs[seed]["gap_mean"] for seed in seeds) / len(seeds)
        print(f"| {name} | {scores} | {ratio:+.2%} | {megabytes:,.0f} | {fewer:.1f} | {gap:.2f} |")


if __name__ == "__main__":
    main()
