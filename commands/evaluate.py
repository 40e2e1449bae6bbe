"""`shadowsync eval`: the quality of a saved model on data files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .checkpoint_option import checkpoint_option

if TYPE_CHECKING:
    from ..pipeline.checkpoint.manifest import Which


@click.command(name="eval")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "data",
    required=True,
    multiple=True,
    help="File or glob to score, in the job's format. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@checkpoint_option("--which")
def evaluate(run_folder: Path, data: tuple[str, ...], as_json: bool, which: Which) -> None:
    """Score the model that RUN saved on data files, without a cluster."""
    import json

    from ..pipeline.data.paths import absolute_path
    from ..pipeline.saved_model.evaluate import evaluate_run

    scores = evaluate_run(run_folder, [absolute_path(pattern) for pattern in data], which)
    if as_json:
        click.echo(json.dumps(scores))
        return
    for key, value in scores.items():
        click.echo(f"{key:>12}  {value:.6f}" if isinstance(value, float) else f"{key:>12}  {value}")
