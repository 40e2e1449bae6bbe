"""`shadowsync eval`: the quality of a saved model on data files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..options import checkpoint_option, memory_option, precision_option, run_argument, trust_option
from .beside_training import yield_to_training

if TYPE_CHECKING:
    from ...pipeline.checkpoint.manifest import Which
    from ...pipeline.models.precision import Precision
    from ...pipeline.saved_model.slices import Slices


@click.command(name="eval")
@run_argument
@click.option(
    "--data",
    "data",
    required=True,
    multiple=True,
    help="File or glob to score, in the job's format. May be repeated.",
)
@click.option(
    "--by",
    default="",
    metavar="COLUMN",
    help="Also the quality by the values of this column, GAUC, and the ranking within each value.",
)
@click.option(
    "--top",
    default=None,
    show_default="10",
    type=click.IntRange(1),
    help="Rows of a value that count for NDCG, recall and MAP with --by, and items with --items.",
)
@click.option(
    "--items",
    default="",
    metavar="FILE",
    help="Two towers: also rank each positive row's item among the items of this file or glob, in the job's"
    ' format, or, with "training", of the training part.  [default: validation.items]',
)
@click.option(
    "--label", default="", metavar="LABEL", help="With --by: one of several labels; by default the first."
)
@click.option(
    "--slices", default=20, show_default=True, type=click.IntRange(1), help="Values shown with --by."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@checkpoint_option("--which")
@memory_option
@trust_option
@precision_option
def evaluate(
    run: str,
    data: tuple[str, ...],
    by: str,
    top: int | None,
    items: str,
    label: str,
    slices: int,
    as_json: bool,
    which: Which,
    precision: Precision,
    trust: bool,
    memory_bytes: int | None,
) -> None:
    """Score the model that RUN saved on data files, without a cluster.

    Of a job with several labels the figures are those of the first, with those of each label after them.

    With --items, recall, NDCG and hit rate of the first items, and MRR, are over all of these items. What is
    a query, and whether items of the training part are left out, is as in the job's [validation].

    With --by COLUMN, also score each value of that column, worst first (by excess logloss over a constant
    prediction).
    """
    yield_to_training(run)
    import json

    from ...pipeline.config.sections import TOP_ROWS
    from ...pipeline.data.files.paths import absolute_path
    from ...pipeline.errors import DataError
    from ...pipeline.retrieval.evaluate import evaluate_retrieval, retrieval_settings
    from ...pipeline.saved_model.evaluate import evaluate_model
    from ...pipeline.saved_model.model import SavedModel
    from ...pipeline.saved_model.slices import score_slices
    from ...pipeline.saved_model.untrained_ids import untrained_lines
    from ...pipeline.types import MOST_TOP_ROWS, NEED_PROBABILITIES

    if label and not by:
        raise click.UsageError("--label goes with --by; without it the figures of each label are shown")
    if top is not None and top > MOST_TOP_ROWS:
        raise click.UsageError(f"--top is {top}; give 1 to {MOST_TOP_ROWS}")
    patterns = [absolute_path(pattern) for pattern in data]
    model = SavedModel.open(run, which, precision, trust=trust, memory_bytes=memory_bytes)
    scores = evaluate_model(model, patterns)
    if (retrieval := retrieval_settings(model.job, _absolute(items), top)) is not None:
        try:
            scores["retrieval"] = evaluate_retrieval(model, patterns, retrieval).as_dict()
        except DataError as error:
            # The other figures need no training data, which may be gone.
            if items or not retrieval.needs_training_part:
                raise
            click.echo(f"figures over a catalogue are left out: {error}; --items names another", err=True)
    by_value = score_slices(model, patterns, by, label, top or TOP_ROWS) if by else None
    if as_json:
        click.echo(json.dumps(scores if by_value is None else {**scores, "by": by_value.as_dict(slices)}))
        return
    curve, labels = scores.pop("calibration_curve", []), scores.pop("labels", {})
    untrained, groups = scores.pop("untrained_ids"), scores.pop("groups", None)
    own_metrics, ranked = scores.pop("own", {}), scores.pop("retrieval", None)
    hint = "; give --items" if ranked is None and model.job.model.has_towers else ""
    if ranked is not None:
        # Of pairs alone there is nothing but their ranks.
        scores = {key: value for key, value in scores.items() if value is not None}
    for key, value in scores.items():
        undefined = f"not defined, since all labels are the same{hint}"
        shown = f"{value:.6f}" if isinstance(value, float) else undefined if value is None else value
        click.echo(f"{key:>17}  {shown}")
    for name, value in own_metrics.items():
        click.echo(f"{name:>17}  {'not defined' if value is None else f'{value:.6f}'}")
    if groups is not None:
        _print_ranking(groups)
    if ranked is not None:
        _print_retrieval(ranked)
    for line in untrained_lines(untrained):
        click.echo(f"{'ids':>17}  {line}")
    if curve:
        _print_curve(curve)
    else:
        click.echo(f"{'left out':>17}  {', '.join(NEED_PROBABILITIES)}: the scores are no probabilities")
    if labels:
        _print_labels(labels)
    if by_value is not None:
        _print_slices(by_value, slices)


def _absolute(items: str) -> str:
    """Return a file of items as a path from the root; "training", and nothing, as they are."""
    from ...pipeline.data.files.paths import absolute_path
    from ...pipeline.types import TRAINING_ITEMS

    return absolute_path(items) if items not in ("", TRAINING_ITEMS) else items


def _print_curve(curve: list[dict[str, float]]) -> None:
    from ...pipeline.text.format import count, number

    click.echo(f"\n{'examples':>17}  {'predicted':>10}  {'label rate':>10}  (equal parts, by score)")
    for part in curve:
        shown = (number(part["predicted"], 6), number(part["rate"], 6))
        click.echo(f"{count(round(part['examples'])):>17}  {shown[0]:>10}  {shown[1]:>10}")


def _print_labels(labels: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ...pipeline.report.rendering.wording import metric_name
    from ...pipeline.text.format import number

    table = Table(box=None, pad_edge=False)
    names = [name for name in next(iter(labels.values())) if name != "calibration_curve"]
    for name in ("label", *map(metric_name, names)):
        table.add_column(name, justify="left" if name == "label" else "right", no_wrap=True)
    for label, figures in labels.items():
        table.add_row(Text(label), *(number(figures[name], 4) for name in names))
    click.echo()
    Console().print(table)


def _print_ranking(ranking: dict[str, Any]) -> None:
    from ...pipeline.text.format import counted, number

    by = ranking["column"] + (f" of {ranking['label']}" if "label" in ranking else "")
    over = f"over {counted(ranking['groups'], 'value')} with a positive"
    for name, value in ranking.items():
        if "@" in name:
            click.echo(f"{name:>17}  {number(value, 6)} by {by}, {over}")
    for name in ("rows_without_group", "rows_left_out"):
        if ranking[name]:
            click.echo(f"{name:>17}  {ranking[name]:,}")


def _print_retrieval(ranked: dict[str, Any]) -> None:
    from ...pipeline.text.format import counted, number

    over = f"over {counted(ranked['queries'], 'query', 'queries')} and {counted(ranked['items'], 'item')}"
    for name, value in ranked.items():
        if "@" in name or name == "mrr":
            click.echo(f"{name:>17}  {number(value, 6)} {over}")
    for name in ("rows_not_in_catalogue", "rows_without_group", "rows_left_out"):
        if ranked[name]:
            click.echo(f"{name:>17}  {ranked[name]:,}")


def _print_slices(slices: Slices, most: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ...pipeline.text.format import count, number

    within = f"{count(slices.gauc_slices)} of {count(len(slices.slices))} values with both labels"
    click.echo(f"{'gauc':>17}  {number(slices.gauc, 6)} by {slices.column}, over {within}")
    if any(scores.rate < 1 for scores in slices.slices):
        # Where all rows are positives any order is as good.
        _print_ranking({"column": slices.column} | slices.ranking.as_dict())
    table = Table(box=None, pad_edge=False)
    for name in (slices.column, "examples", "rate", "NE", "AUC", "calibration"):
        table.add_column(name, justify="left" if name == slices.column else "right", no_wrap=True)
    for scores in slices.slices[:most]:
        figures = (scores.rate, scores.ne, scores.auc, scores.calibration)
        shown = "missing" if scores.value is None else scores.value[:40]
        table.add_row(Text(shown), count(scores.examples), *(number(figure, 4) for figure in figures))
    Console().print(table)
    if len(slices.slices) > most:
        click.echo(f"{count(len(slices.slices) - most)} more values; --slices shows more")
