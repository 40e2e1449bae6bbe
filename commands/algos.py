"""`shadowsync algos`: lists the algorithms."""

from __future__ import annotations

import click


@click.command()
def algos() -> None:
    """List the synchronization algorithms, also those of installed packages, and their options."""
    from ..sync_algos.listing import list_algorithms

    for line in list_algorithms():
        click.echo(line)
