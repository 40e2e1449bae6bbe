"""The option of the precision that scores are computed in."""

from __future__ import annotations

import click

precision_option = click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Of the model's matrix products. bfloat16, as in training, takes about half the time; it needs a CPU"
    " with instructions for it.",
)
"""The command gets it as `precision`."""
