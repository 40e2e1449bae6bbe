"""`shadowsync serve`: a saved model's scores over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..key import security_options
from ..options import checkpoint_option, precision_option, run_argument, trust_option

if TYPE_CHECKING:
    from ...pipeline.checkpoint.manifest import Which
    from ...pipeline.models.precision import Precision


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
@checkpoint_option("--which")
@trust_option
@precision_option
@security_options
def serve(
    run: str,
    host: str,
    port: int,
    follow: bool,
    threads: int,
    which: Which,
    precision: Precision,
    trust: bool,
) -> None:
    """Score rows with the model that RUN saved, over HTTP.

    POST /score takes {"rows": [{"user": "u1", "price": 3.5}, ...]} with the columns of the job's files, and
    gives their probabilities. GET /model says which columns there are; GET /stats has counts and latency.
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
    model = FollowedModel(run, which, click.echo, precision, trust=trust)

    # All that is there now stays. A full collection would look at it, 0.1 s in which nothing is answered.
    gc.collect()
    gc.freeze()

    def started(port: int) -> None:
        click.echo(f"{model.current.model.description}, of {model.manifest.run}")
        click.echo(f"scores rows at http://{f'[{host}]' if ':' in host else host}:{port}/score")

    # A second signal ends it without its counts.
    with contextlib.suppress(KeyboardInterrupt):
        seconds = LOOK_SECONDS if follow else None
        counts = asyncio.run(serve_model(model, host, port, follow_seconds=seconds, started=started))
        click.echo(str(counts))
