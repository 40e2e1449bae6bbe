"""`shadowsync generate`: a click log to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..options import NumberRange, OutPath


@click.command()
@click.argument("directory", type=OutPath())
@click.option("--examples", default=1_000_000, show_default=True, type=click.IntRange(1))
@click.option("--eval-examples", default=100_000, show_default=True, type=click.IntRange(0))
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0))
@click.option("--format", "data_format", default="parquet", type=click.Choice(["parquet", "criteo_tsv"]))
@click.option("--files", default=1, show_default=True, type=click.IntRange(1), help="Training files.")
@click.option("--compression", default="none", type=click.Choice(["none", "gz", "zst"]))
@click.option(
    "--click-rate",
    default=0.25,
    show_default=True,
    type=NumberRange(0.0001, 0.5),
    help="Mean of the true click probabilities.",
)
@click.option("--reuse", is_flag=True, help="Write nothing if the same log exists already.")
def generate(directory: Path, reuse: bool, **options: Any) -> None:
    """Generate a Criteo-shaped click log with a planted teacher into DIRECTORY."""
    from ...pipeline.data.generator.generator import generate_log
    from ...pipeline.text.format import data_size, number

    manifest = generate_log(directory, reuse=reuse, **options)
    done = "exists already" if manifest.reused else "written"
    for name, part in (("train", manifest.train), ("eval", manifest.eval)):
        if part.examples:
            teacher = "" if part.teacher_ne is None else f", teacher's NE {number(part.teacher_ne)}"
            size = data_size(part.bytes)
            ids = f"{part.distinct_ids:,} distinct ids"
            click.echo(f"{name}: {part.examples:,} examples, {ids}, {size}{teacher}")
    click.echo(f"{done}: {directory}")
