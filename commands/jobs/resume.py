"""`shadowsync resume`: a run continued from its checkpoint."""

from __future__ import annotations

import click

from ..key import security_options
from ..options import (
    checkpoint_option,
    engine_options,
    run_argument,
    supervised_option,
    trust_option,
    web_option,
    web_override,
)


@click.command()
@run_argument
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a setting of its job; data, model and batches must stay as they are.",
)
@checkpoint_option("--from", "last")
@trust_option
@web_option
@security_options
@engine_options
@click.option("--quiet", is_flag=True, help="Show no progress and no report, only errors.")
@supervised_option
def resume(
    run: str,
    overrides: tuple[str, ...],
    which: str,
    trust: bool,
    web: str | None,
    on: str | None,
    exit_zero_on: tuple[int, ...],
    quiet: bool,
    supervised: bool,
) -> None:
    """Resume RUN from a checkpoint.

    Batches that it had trained are not trained again. The new run has its own folder beside RUN, which stays
    as it is. RUN may be the URL of a storage of checkpoints (run.storage), in which the job then goes on. It
    may have more or fewer nodes of any role. A run that has trained all of its input continues if data.epochs
    is raised.
    """
    from ...nodes.supervisor.run import resumed_job
    from .run import run_and_exit

    settings = (*overrides, *web_override(web))
    run_and_exit(
        lambda: resumed_job(run, settings, which, trust=trust),
        "resume",
        quiet=quiet,
        supervised=supervised,
        on=on,
        exit_zero_on=exit_zero_on,
    )
