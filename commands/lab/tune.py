"""`shadowsync tune`: a study of a job's settings."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..key import security_options
from ..options import trust_option


@click.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=click.Path())
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a setting in every trial.",
)
@click.option(
    "--search",
    multiple=True,
    metavar="KEY=VALUES",
    help="A setting to choose: sync.algorithm=easgd,ma or sync.gap=1..64 (whole numbers) or"
    " trainer.lr=1e-4..1e-1:log. Give one for each setting.",
)
@click.option("--trials", type=click.IntRange(1, 100_000), help="Number of trials. [default: 30]")
@click.option(
    "--strategy",
    type=click.Choice(["asha", "random"]),
    help="asha: choose by what was measured, and stop bad trials early by their NE; random: settings at"
    " random, and every trial trains to its end. [default: asha]",
)
@click.option(
    "--reduction",
    type=click.IntRange(2, 10),
    help="asha: one of so many trials goes on at a rung. [default: 3]",
)
@click.option(
    "--rungs",
    type=click.IntRange(1, 6),
    help="asha: number of rungs; the first is at reduction^-rungs of the examples. [default: 3]",
)
@click.option("--seed", type=click.IntRange(0), help="Of the settings that are tried. [default: 0]")
@security_options
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Resume the study in DIR; of the other options only --trials and --trust may be given.",
)
@trust_option
def tune(
    job_file: str | None,
    overrides: tuple[str, ...],
    search: tuple[str, ...],
    trials: int | None,
    strategy: str | None,
    reduction: int | None,
    rungs: int | None,
    seed: int | None,
    resume: Path | None,
    trust: bool,
) -> None:
    """Find a job's settings by trials, of which bad ones are stopped early.

    Each trial is the job with other values of the settings that --search names. At a third, a ninth and so on
    of its examples it goes on only if its NE is among the best third of those that came so far. The score
    is the NE on held-out data, or without any that of training. The folder RUN-tune beside the job's runs
    has tune.md with all trials, and best.json, which `shadowsync run` takes.
    """
    from rich.console import Console

    from ...pipeline.errors import JobFileError
    from ...pipeline.jobfile.extras import require_extra

    require_extra("shadowsync tune", "tune")
    options = {"strategy": strategy, "reduction": reduction, "rungs": rungs, "seed": seed}
    chosen = {name: value for name, value in options.items() if value is not None}
    from ...lab.tuning.study import StudyRules
    from ...lab.tuning.tune import resume_study, start_study

    if resume is not None:
        if job_file is not None or overrides or search or chosen:
            raise JobFileError(
                "--resume takes the job and the options from the study", remedy="give no other than --trials"
            )
        sys.exit(int(resume_study(resume, trials, Console(), _print_line, trust=trust)))
    if job_file is None:
        raise JobFileError("a job file is needed", remedy="see shadowsync tune --help")
    if strategy == "random" and (reduction is not None or rungs is not None):
        raise JobFileError(
            "--reduction and --rungs are for --strategy asha",
            remedy="leave them out, or give --strategy asha",
        )
    from ...pipeline.jobfile.load import load_job

    job = load_job(job_file, overrides)
    rules = StudyRules.model_validate(chosen)
    sys.exit(int(start_study(job, list(search), trials or 30, rules, Console(), _print_line)))


def _print_line(text: str) -> None:
    click.echo(text, err=True)
