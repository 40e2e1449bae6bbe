"""Several simulations, as a JSON file and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from ...pipeline.atomic_file import atomic_file, write_text
from ...pipeline.errors import JobFileError
from ...pipeline.text.format import MISSING, amount, count, duration, number, percent
from ...pipeline.text.markdown import markdown_table
from ...pipeline.types import ResultModel, first_fault
from .setting import Setting
from .simulate import SimulatedPoint, simulate

JSON_NAME: Final = "simulation.json"
PICTURE_NAME: Final = "simulation.png"
# A window of so many times between rounds, after a start of so many.
_MEASURED_PERIODS: Final = 6.0
_WARM_PERIODS: Final = 2.0


class Sweep(ResultModel):
    """The content of simulation.json.

    Attributes:
        source: where costs and times come from.
        series: points by the label of their layout.
    """

    format_version: Literal[1] = 1
    what: Literal["simulated"] = "simulated"
    source: str
    series: dict[str, list[SimulatedPoint]]

    def write(self, directory: Path) -> None:
        """Write JSON and picture into `directory`, each atomically."""
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / JSON_NAME, self.model_dump_json(indent=1) + "\n")
        draw_sweep(self.series, directory / PICTURE_NAME)


def with_window(setting: Setting) -> Setting:
    """Return the setting with a window of several times between rounds."""
    slowest = max(
        setting.cpu_of_round / setting.duty,
        (setting.gap or 0) * setting.step_seconds,
        setting.trainers * setting.slice_bytes / setting.link_bytes_per_second,
        setting.trainers * setting.center_seconds_per_byte * setting.model_bytes / setting.sync_nodes,
        setting.every * setting.step_seconds if setting.mode == "fixed" else 0.0,
    )
    window = {"warm_seconds": _WARM_PERIODS * slowest, "seconds": _MEASURED_PERIODS * slowest}
    # Trainers that start at one moment would meet at the center again and again.
    return setting.model_copy(update=window | {"start_seconds": slowest})


def simulate_all(
    source: str,
    series: Mapping[str, Sequence[Setting]],
    tell: Callable[[str], object] = lambda line: None,  # noqa: ARG005
) -> Sweep:
    """Simulate each setting, and call `tell` with a line about each."""
    simulated: dict[str, list[SimulatedPoint]] = {}
    for label, settings in series.items():
        points = simulated[label] = []
        for setting in settings:
            points.append(simulate(setting))
            tell(f"{label}, {count(setting.trainers)} trainers: {describe(points[-1])}")
    return Sweep(source=source, series=simulated)


def describe(point: SimulatedPoint) -> str:
    return (
        f"{amount(point.steps_per_second)} steps/s, gap {number(point.gap, 1)}, a round in"
        f" {duration(point.round_seconds)}, limit: {point.limit}"
    )


def parse_settings(texts: Sequence[str], settings: Mapping[str, Any]) -> Setting:
    """Return the setting that `settings` and KEY=VALUE texts over them give; raises JobFileError."""
    values: dict[str, Any] = dict(settings)
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in Setting.model_fields:
            raise JobFileError(
                f"--setting: {text!r} is not KEY=VALUE of {', '.join(Setting.model_fields)}",
                remedy="write --setting sync_nodes=8",
            )
        values[key] = value
    try:
        return Setting.model_validate(values)
    except ValidationError as error:
        raise JobFileError(f"--setting: {first_fault(error)}", remedy="give another value") from error


def sweep_table(sweep: Sweep) -> list[str]:
    """Render the points as lines of a Markdown table."""
    head: tuple[str, ...] = (
        "layout",
        "trainers",
        "steps/s",
        "gap",
        "round",
        "link busy",
        "work busy",
        "goodput",
    )
    head += ("data parallel", "limit")
    rows = []
    for label, points in sweep.series.items():
        for point in points:
            figures = (amount(point.steps_per_second), number(point.gap, 1), duration(point.round_seconds))
            busy = (percent(point.link_busy), percent(point.service_busy))
            parallel = point.data_parallel
            goodput = (number(point.goodput, 3), MISSING if parallel is None else number(parallel.goodput, 3))
            rows.append((label, count(point.setting.trainers), *figures, *busy, *goodput, point.limit))
    return markdown_table(head, rows)


def assumptions(setting: Setting) -> list[str]:
    """Say what is assumed of deaths, in lines; none without deaths."""
    if not setting.deaths_an_hour:
        return []
    between = duration(3600.0 / setting.deaths_an_hour)
    noticed, replaced = duration(setting.detection_seconds), duration(setting.recovery_seconds)
    return [
        f"assumed: each trainer dies every {between} in the mean, at any moment; that is noticed after"
        f" {noticed}, and another one trains {replaced} later.",
        "Goodput: iterations that are kept, over those of trainers that never wait nor die. A dead trainer"
        " loses what it did since its last round.",
        "Data parallel: one death stops all for as long, and takes them to their last checkpoint, one every"
        f" {duration(setting.checkpoint_seconds)} of training; checkpoints and all-reduces cost nothing.",
    ]


def draw_sweep(
    series: Mapping[str, Sequence[SimulatedPoint]],
    path: Path,
    measured: Mapping[str, Sequence[tuple[int, float, float]]] | None = None,
) -> None:
    """Draw steps/s and sync gap against the number of trainers, atomically.

    Args:
        series: simulated points by label.
        path: the PNG file.
        measured: (trainers, steps/s, gap) by the label of the same layout, to draw beside them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ...pipeline.report.rendering.curves import legend_below

    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    titles = ((left, "steps/s of all trainers"), (right, "sync gap, iterations"))
    for axes, title in titles:
        axes.set(xscale="log", yscale="log", xlabel="trainers", title=f"{title} (simulated)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, alpha=0.3)
    for label, points in series.items():
        counts = [point.setting.trainers for point in points]
        (line,) = left.plot(counts, [point.steps_per_second for point in points], "-", label=label)
        with_gap = [(n, point.gap) for n, point in zip(counts, points, strict=True) if point.gap is not None]
        if with_gap:
            right.plot(*zip(*with_gap, strict=True), "-", color=line.get_color())
        for trainers, steps, gap in (measured or {}).get(label, ()):
            left.plot([trainers], [steps], "o", color=line.get_color())
            right.plot([trainers], [gap], "o", color=line.get_color())
    handles, labels = left.get_legend_handles_labels()
    legend_below(left, handles, labels, title="dots: measured" if measured else None)
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)
