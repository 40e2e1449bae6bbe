"""Quality and virtual time by the delay of the links, with eight trainers.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/quality/synchronization/link_delay.py --job examples/demo.toml --seeds 1 \\
        --out benchmarks/quality/results/link_delay.json

In shadow mode a round is due every 4 iterations, in fixed mode each worker waits for it. Synchronous data
parallelism is run as one trainer with a batch eight times as large; each of its steps takes the step time,
and the delay of the link twice, for its values to be sent and to come back. The picture has the time until
the NE in training was that of one trainer at its end, within CLOSE; who never gets there has no such time.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.quality.synchronization.ablation import (
    ALONE,
    BMUF,
    BMUF_AUTO,
    DILOCO,
    DOWNPOUR,
    SYMMETRIC_EASGD,
    every,
)
from shadowsync.benchmarks.quality.synchronization.data_parallel import BATCH
from shadowsync.benchmarks.quality.synchronization.virtual_variants import Variant, run_variants
from shadowsync.lab.virtual.result import CurvePoint, VirtualResult
from shadowsync.lab.virtual.timing import Timing

TRAINERS: Final = 8
GAP: Final = 4
DELAYS_MS: Final = (0, 20, 50, 200)
STEP_SECONDS: Final = Timing().step_seconds
# Points of a curve that a figure is the mean of, and how close to one trainer's is close enough.
WINDOW: Final = 8
CLOSE: Final = 1.01
# NE over that of one trainer at which the picture ends; what is above it is written there.
TOP: Final = 1.03
SUMMED: Final = (DOWNPOUR, f"sync.options={{rate={1 / TRAINERS}}}")
ALGORITHMS: Final[dict[str, tuple[str, ...]]] = {
    "easgd": ("sync.algorithm=easgd",),
    "ma": ("sync.algorithm=ma",),
    "bmuf": BMUF,
    "bmuf auto": BMUF_AUTO,
    "diloco": (DILOCO,),
    "tree": ("sync.algorithm=tree",),
    "easgd_symmetric": (SYMMETRIC_EASGD,),
    "downpour": SUMMED,
    "gaia": ("sync.algorithm=gaia", 'sync.options={combine="mean"}'),
    "ds_sync": ("sync.algorithm=ds_sync",),
}
MODES: Final = {"shadow": every(GAP), "fixed": ("sync.mode=fixed", f"sync.every={GAP}")}
PARALLEL: Final = "data parallel"


def variants() -> dict[str, Variant]:
    """Return all variants, by algorithm, mode and delay."""
    eight = f"trainer.count={TRAINERS}"
    found: dict[str, Variant] = {
        "1 trainer": (ALONE, Timing()),
        "none": ((eight, "sync.algorithm=none"), Timing()),
        PARALLEL: ((*ALONE, f"trainer.batch={BATCH * TRAINERS}"), Timing()),
    }
    for name, settings in ALGORITHMS.items():
        for mode, due in MODES.items():
            for delay in DELAYS_MS:
                link = (f'network.delay="{delay}ms"',) if delay else ()
                found[f"{name}, {mode}, {delay} ms"] = ((eight, *due, *settings, *link), Timing())
    return found


def figures(result: VirtualResult) -> dict[str, Any]:
    """Return the figures of a run; the curve is of NE in training."""
    curve = [(round(at.seconds, 3), at.ne) for at in smooth(result.curve)]
    return {"ne": result.ne, "gap": result.gap_mean, "seconds": result.seconds, "curve": curve}


def smooth(curve: list[CurvePoint]) -> list[CurvePoint]:
    """Return the points, each with the mean NE of the last WINDOW points."""
    known = [point for point in curve if point.ne is not None]
    return [
        point.model_copy(
            update={"ne": statistics.fmean(one.ne or 0.0 for one in known[at - WINDOW + 1 : at + 1])}
        )
        for at, point in enumerate(known)
        if at >= WINDOW - 1
    ]


def seconds_to(run: dict[str, Any], ne: float, slower: float = 1.0) -> float | None:
    """Return the virtual seconds until the NE in training was `ne`, or None."""
    return next((seconds * slower for seconds, found in run["curve"] if found <= ne), None)


def table(runs: dict[str, Any]) -> list[tuple[str, str, int, float, float, float | None]]:
    """Return algorithm, mode, delay, NE, and the seconds of each run."""
    goal = CLOSE * runs["1 trainer"]["1"]["curve"][-1][1]
    rows: list[tuple[str, str, int, float, float, float | None]] = []
    for delay in DELAYS_MS:
        # Its curve is that of one trainer with large batches, whose steps did not wait.
        waits = 1.0 + 2 * delay / 1000 / STEP_SECONDS
        own = runs[PARALLEL]["1"]
        rows.append(
            (PARALLEL, "synchronous", delay, own["ne"], own["seconds"] * waits, seconds_to(own, goal, waits))
        )
        for name in ALGORITHMS:
            for mode in MODES:
                if own := runs.get(f"{name}, {mode}, {delay} ms", {}).get("1"):
                    rows.append((name, mode, delay, own["ne"], own["seconds"], seconds_to(own, goal)))
    return rows


def draw(runs: dict[str, Any], path: Path) -> None:
    """Draw NE and the time to the NE of one trainer against the delay."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (quality, speed) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    lines: dict[tuple[str, str], list[tuple[int, float, float | None]]] = {}
    for name, mode, delay, ne, _, seconds in table(runs):
        lines.setdefault((name, mode), []).append((delay, ne, seconds))
    one = runs["1 trainer"]["1"]
    above: list[tuple[int, str, Any]] = []
    styles = {"shadow": "-", "fixed": "--", "synchronous": ":"}
    # The colors of tab20 come in pairs of one hue.
    palette = [mpl.colormaps["tab20"](at) for at in (*range(0, 20, 2), *range(1, 20, 2))]
    colors: dict[str, Any] = {PARALLEL: "black", **dict(zip(ALGORITHMS, palette, strict=False))}
    for (name, mode), points in lines.items():
        style = {"color": colors[name], "linestyle": styles[mode], "marker": "o", "markersize": 3}
        label = None if mode == "fixed" else name
        quality.plot([at[0] for at in points], [at[1] for at in points], label=label, **style)
        for delay, ne, _ in points:
            if ne > TOP * one["ne"]:
                above.append((delay, f"{name}, {mode}: {ne:.3f}", colors[name]))
        reached = [(delay, seconds) for delay, _, seconds in points if seconds is not None]
        speed.plot([at[0] for at in reached], [at[1] for at in reached], **style)
    quality.axhline(one["ne"], color="gray", linewidth=1.2, label="one trainer")
    speed.axhline(one["seconds"], color="gray", linewidth=1.2)
    quality.set(xlabel="delay of a link, one way, ms", ylabel="held-out NE")
    quality.set_ylim(top=TOP * one["ne"])
    speed.set(xlabel="delay of a link, one way, ms", ylabel="seconds to the NE of one trainer", yscale="log")
    for number, (delay, text, color) in enumerate(above):
        below = {"xytext": (0, -11 * number - 2), "textcoords": "offset points", "ha": "right", "va": "top"}
        quality.annotate(text, (delay, TOP * one["ne"]), color=color, fontsize="small", **below)
    for mode, line in styles.items():
        quality.plot([], [], color="gray", linestyle=line, label=mode)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Make the runs that are missing, then the table and the picture."""
    out, runs = run_variants(__doc__, variants(), figures)
    for name, mode, delay, ne, total, seconds in table(runs):
        reached = "never" if seconds is None else f"{seconds:.1f} s"
        print(f"{name}, {mode}, {delay} ms: NE {ne:.4f}, {total:.1f} s in all, {reached} to one trainer's NE")
    draw(runs, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
