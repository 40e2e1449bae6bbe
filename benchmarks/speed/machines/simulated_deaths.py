"""Goodput of trainers that die: merges that wait for nobody, beside synchronous data parallelism. Simulated.

    python benchmarks/speed/machines/simulated_deaths.py --out benchmarks/speed/results/simulated_deaths.json

The costs of a trainer and of a round are those of simulated_scaling.py. A merge comes about every 600
iterations, 30 s. Each line has another time between the deaths of one trainer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.pairs import save
from shadowsync.benchmarks.speed.machines.simulated_scaling import FAST_LINK, costs, measured_cells
from shadowsync.lab.simulation.setting import Setting
from shadowsync.lab.simulation.simulate import SimulatedPoint, simulate
from shadowsync.lab.simulation.sweep import assumptions
from shadowsync.pipeline.text.format import count, duration, number
from shadowsync.pipeline.text.markdown import markdown_table

HOURS: Final = {
    "1 year": 365 * 24.0,
    "30 days": 30 * 24.0,
    "36.5 hours": 36.5,
    "1 hour": 1.0,
    "20 minutes": 1 / 3,
}
"""Between two deaths of a trainer. 36.5 hours: of 240 chips, of each of which one a year fails."""
GOAL: Final = 0.88


def setting_of(hours: float, trainers: int) -> Setting:
    """Return the setting with so many hours between two deaths of a trainer."""
    measured, cells = measured_cells()
    given: dict[str, Any] = costs(measured, cells) | {
        "link_bytes_per_second": FAST_LINK,
        "delay_seconds": 50e-6,
    }
    return Setting(
        **given,
        trainers=trainers,
        sync_nodes=64,
        merges=True,
        longest_wait_seconds=30.0,
        gap=600,
        duty=1.0,
        deaths_an_hour=1 / hours,
        detection_seconds=10.0,
        recovery_seconds=120.0,
        checkpoint_seconds=300.0,
        start_seconds=30.0,
        warm_seconds=61.0,
        seconds=150.0,
    )


def goodput_table(points: Sequence[tuple[str, SimulatedPoint]]) -> list[str]:
    """Render the points as lines of a Markdown table."""
    head = [
        "a trainer dies every",
        "one of all every",
        "deaths in the window",
        "goodput",
        "gap",
        "in a merge",
    ]
    head += ["data parallel", "its closed form"]
    rows = []
    for between, point in points:
        setting, beside = point.setting, point.data_parallel
        assert beside is not None
        of_all = duration(3600.0 / setting.deaths_an_hour / setting.trainers)
        ours = (
            str(point.deaths),
            number(point.goodput, 3),
            number(point.gap, 0),
            number(point.merged_share, 2),
        )
        rows.append((between, of_all, *ours, number(beside.goodput, 3), number(beside.expected_goodput, 3)))
    return markdown_table(head, rows)


def main() -> None:
    """Simulate each time between deaths, print the table, and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trainers", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON")
    given = parser.parse_args()
    settings = [setting_of(hours, given.trainers) for hours in HOURS.values()]
    with ProcessPoolExecutor(given.processes) as pool:
        points = list(zip(HOURS, pool.map(simulate, settings), strict=True))
    print(f"simulated: {count(given.trainers)} trainers", *assumptions(settings[0])[1:], sep="\n")
    print("\n".join(goodput_table(points)))
    print(f"goal, at least {GOAL}: {', '.join(name for name, point in points if point.goodput >= GOAL)}")
    if given.out is not None:
        results = {between: point.model_dump(mode="json") for between, point in points}
        save(given.out, "simulated deaths", results)


if __name__ == "__main__":
    main()
