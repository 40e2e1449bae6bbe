"""`shadowsync predict`: a saved model's scores of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..options import OutPath, checkpoint_option, memory_option, precision_option, run_argument, trust_option
from .beside_training import yield_to_training

if TYPE_CHECKING:
    from ...pipeline.checkpoint.manifest import Which
    from ...pipeline.models.precision import Precision


@click.command()
@run_argument
@click.option(
    "--data",
    "data",
    required=True,
    multiple=True,
    help="File, glob or URL to score, in the job's format; the label may be absent. May be repeated.",
)
@click.option("--out", required=True, type=OutPath("file"), help="The file to write: .csv, or Parquet.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="Also write this column. May be repeated.")
@checkpoint_option("--which")
@memory_option
@trust_option
@precision_option
def predict(
    run: str,
    data: tuple[str, ...],
    out: Path,
    keep: tuple[str, ...],
    which: Which,
    precision: Precision,
    trust: bool,
    memory_bytes: int | None,
) -> None:
    """Score files with the model that RUN saved.

    The output has one row per input row, in order, with the columns file, row (from 1: a line of text, a row
    of Parquet), probability, logit and label; with score in place of probability and logit if the model has
    its own scores. A row that cannot be read, or whose logit is not finite, has no probability; the command
    prints how many such rows there are, and the first of them.
    """
    yield_to_training(run)
    from ...pipeline.data.files.paths import absolute_path
    from ...pipeline.saved_model.model import SavedModel
    from ...pipeline.saved_model.prediction import write_predictions
    from ...pipeline.saved_model.untrained_ids import untrained_lines
    from ...pipeline.text.format import counted

    model = SavedModel.open(run, which, precision, trust=trust, memory_bytes=memory_bytes)
    done = write_predictions(model, [absolute_path(pattern) for pattern in data], out, keep)
    for line in done.first:
        click.echo(f"no score for {line}", err=True)
    click.echo(f"{model.description}, of {model.manifest.run}")
    click.echo(f"{counted(done.rows, 'row')}, {done.without_score:,} of them without a score: {out}")
    for line in untrained_lines(done.ids.as_dict()):
        click.echo(line)
