"""`shadowsync compare`: a job under several algorithms, side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..key import security_options
from ..options import network_options, network_overrides, trust_option


@click.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=click.Path())
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting in every run."
)
@click.option(
    "--algorithms",
    metavar="LIST",
    help="Algorithms to compare, for example none,easgd,easgd@5,easgd:elastic_rate=0.3@30. NAME runs in"
    " shadow mode, NAME@K every K iterations; :KEY=VALUE sets an option of the algorithm.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="Number of seeds, from run.seed on. [default: 3]")
@click.option(
    "--virtual",
    is_flag=True,
    help="Emulate the trainers on a virtual clock: real arithmetic, and times set by --timing."
    " The same command gives the same figures.",
)
@click.option("--trainers", metavar="LIST", help="With --virtual: numbers of trainers, such as 1,2,4,8.")
@click.option(
    "--timing",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --virtual: a time of the emulated machines, such as step_seconds=0.02; see docs/lab.md.",
)
@network_options
@security_options
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Resume the comparison in DIR and repeat failed runs; of the other options it takes only --trust.",
)
@trust_option
def compare(
    job_file: str | None,
    overrides: tuple[str, ...],
    algorithms: str | None,
    seeds: int | None,
    virtual: bool,
    trainers: str | None,
    timing: tuple[str, ...],
    resume: Path | None,
    trust: bool,
    **network: str | None,
) -> None:
    """Compare algorithms on one job, and report it.

    The job runs under each algorithm, and with one trainer alone, with every seed on the same data, in
    alternating order. The folder RUN-compare beside the job's runs holds compare.md, its pictures,
    compare.json and every run. A failed run is shown as failed, and the others continue; the exit code is
    then 5, or 7 if a ledger does not add up.

    With --virtual every run is emulated on a virtual clock, with as many trainers as --trainers says; the
    folder is RUN-virtual.
    """
    from rich.console import Console

    from ...pipeline.errors import JobFileError
    from ...pipeline.jobfile.extras import require_extra

    require_extra("shadowsync compare", "lab")
    others = [job_file, algorithms, seeds, trainers, virtual or None, *timing, *overrides, *network.values()]
    if resume is not None and any(value is not None for value in others):
        raise JobFileError(
            "--resume takes the job and the options from the comparison", remedy="give no other option"
        )
    if resume is None and (job_file is None or algorithms is None):
        raise JobFileError("a job file and --algorithms are needed", remedy="see shadowsync compare --help")
    if (trainers is not None or timing) and not virtual:
        raise JobFileError("--trainers and --timing are for --virtual", remedy="add --virtual")
    from ...lab.comparison import compare as real
    from ...lab.virtual import runner as emulated
    from ...lab.virtual.plan import JSON_NAME, parse_timing, parse_trainers
    from ...pipeline.jobfile.load import load_job

    console = Console()
    if resume is not None:
        is_virtual = (resume / JSON_NAME).exists()
        resumed = emulated.resume_virtual_comparison if is_virtual else real.resume_comparison
        sys.exit(int(resumed(resume, console, _print_line, trust=trust)))
    assert job_file is not None
    assert algorithms is not None
    job = load_job(job_file, (*overrides, *network_overrides(network)))
    if not virtual:
        sys.exit(int(real.start_comparison(job, algorithms, seeds or 3, console, _print_line)))
    counts = parse_trainers(trainers) if trainers is not None else [job.trainer.count]
    times = parse_timing(timing)
    started = emulated.start_virtual_comparison(
        job, algorithms, counts, seeds or 3, times, console, _print_line
    )
    sys.exit(int(started))


def _print_line(text: str) -> None:
    click.echo(text, err=True)
