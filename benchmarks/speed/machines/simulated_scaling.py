"""Simulated scaling beside the measured 1 to 32 trainers of results/scaling.json, and far beyond.

    python benchmarks/speed/machines/simulated_scaling.py --check                     # seconds
    python benchmarks/speed/machines/simulated_scaling.py \\
        --out benchmarks/speed/results/simulated_scaling.json  # minutes

The measured trainers computed by a sleep; all of synchronization was real (results.md, "Scaling"). The
simulation's costs are those of the cells of one trainer: its step, the CPU seconds of a round, and those of a
further sync node. Links have the bandwidth that was set. Nothing is fitted to any other cell.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.pairs import save
from shadowsync.lab.simulation.setting import Setting
from shadowsync.lab.simulation.simulate import SimulatedPoint, simulate
from shadowsync.lab.simulation.sweep import Sweep, draw_sweep, simulate_all, sweep_table, with_window
from shadowsync.pipeline.text.format import number, percent
from shadowsync.pipeline.text.markdown import markdown_table

MEASURED: Final = Path(__file__).resolve().parents[1] / "results" / "scaling.json"
EVERY: Final = 5
WARM_SECONDS: Final = 5.0
SECONDS: Final = 8.0
SEEDS: Final = (1, 2, 3)
STEPS_GOAL: Final = 0.10
GAP_GOAL: Final = 0.20
# results.md: an exchange of 40 MB takes 44 ms of a sync node.
CENTER_SECONDS_PER_BYTE: Final = 0.044 / 40e6
COUNTS: Final = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
FAST_LINK: Final = 25e9 / 8
# The goal for the gap in results.md.
GAP_LIMIT: Final = 60.0

Cell = Mapping[str, Any]


def measured_cells(path: Path = MEASURED) -> tuple[Cell, list[Cell]]:
    """Return the setting of the measurement and its cells."""
    results = json.loads(path.read_text("utf-8"))["results"]
    return results["setting"], results["cells"]


def costs(setting: Cell, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the costs that the cells of one trainer show."""
    alone = {(cell["mode"], cell["sync_nodes"]): cell for cell in cells if cell["trainers"] == 1}
    one, four = alone["shadow", 1], alone["shadow", 4]
    further = (four["round_cpu_seconds"] - one["round_cpu_seconds"]) / 3
    return {
        "step_seconds": 1 / one["steps_per_second"],
        "round_cpu_seconds": one["round_cpu_seconds"],
        "message_cpu_seconds": max(0.0, further),
        "model_bytes": setting["model_bytes"],
        "center_seconds_per_byte": CENTER_SECONDS_PER_BYTE,
        "link_bytes_per_second": setting["rate_mbit"] * 1e6 / 8,
    }


def simulated_cell(cell: Cell, given: Mapping[str, Any], seeds: Sequence[int]) -> tuple[float, float]:
    """Return steps/s and gap of a cell, means over seeds.

    Trainers start spread over the steps of a round.
    """
    points = [
        simulate(
            Setting(
                **given,
                trainers=cell["trainers"],
                sync_nodes=cell["sync_nodes"],
                mode=cell["mode"],
                every=EVERY,
                start_seconds=EVERY * given["step_seconds"],
                warm_seconds=WARM_SECONDS,
                seconds=SECONDS,
                seed=seed,
            )
        )
        for seed in seeds
    ]
    steps = statistics.mean(point.steps_per_second for point in points)
    return steps, steps / statistics.mean(point.rounds_per_second for point in points)


def compared(
    modes: Sequence[str] = ("shadow", "fixed"), seeds: Sequence[int] = SEEDS, **changed: Any
) -> list[dict[str, Any]]:
    """Compare each measured cell with its simulation, with costs changed.

    `round_cpu_seconds="own"` takes the CPU seconds of a round from the cell itself.
    """
    setting, cells = measured_cells()
    given = costs(setting, cells) | changed
    rows = []
    for cell in cells:
        if cell["mode"] not in modes:
            continue
        own = given
        if changed.get("round_cpu_seconds") == "own":
            own = given | {"round_cpu_seconds": cell["round_cpu_seconds"], "message_cpu_seconds": 0.0}
        steps, gap = simulated_cell(cell, own, seeds)
        was_gap = cell["steps_per_second"] / cell["rounds_per_second"]
        rows.append(
            {key: cell[key] for key in ("trainers", "mode", "sync_nodes")}
            | {"measured_steps": cell["steps_per_second"], "simulated_steps": steps}
            | {"steps_error": steps / cell["steps_per_second"] - 1}
            | {"measured_gap": was_gap, "simulated_gap": gap, "gap_error": gap / was_gap - 1}
        )
    return rows


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the cells beyond the goals."""
    found = []
    for row in rows:
        name = f"{row['mode']}, {row['sync_nodes']} sync, {row['trainers']} trainers"
        if abs(row["steps_error"]) > STEPS_GOAL:
            found.append(f"{name}: steps/s {row['steps_error']:+.0%}")
        if row["mode"] == "shadow" and abs(row["gap_error"]) > GAP_GOAL:
            found.append(f"{name}: gap {row['gap_error']:+.0%}")
    return found


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Render the comparison as a Markdown table."""
    head = ("sync nodes", "mode", "trainers", "steps/s", "simulated", "off", "gap", "simulated", "off")
    lines = [
        (
            str(row["sync_nodes"]),
            row["mode"],
            str(row["trainers"]),
            number(row["measured_steps"], 1),
            number(row["simulated_steps"], 1),
            percent(row["steps_error"]),
            number(row["measured_gap"], 1),
            number(row["simulated_gap"], 1),
            percent(row["gap_error"]),
        )
        for row in rows
    ]
    return "\n".join(markdown_table(head, lines))


def layouts() -> dict[str, list[Setting]]:
    """Return the layouts to draw up to 10,000 trainers, on links of 25 Gbit/s."""
    setting, cells = measured_cells()
    given = costs(setting, cells) | {"link_bytes_per_second": FAST_LINK, "delay_seconds": 50e-6}
    variants: dict[str, dict[str, Any]] = {
        "1 sync node": {"sync_nodes": 1},
        "8 sync nodes": {"sync_nodes": 8},
        "64 sync nodes": {"sync_nodes": 64},
        "tree, sites of 32": {"site_size": 32, "site_every": 8},
        "tree, sites of 32, all in every 64th": {"site_size": 32, "site_every": 64},
    }
    found: dict[str, list[Setting]] = {}
    for label, changed in variants.items():
        counts = [count for count in COUNTS if count >= changed.get("site_size", 1)]
        found[label] = [with_window(Setting(**given, **changed, trainers=count)) for count in counts]
    return found


def carried(sweep: Sweep) -> list[str]:
    """Say how many trainers each layout carries, and what ends it."""
    lines = []
    for label, points in sweep.series.items():
        within = [point for point in points if point.gap is not None and point.gap <= GAP_LIMIT]
        beyond = [point for point in points if point not in within]
        ends = f"; beyond it: {beyond[0].limit}" if beyond else ""
        most = within[-1].setting.trainers if within else 0
        lines.append(f"{label}: gap at most {GAP_LIMIT:.0f} up to {most:,} trainers{ends}")
    return lines


def draw_validation(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the simulated shadow curves with the measured points."""
    setting, cells = measured_cells()
    given = costs(setting, cells)
    series: dict[str, list[SimulatedPoint]] = {}
    measured: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        if row["mode"] == "shadow":
            label = f"{row['sync_nodes']} sync nodes, 100 Mbit/s"
            layout = {"trainers": row["trainers"], "sync_nodes": row["sync_nodes"], "seed": 1}
            series.setdefault(label, []).append(simulate(with_window(Setting(**given, **layout))))
            point = (row["trainers"], row["measured_steps"], row["measured_gap"])
            measured.setdefault(label, []).append(point)
    draw_sweep(series, path, measured)


def main() -> None:
    """Compare, and unless told otherwise draw beyond."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare with what was measured")
    parser.add_argument("--out", type=Path, help="JSON; a picture beside it")
    given = parser.parse_args()
    rows = compared()
    print(comparison_table(rows))
    print("beyond the goals:", *missed(rows), sep="\n- ")
    own = compared(round_cpu_seconds="own")
    print("beyond them with each cell's own CPU seconds of a round:", *missed(own), sep="\n- ")
    wrong = compared(link_bytes_per_second=1e9 / 8)
    print("the control, a link of ten times the bandwidth:", *missed(wrong), sep="\n- ")
    if given.check:
        return
    sweep = simulate_all(f"the cells of one trainer of {MEASURED.name}", layouts(), print)
    print("\n".join(sweep_table(sweep)))
    print("\n".join(carried(sweep)))
    if given.out is not None:
        results = {"compared": rows, "with_own_cpu": own, "wrong_link": wrong}
        save(given.out, "simulated scaling", results | {"simulated": sweep.model_dump(mode="json")})
        draw_sweep(sweep.series, given.out.with_suffix(".png"))
        draw_validation(rows, given.out.with_name(f"{given.out.stem}_beside_measured.png"))


if __name__ == "__main__":
    main()
