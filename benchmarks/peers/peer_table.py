"""The tables of the comparison with other systems, in Markdown, from measured rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from shadowsync.benchmarks.pairs import ratio, show_ratio
from shadowsync.pipeline.text.markdown import markdown_table

Row = dict[str, Any]
OURS = {
    "shadowsync": "shadowsync over it",
    "shadowsync_prepared": "prepared over it",
    "shadowsync_shipped": "as shipped over it",
}
SPEED, COST = "examples_per_second", "cpu_seconds_per_million"
WORDS = {SPEED: "examples/s", COST: "CPU s per million"}


# The goals: batch, our run, the peer, the figure, and the bound of the ratio: least speed or highest cost.
GOALS = (
    (512, "shadowsync", "torch_hogwild_fused", SPEED, 0.85),
    (512, "shadowsync_prepared", "torch_hogwild_fused", SPEED, 0.85),
    (512, "shadowsync", "torchrec_dmp_p2_t1", SPEED, 1.4),
    (512, "shadowsync", "torch_ddp_mp", SPEED, 1.4),
    (2048, "shadowsync", "torchrec_dmp_p2_t1", SPEED, 1.05),
    (2048, "shadowsync", "torch_ddp_mp", SPEED, 1.05),
    (512, "shadowsync", "rpc_push_uv", COST, 0.85),
    (512, "shadowsync_prepared", "rpc_push_uv", COST, 0.85),
    (512, "shadowsync_shipped", "torchrec_dmp_p2_t1", SPEED, 2.5),
    (512, "shadowsync_shipped", "torch_ddp_mp", SPEED, 2.5),
    (2048, "shadowsync_shipped", "torchrec_dmp_p2_t1", SPEED, 2.0),
    (2048, "shadowsync_shipped", "torch_ddp_mp", SPEED, 2.0),
)


def tables(rows: Sequence[Row]) -> str:
    """A table for each batch size, then the goals and the failed runs.

    A table has medians, ranges, and our figures over each peer's, paired by round.
    """
    good = [row for row in rows if "failed" not in row]
    parts = [_table(good, batch) for batch in sorted({row["batch"] for row in good})]
    parts += ["\n".join(lines)] if (lines := goals(good)) else []
    failed = [
        f"- {row['name']}, batch {row['batch']}, round {row['round'] + 1}: {' '.join(row['failed'].split())}"
        for row in rows
        if "failed" in row
    ]
    return "\n\n".join([*parts, *(["Failed:\n\n" + "\n".join(failed)] if failed else [])])


def _table(rows: Sequence[Row], batch: int) -> str:
    by_name = _by_name(rows, batch)
    order = sorted(by_name, key=lambda name: -statistics.median(_values(by_name[name], SPEED)))
    ours = [name for name in OURS if name in by_name]
    heads = ["", "examples/s: median (range, runs)", "CPU s per million", *(OURS[name] for name in ours)]
    cells = []
    for name in order:
        own = by_name[name]
        speeds = _values(own, SPEED)
        row = [
            f"**{name}**" if name in OURS else name,
            f"{_median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f}, {len(speeds)})",
            f"{_median(_values(own, COST)):.1f}",
            *("" if name == one else over(by_name[one], own) for one in ours),
        ]
        cells.append(row)
    lines = [f"Batch {batch:,}:", "", *markdown_table(heads, cells)]
    steadies = [
        f"{name} {_median(values):,.0f}"
        for name in ours
        if (values := _values(by_name[name], "steady_examples_per_second"))
    ]
    note = f"Without the warm-up and the end, as the peers are measured: {', '.join(steadies)} examples/s."
    return "\n".join([*lines, *(["", note] if steadies else [])])


def goals(rows: Sequence[Row]) -> list[str]:
    """A line for each goal whose two sides were measured.

    A line has the ratio of the pairs, the bound, and whether it was met.
    """
    lines = []
    for batch, mine, theirs, key, bound in GOALS:
        by_name = _by_name(rows, batch)
        ours, other = by_name.get(mine, {}), by_name.get(theirs, {})
        both = sorted(set(ours) & set(other))
        if not both:
            continue
        found = ratio([ours[at][key] for at in both], [other[at][key] for at in both])
        met = found["median"] >= bound if key == SPEED else found["median"] <= bound
        aim = f"at {'least' if key == SPEED else 'most'} {bound:g}"
        name = f"{mine} over {theirs}, batch {batch:,}, {WORDS[key]}"
        lines.append(f"- {show_ratio(name, found)}; {aim}: {'met' if met else '**not met**'}")
    return lines


def over(ours: dict[int, Row], theirs: dict[int, Row]) -> str:
    """Our figures over theirs, paired by round.

    Median and 95% interval of examples/s, median of CPU seconds; "" without a pair.
    """
    both = sorted(set(ours) & set(theirs))
    if not both:
        return ""
    found = ratio([ours[at][SPEED] for at in both], [theirs[at][SPEED] for at in both])
    cost = ratio([ours[at][COST] for at in both], [theirs[at][COST] for at in both])
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f}); CPU {cost['median']:.2f}"


def _by_name(rows: Sequence[Row], batch: int) -> dict[str, dict[int, Row]]:
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row["batch"] == batch:
            found.setdefault(row["name"], {})[row["round"]] = row
    return found


def _values(rows: dict[int, Row], key: str) -> list[float]:
    return [row[key] for row in rows.values() if key in row]


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values))
