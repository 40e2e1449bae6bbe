"""`shadowsync chaos`: jobs whose processes are killed and stopped, and their ledgers checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..lab.chaos.run import ChaosResult


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting in every run."
)
@click.option(
    "--kills", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Number of faults."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the schedule.")
@click.option(
    "--clean-runs",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Number of jobs without faults, to compare with.",
)
@click.option(
    "--longest-stop",
    type=click.FloatRange(0, 3600),
    default=5.0,
    show_default=True,
    help="Longest pause of a process (SIGSTOP), in seconds; 0: only kills.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("chaos"),
    show_default=True,
    help="Folder for the results; it must be empty or not exist.",
)
def chaos(
    job_file: Path,
    overrides: tuple[str, ...],
    kills: int,
    seed: int,
    clean_runs: int,
    longest_stop: float,
    out: Path,
) -> None:
    """Kill and stop processes of a job, and check that nothing is lost.

    The job runs a few times without faults. Then it runs again and again, while processes of all roles are
    killed (SIGKILL) or paused (SIGSTOP) at random moments. A job that stops is resumed from its last
    checkpoint; it writes one every 5 s, unless the job file says otherwise. After each run its ledger is
    checked from its files. The exit code is 7 if a job hangs, leaves a process behind, or its ledger does not
    add up. The same seed gives the same schedule. The results are in chaos.json in --out.
    """
    from ..lab.chaos.run import ChaosPlan, run_chaos
    from ..pipeline.errors import ExitCode, JobFileError
    from ..pipeline.jobfile.load import load_job

    if out.exists() and any(out.iterdir()):
        raise JobFileError("is not empty", where=f"--out {out}", remedy="give another folder")
    job = load_job(str(job_file), overrides)
    if not job.checkpoint.model_fields_set:
        overrides = (*overrides, "checkpoint.every_seconds=5")
    plan = ChaosPlan(kills, seed, clean_runs, longest_stop=longest_stop)
    result = run_chaos(job, (str(job_file), *overrides), out, plan, click.echo)
    _show(result)
    if result.problems:
        sys.exit(int(ExitCode.LEDGER))


def _show(result: ChaosResult) -> None:
    from statistics import fmean, median

    from rich.console import Console
    from rich.table import Table

    from ..pipeline.text.format import counted, number

    table = Table(title=f"{sum(result.injected.values())} faults in {len(result.jobs)} jobs")
    table.add_column("injected into")
    times_of = ("median recovery, s", "longest recovery, s")
    for column in ("faults", "jobs that stopped and were resumed", "replaced", *times_of):
        table.add_column(column, justify="right")
    for kind, count in sorted(result.injected.items()):
        after = result.recovery_seconds.get(kind, [])
        times = [str(len(after)), number(median(after), 2), number(max(after), 2)] if after else ["0", "", ""]
        table.add_row(kind, str(count), str(result.resumed(kind)), *times)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"{counted(result.missed, 'fault')} could not be injected: too late, or no such process")
    if (difference := result.ne_difference) is not None:
        faulted = (
            f"NE with faults {number(fmean(result.faulted_ne))} ({counted(len(result.faulted_ne), 'job')})"
        )
        clean = f"without {number(fmean(result.clean_ne))} ({counted(len(result.clean_ne), 'job')})"
        outliers = len(result.far())
        far = f"{counted(outliers, 'job')} {'differs' if outliers == 1 else 'differ'}"
        console.print(
            f"{faulted}, {clean}, difference {difference:+.2%}; {far} by more than 5 standard deviations"
        )
    console.print(f"problems: {len(result.problems)}" + "".join(f"\n  {one}" for one in result.problems))
