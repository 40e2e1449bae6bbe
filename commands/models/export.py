"""`shadowsync export`: a saved model as files that others serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ..options import OutPath, checkpoint_option, run_argument, trust_option
from .beside_training import keep_to_one_core

if TYPE_CHECKING:
    from ...pipeline.checkpoint.manifest import Which


@click.command()
@run_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["torch-export", "onnx"]),
    default="torch-export",
    show_default=True,
    help="Format of the dense part: dense.pt2 for torch.export.load, or dense.onnx.",
)
@click.option(
    "--tables",
    type=click.Choice(["parquet", "safetensors", "none"]),
    default="parquet",
    show_default=True,
    help="Format of the embedding tables: one file each (parquet), or one for all (safetensors).",
)
@click.option(
    "--since",
    metavar="EXPORT",
    type=click.Path(path_type=Path),
    help="Write only the rows that changed since this earlier export of the model: an increment.",
)
@click.option("--out", required=True, type=OutPath(), help="The folder to create.")
@checkpoint_option("--which")
@trust_option
def export(
    run: str,
    form: Literal["torch-export", "onnx"],
    tables: Literal["parquet", "safetensors", "none"],
    since: Path | None,
    out: Path,
    which: Which,
    trust: bool,
) -> None:
    """Write the model that RUN saved as files that others can serve.

    The folder has the dense part, which takes any number of examples, the tables, and manifest.json, which
    states how ids are hashed, numbers transformed and bags pooled. An increment has the whole dense part, and
    only the rows that changed; `shadowsync merge` applies increments to a whole export. The exports that an
    increment builds upon must lie beside EXPORT.
    """
    keep_to_one_core(run)
    from ...pipeline.errors import JobFileError
    from ...pipeline.saved_model.export import export_model
    from ...pipeline.saved_model.model import SavedModel
    from ...pipeline.saved_model.table_files import table_of
    from ...pipeline.text.format import data_size

    if since is not None and tables == "none":
        raise JobFileError(
            "needs tables", where="--since", remedy="give --tables parquet or --tables safetensors"
        )
    model = SavedModel.open(run, which, trust=trust)
    manifest = export_model(model, out, form, tables, since)
    for file in manifest["files"]:
        click.echo(f"{data_size(file['bytes']):>10}  {file['name']}")
    if since is not None:
        entries = {table_of(entry): entry for entry in manifest["tables"]}.values()
        changed = sum(entry["changed_rows"] for entry in entries)
        rows = sum(entry["rows"] for entry in entries)
        click.echo(f"{changed:,} of {rows:,} rows changed since {since}")
    click.echo(f"{model.description}, of {manifest['run']}: {out}")
