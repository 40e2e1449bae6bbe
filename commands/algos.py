"""`shadowsync algos`: the list of algorithms."""

from __future__ import annotations

import click


@click.command()
def algos() -> None:
    """List the synchronization algorithms and their options.

    Algorithms of installed packages are included.
    """
    from ..sync_algos.catalog.listing import list_algorithms

    for line in list_algorithms():
        click.echo(line)
