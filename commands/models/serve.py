"""`shadowsync serve`: a saved model's scores over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..key import security_options
from ..options import checkpoint_option, memory_option, precision_option, run_argument, trust_option
from .items import item_files, queries_option

if TYPE_CHECKING:
    from ...pipeline.checkpoint.manifest import Which
    from ...pipeline.models.precision import Precision
    from ...pipeline.retrieval.searched_items import SearchKind
    from ...serving.items import Items


LOOK_SECONDS = 2.0


@click.command()
@run_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 is any free port."
)
@click.option("--follow", is_flag=True, help="Serve each new checkpoint of RUN once it is written.")
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads that compute a score."
)
@click.option(
    "--items",
    multiple=True,
    metavar="FILES",
    help="Also retrieve items of these files for queries; of a model with two towers. May be repeated.",
)
@click.option(
    "--search",
    type=click.Choice(["auto", "exact", "index"]),
    default="auto",
    show_default=True,
    help="How items are found: auto takes an index for more than 50,000.",
)
@click.option(
    "--index",
    metavar="EXPORT",
    type=click.Path(path_type=Path),
    help="Take items and index of this `export --items` of the same checkpoint, instead of computing them.",
)
@queries_option
@checkpoint_option("--which")
@memory_option
@trust_option
@precision_option
@security_options
def serve(
    run: str,
    host: str,
    port: int,
    follow: bool,
    threads: int,
    items: tuple[str, ...],
    search: SearchKind,
    index: Path | None,
    queries: tuple[str, ...],
    which: Which,
    precision: Precision,
    trust: bool,
    memory_bytes: int | None,
) -> None:
    """Score rows with the model that RUN saved, over HTTP.

    POST /score takes {"rows": [{"user": "u1", "price": 3.5}, ...]} with the columns of the job's files, and
    gives their probabilities. With --items, POST /retrieve takes rows with the columns of queries, and k, and
    gives the ids of the k best items of each. GET /model says which columns there are; GET /stats has counts
    and latency.
    """
    from ...pipeline.jobfile.extras import require_extra

    require_extra("shadowsync serve", "web")
    import asyncio
    import contextlib
    import gc

    import torch

    from ...serving.follower import FollowedModel
    from ...serving.server import serve_model

    torch.set_num_threads(threads)
    served = _items(items, search, index, queries, threads, follow=follow)
    model = FollowedModel(
        run, which, click.echo, precision, items=served, trust=trust, memory_bytes=memory_bytes
    )

    # All that is there now stays. A full collection would look at it, 0.1 s in which nothing is answered.
    gc.collect()
    gc.freeze()

    def started(port: int) -> None:
        click.echo(f"{model.current.model.description}, of {model.manifest.run}")
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        click.echo(f"scores rows at {url}/score")
        if (retriever := model.retriever) is not None:
            click.echo(f"retrieves from {retriever.items.description} at {url}/retrieve")

    # A second signal ends it without its counts.
    with contextlib.suppress(KeyboardInterrupt):
        seconds = LOOK_SECONDS if follow else None
        counts = asyncio.run(serve_model(model, host, port, follow_seconds=seconds, started=started))
        click.echo(str(counts))


def _items(
    files: tuple[str, ...],
    search: SearchKind,
    index: Path | None,
    queries: tuple[str, ...],
    threads: int,
    *,
    follow: bool,
) -> Items | None:
    """Return the items to serve; None if none are given. Raises JobFileError for what does not fit."""
    from ...pipeline.errors import JobFileError
    from ...serving.items import Items

    if not files and index is None:
        for name, is_given in (("--search", search != "auto"), ("--queries", queries)):
            if is_given:
                raise JobFileError("given without items", where=name, remedy="give --items, too")
        return None
    if index is not None and follow and not files:
        raise JobFileError(
            "has the items of one checkpoint, and --follow serves later ones",
            where="--index",
            remedy="give --items, too, of which later checkpoints' vectors are computed",
        )
    return Items(item_files(files, search, queries, threads) if files else None, index, threads)
