"""A profile as profile.md, as a picture, and on the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..atomic_file import atomic_file, write_text
from ..text.format import count, counted, data_rate, duration, number, percent
from ..text.markdown import markdown_table, plain
from .document import PROFILE_JSON, PROFILE_MARKDOWN, PROFILE_PICTURE, TRACE_JSON, Profile
from .measurements import NodeMeasurements
from .worker_time import WorkerTime

CROWDED_SHARE: Final = 1 / 3
SHOWN_SHARE: Final = 0.005
BAR_WIDTH: Final = 30
HEADLINES: Final = {
    "compute": "The bottleneck is compute: the workers' own work takes {share} of their time",
    "reader": "The bottleneck is the reader: workers wait {share} of their time for batches",
    "network": "The bottleneck is the network: workers wait {share} of their time for messages on the way",
    "embedding": "The bottleneck is the embedding nodes: workers wait {share} of their time for them",
    "disk": "The bottleneck is the disk of the embedding nodes: workers wait {share} of their time for them",
    "sync": "The bottleneck is synchronization: workers wait {share} of their time for rounds",
    "gil": "The bottleneck is the GIL: workers wait {share} of their time for Python's interpreter lock",
    "balanced": "There is no bottleneck: no cause takes a third of the workers' time",
}
# Each part of `WorkerTime` in words, and its colour in the picture.
CAUSES: Final = {
    "compute": ("in steps of the model", "tab:green"),
    "core": ("ready to work, without a core", "yellowgreen"),
    "gil": ("ready to work, without the interpreter lock", "tab:red"),
    "handling": ("in the worker's own Python", "tab:gray"),
    "reader": ("waiting for batches: reader", "tab:blue"),
    "embedding": ("waiting for vectors: embedding nodes", "tab:orange"),
    "network": ("waiting for vectors and batches: network", "tab:purple"),
    "sync": ("waiting for synchronization", "tab:brown"),
}


def write_profile(directory: Path, profile: Profile, events: list[dict[str, Any]]) -> None:
    """Write trace.json, profile.json, the picture and profile.md, each atomically.

    Any thread may call. Raises ResourceError if a file cannot be written.
    """
    if profile.trace is not None:
        error = profile.trace.clock_error_seconds
        trace = {
            "displayTimeUnit": "ms",
            "otherData": {"clock_error_seconds": error},
            "traceEvents": events,
        }
        write_text(directory / TRACE_JSON, json.dumps(trace, separators=(",", ":")) + "\n")
    write_text(directory / PROFILE_JSON, profile.model_dump_json(indent=1) + "\n")
    draw_profile(profile, directory)
    write_text(directory / PROFILE_MARKDOWN, render_profile(profile))


def render_profile(profile: Profile) -> str:
    """Render profile.md, ending in a newline; it links the picture beside it."""
    verdict, measured = profile.verdict, profile.measured
    lines = [f"# Profile of {measured.run}", "", f"**{_headline(profile)}**", "", _summary(profile), ""]
    lines += [f"![Where the time of the workers goes]({PROFILE_PICTURE})", "", "## Why", ""]
    lines += [f"- {plain(reason)}" for reason in verdict.reasons]
    lines += ["", "## What would help", "", *(f"- {remedy}" for remedy in verdict.remedies)]
    lines += ["", "## Where the time of the workers goes", ""]
    parts = [(words, percent(share, 1)) for words, share, _ in _causes(verdict.time)]
    lines += markdown_table(("what", "share"), parts)
    lines += ["", "## Nodes", "", *_nodes(measured.nodes), "", "## Links", "", *_links(profile)]
    lines += ["", "## How it was measured", "", *(f"- {note}" for note in profile.notes), *_trace(profile)]
    return "\n".join(lines) + "\n"


def print_profile(profile: Profile, console: Console) -> None:
    """Print the verdict, where the time goes, why, and what would help.

    Writes no colours or control codes if `console` is not a terminal. Only its owning thread may call.
    """
    verdict = profile.verdict
    colour = "yellow" if verdict.bottleneck not in ("compute", "balanced") else "green"
    console.print(Text(_headline(profile), style=f"bold {colour}"))
    console.print(Text(_summary(profile)))
    console.print()
    table = Table.grid(padding=(0, 2))
    for words, share, _ in _causes(verdict.time):
        if share >= SHOWN_SHARE:
            table.add_row(
                Text(percent(share, 1), justify="right"), "█" * max(1, round(share * BAR_WIDTH)), words
            )
    console.print(table)
    for title, texts in (("Why", verdict.reasons), ("What would help", verdict.remedies)):
        console.print()
        console.print(Text(title, style="bold"))
        points = Table.grid(padding=(0, 1))
        for text in texts:
            points.add_row("-", Text(text.replace("`", "")))
        console.print(points)
    console.print()
    for note in profile.notes:
        console.print(Text(note, style="dim"))


def draw_profile(profile: Profile, directory: Path) -> None:
    """Draw profile.png into `directory` atomically. Raises ResourceError."""
    # Imported here, because matplotlib takes half a second and 40 MB, which only the process that writes a
    # profile should pay. Not pyplot, which keeps global state and is bound to one thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names, shares, colours = zip(*reversed(_causes(profile.verdict.time)), strict=True)
    bars = axes.barh(names, shares, color=colours)
    axes.bar_label(bars, labels=[percent(share) for share in shares], padding=3)
    axes.set_xlim(0.0, max(1.0, *shares) * 1.08)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    axes.set_xlabel("share of the workers' time")
    axes.set_title(f"{profile.measured.run}: {profile.verdict.bottleneck}")
    axes.spines[["top", "right"]].set_visible(False)
    with atomic_file(directory / PROFILE_PICTURE) as file:
        figure.savefig(file, format="png", dpi=110)


def _headline(profile: Profile) -> str:
    verdict = profile.verdict
    text = HEADLINES[verdict.bottleneck].format(share=percent(verdict.share))
    if verdict.bottleneck == "compute" and verdict.time.core >= CROWDED_SHARE:
        text += f", {percent(verdict.time.core)} without a core to run on"
    return f"{text}."


def _summary(profile: Profile) -> str:
    measured = profile.measured
    trainers = len(measured.of("trainer"))
    return (
        f"{duration(measured.seconds)} of training by {counted(trainers, 'trainer')} with"
        f" {counted(measured.workers, 'worker')} each:"
        f" {count(profile.examples_per_second)} examples/s."
    )


def _causes(time: WorkerTime) -> list[tuple[str, float, str]]:
    """Return each cause in words, its share and colour, largest first."""
    parts = [(words, float(getattr(time, cause)), colour) for cause, (words, colour) in CAUSES.items()]
    return sorted(parts, key=lambda part: -part[1])


def _nodes(nodes: Iterable[NodeMeasurements]) -> list[str]:
    head = ("node", "cores used", "busiest threads: on a core + waiting for one", "stopped")
    rows = []
    for node in nodes:
        threads = sorted(node.threads.items(), key=lambda item: -item[1].cpu_seconds)[:3]
        shares = [
            (name, time.cpu_seconds / node.seconds, time.core_wait_seconds / node.seconds)
            for name, time in threads
        ]
        # Threads below a hundredth of a core are left out.
        busiest = ", ".join(
            f"{name} {percent(cpu)} + {percent(wait)}" for name, cpu, wait in shares if cpu + wait >= 0.01
        )
        cores = number(node.cpu_seconds / node.seconds, 2)
        rows.append((node.name, cores, busiest or "none", percent(node.stalled_share)))
    return markdown_table(head, rows)


def _links(profile: Profile) -> list[str]:
    rows = [
        (link.trainer, link.other, data_rate(link.sent), data_rate(link.received), data_rate(link.shared))
        for link in profile.links
        if link.sent or link.received
    ]
    return markdown_table(("trainer", "and", "sent", "received", "in shared memory"), rows)


def _trace(profile: Profile) -> list[str]:
    trace = profile.trace
    if trace is None:
        return []
    clocks = "one clock"
    if trace.clock_error_seconds:
        clocks = f"clocks that may be {duration(trace.clock_error_seconds)} apart"
    return [
        f"- {TRACE_JSON}: {duration(trace.seconds)} of every thread of every node, {count(trace.events)}"
        f" events by {clocks}; open it in https://ui.perfetto.dev or chrome://tracing."
    ]
