"""`shadowsync importance`: how much each column matters to a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..options import checkpoint_option, memory_option, precision_option, run_argument, trust_option
from .beside_training import yield_to_training

if TYPE_CHECKING:
    from ...pipeline.checkpoint.manifest import Which
    from ...pipeline.metrics.importance import Importance
    from ...pipeline.models.precision import Precision


@click.command()
@run_argument
@click.option(
    "--data",
    "data",
    required=True,
    multiple=True,
    help="File, glob or URL with rows that were not trained on, in the job's format. May be repeated.",
)
@click.option("--label", default="", metavar="LABEL", help="One of several labels; by default the first.")
@click.option("--rows", default=20_000, show_default=True, type=click.IntRange(2), help="Rows of the sample.")
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(1), help="Exchanges of each column."
)
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Begin no exchange after this time; every column has one before one has a second.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the exchanges.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@checkpoint_option("--which")
@memory_option
@trust_option
@precision_option
def importance(
    run: str,
    data: tuple[str, ...],
    label: str,
    rows: int,
    repeats: int,
    seconds: float,
    seed: int,
    as_json: bool,
    which: Which,
    precision: Precision,
    trust: bool,
    memory_bytes: int | None,
) -> None:
    """Measure how much each column matters to the model that RUN saved.

    One column's values are exchanged between rows, and the rows are scored again (permutation importance):
    NE rises by what the model had from this column alone. Two columns that say the same matter little each.
    The figures are also written into the report of RUN, if it is a run's folder with one. Sample weights are
    not used, so NE and AUC of weighted rows differ from those of eval.
    """
    yield_to_training(run)
    from ...pipeline.data.files.paths import absolute_path
    from ...pipeline.saved_model.importance import permutation_importance
    from ...pipeline.saved_model.model import SavedModel

    model = SavedModel.open(run, which, precision, trust=trust, memory_bytes=memory_bytes)
    patterns = [absolute_path(pattern) for pattern in data]
    measured = permutation_importance(
        model, patterns, label=label, rows=rows, repeats=repeats, seconds=seconds, seed=seed
    )
    if as_json:
        click.echo(measured.model_dump_json())
    else:
        _print(measured)
    _add_to_report(Path(run), measured)


def _print(measured: Importance) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ...pipeline.report.rendering.importance import importance_in_words
    from ...pipeline.text.format import number

    click.echo(importance_in_words(measured))
    table = Table(box=None, pad_edge=False)
    for name in ("column", "NE rises by", "deviation", "AUC falls by"):
        table.add_column(name, justify="left" if name == "column" else "right", no_wrap=True)
    for column in measured.columns:
        figures = (column.ne_increase, column.ne_deviation, column.auc_decrease)
        table.add_row(Text(column.name), *(number(figure, 5) for figure in figures))
    click.echo()
    Console().print(table)


def _add_to_report(folder: Path, measured: Importance) -> None:
    from ...pipeline.report.run_folders.run_folder import shown
    from ...pipeline.report.run_folders.write import JSON_NAME, MARKDOWN_NAME, read_report, rewrite_texts

    try:
        report = read_report(folder / JSON_NAME)
    except (OSError, ValueError):
        # A storage, a checkpoint's folder, or a run that still trains.
        return
    rewrite_texts(folder, report.model_copy(update={"importance": measured}))
    click.echo(f"also in {shown((folder / MARKDOWN_NAME).absolute())}", err=True)
