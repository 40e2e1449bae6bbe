"""Options of commands that search among items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...pipeline.retrieval.searched_items import ItemFiles, SearchKind

F = TypeVar("F", bound=Callable[..., Any])


def queries_option(command: F) -> F:
    """Add `--queries`, of which an index's recall is measured."""
    return click.option(
        "--queries",
        multiple=True,
        metavar="FILES",
        help="Measure the recall of the index with the queries of these files; without, vectors of items"
        " stand for queries. May be repeated.",
    )(command)


def item_files(
    files: Sequence[str], search: SearchKind, queries: Sequence[str], threads: int = 1
) -> ItemFiles:
    """Return where items come from; relative paths are of the current folder."""
    from ...pipeline.data.files.paths import absolute_path
    from ...pipeline.retrieval.searched_items import ItemFiles

    return ItemFiles([*map(absolute_path, files)], search, [*map(absolute_path, queries)], threads)
