"""A slow network under training that waits for rounds or does not.

The comparison is the paper's main one.

    python benchmarks/speed/network/slow_network.py --rounds 10 --out slow_network.json

Every round runs every way to synchronize under every delay, in alternation, with a relay between the nodes
that synchronize (also at 0 ms, and under `none`). Each run is appended to a file of JSON lines beside --out;
started again, the benchmark continues after the last line. Ratios are to `none` of the same round and delay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from shadowsync.benchmarks.job_runs import on_log, run_job
from shadowsync.benchmarks.pairs import ratio, save
from shadowsync.lab.comparison.variants import Variant, parse_variants
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.text.markdown import markdown_table

CELLS = "none,easgd,easgd@5,easgd@30,ma,ma@5,ma@30,bmuf,bmuf@5,bmuf@30"
COLOURS = {"easgd": "tab:blue", "ma": "tab:orange", "bmuf": "tab:green"}

Row = dict[str, Any]


def sections(
    log: Path, variant: Variant, delay_ms: int, seed: int, given: argparse.Namespace
) -> dict[str, Row]:
    """The job of one run."""
    sync: Row = {"algorithm": variant.algorithm, "mode": "shadow" if variant.every is None else "fixed"}
    if variant.every is not None:
        sync["every"] = variant.every
    return {
        **on_log(log, seed),
        "trainer": {"count": given.trainers, "workers": given.workers, "batch": given.batch},
        "embedding": {"nodes": 1},
        "sync": sync,
        "network": {"delay": f"{delay_ms}ms"},
    }


def measure(log: Path, variant: Variant, delay_ms: int, number: int, given: argparse.Namespace) -> Row:
    """One run, as a line of the file."""
    report = run_job(sections(log, variant, delay_ms, number + 1, given))
    speed = report.throughput.examples_per_second or 0.0
    assert report.network is not None
    return {
        "round": number,
        "delay_ms": delay_ms,
        "variant": variant.label,
        "steps_per_second": speed / given.batch,
        "gap_mean": report.sync.gap_mean,
        "gap_max": report.sync.gap_max,
        "rounds": report.sync.rounds,
        "round_seconds": report.sync.seconds_mean,
        "sync_bytes": report.sync.bytes,
        "ne": report.eval.ne if report.eval else None,
        "cpu_seconds_per_million": report.throughput.cpu_seconds_per_million,
        "relay_cpu_seconds": report.network.relay_cpu_seconds,
        "ledger_adds_up": report.ledger.adds_up,
    }


def read_rows(path: Path) -> list[Row]:
    """The whole lines of the file.

    A line that was cut off is removed, so that its run is measured again.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def run_all(log: Path, path: Path, given: argparse.Namespace) -> list[Row]:
    """Make all runs that the file lacks; return all rows."""
    rows = read_rows(path)
    done = {(row["round"], row["delay_ms"], row["variant"]) for row in rows}
    delays = [int(text) for text in given.delays.split(",")]
    variants = parse_variants(given.variants)
    for number in range(given.rounds):
        turn = [(delay, variant) for delay in delays for variant in variants]
        for delay, variant in turn if number % 2 == 0 else reversed(turn):
            if (number, delay, variant.label) in done:
                continue
            row = measure(log, variant, delay, number, given)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            rows.append(row)
            shown = f"{row['steps_per_second']:7.1f} steps/s  gap {row['gap_mean']}  NE {row['ne']}"
            print(f"round {number + 1}/{given.rounds}  {delay:4} ms  {variant.label:10} {shown}", flush=True)
    return rows


def summarize(rows: list[Row]) -> list[Row]:
    """A row for each delay and variant.

    A row has medians, and the ratio to `none`, paired by round.
    """
    speed = {(row["delay_ms"], row["variant"], row["round"]): row["steps_per_second"] for row in rows}
    found = []
    for delay, variant in dict.fromkeys((row["delay_ms"], row["variant"]) for row in rows):
        own = [row for row in rows if (row["delay_ms"], row["variant"]) == (delay, variant)]
        pairs = [
            (row["steps_per_second"], under)
            for row in own
            if (under := speed.get((delay, "none", row["round"]))) is not None
        ]
        summary: Row = {"delay_ms": delay, "variant": variant, "runs": len(own)}
        for key in ("steps_per_second", "gap_mean", "gap_max", "round_seconds", "sync_bytes", "ne"):
            values = [row[key] for row in own if row[key] is not None]
            summary[key] = statistics.median(values) if values else None
        if variant != "none" and pairs:
            summary["over_none"] = ratio([over for over, _ in pairs], [under for _, under in pairs])
        found.append(summary)
    return sorted(found, key=lambda row: row["delay_ms"])


def table(summary: list[Row]) -> str:
    """The summary as a Markdown table."""
    head = ["delay, one way", "algorithm", "steps/s", "over none (95%)", "sync gap, mean", "round", "NE"]
    rows = []
    for row in summary:
        over = row.get("over_none")
        cells = [
            f"{row['delay_ms']} ms",
            row["variant"],
            f"{row['steps_per_second']:.1f}",
            f"{over['median']:.3f} ({over['low']:.3f} to {over['high']:.3f})" if over else "",
            "" if row["gap_mean"] is None else f"{row['gap_mean']:.1f}",
            "" if row["round_seconds"] is None else f"{row['round_seconds'] * 1e3:.0f} ms",
            "" if row["ne"] is None else f"{row['ne']:.4f}",
        ]
        rows.append(cells)
    return "\n".join(markdown_table(head, rows))


def verdicts(summary: list[Row]) -> dict[str, bool]:
    """Whether the promises were kept, by their texts.

    In shadow mode, the interval of the ratio to none must begin at 0.95 or above. With rounds every 30
    iterations at 0 ms, its median must be at least 0.85.
    """
    found = {}
    for row in summary:
        over, (_, at, rate) = row.get("over_none"), row["variant"].partition("@")
        if over and not at:
            found[f"{row['variant']}, {row['delay_ms']} ms: at least 0.95 of none"] = over["low"] >= 0.95
        elif over and rate == "30" and row["delay_ms"] == 0:
            found[f"{row['variant']}, 0 ms: at least 0.85 of none"] = over["median"] >= 0.85
    return found


def draw(summary: list[Row], path: Path) -> None:
    """Draw the ratio of steps/s to none against the delay."""
    figure = Figure(figsize=(8.0, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for variant in dict.fromkeys(row["variant"] for row in summary if "over_none" in row):
        own = [row for row in summary if row["variant"] == variant]
        name, _, rate = variant.partition("@")
        style = {"": "-", "5": "--"}.get(rate, ":")
        x, over = [row["delay_ms"] for row in own], [row["over_none"] for row in own]
        axes.plot(x, [o["median"] for o in over], style, color=COLOURS.get(name, "tab:gray"), label=variant)
        axes.fill_between(
            x,
            [o["low"] for o in over],
            [o["high"] for o in over],
            color=COLOURS.get(name, "tab:gray"),
            alpha=0.1,
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("delay in ms, one way")
    axes.set_ylabel("steps/s over those of none")
    axes.grid(alpha=0.3)
    axes.legend(ncols=3, fontsize="small")
    figure.savefig(path)
    print(f"written: {path}")


def main() -> None:
    """Run what is missing, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--delays", default="0,20,50,200", help="in ms, one way")
    parser.add_argument("--variants", default=CELLS)
    parser.add_argument("--examples", type=int, default=300_000)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    log = given.data / f"log-{given.examples}-1"
    generate_log(
        log, examples=given.examples, eval_examples=50_000, seed=1, data_format="parquet", reuse=True
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    rows = run_all(log, given.out.with_suffix(".jsonl"), given)
    summary = summarize(rows)
    print(table(summary))
    promises = verdicts(summary)
    for text, holds in promises.items():
        print(f"{'holds' if holds else 'FAILS'}: {text}")
    draw(summary, given.out.with_suffix(".png"))
    what = (
        f"steps/s under a delay of the links of synchronization: {given.trainers} trainers of "
        f"{given.workers} workers, batch {given.batch}, {given.examples} examples"
    )
    save(given.out, what, {"verdicts": promises, "summary": summary, "runs": rows})


if __name__ == "__main__":
    main()
