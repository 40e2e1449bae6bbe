"""`shadowsync merge`: a whole export from one and increments."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import OutPath


@click.command()
@click.argument(
    "exports", metavar="EXPORT INCREMENT...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--out", required=True, type=OutPath(), help="The folder to create.")
def merge(exports: tuple[Path, ...], out: Path) -> None:
    """Apply increments to a whole export.

    Writes the whole export that results. Its tables are equal, bit by bit, to those of a whole export of the
    last increment's checkpoint. Give the increments in order.
    """
    from ...pipeline.saved_model.increment import merge_exports
    from ...pipeline.text.format import data_size

    if len(exports) < 2:
        raise click.UsageError("give a whole export and at least one increment")

    manifest = merge_exports(exports, out)
    for file in manifest["files"]:
        click.echo(f"{data_size(file['bytes']):>10}  {file['name']}")
    click.echo(f"version {manifest['version']}, after {manifest['examples_trained']:,} examples: {out}")
