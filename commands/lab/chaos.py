"""`shadowsync chaos`: jobs with injected faults, and their ledgers checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..options import NumberRange, OutPath

if TYPE_CHECKING:
    from ...lab.chaos.run import ChaosResult


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting in every run."
)
@click.option(
    "--kills", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Number of faults."
)
@click.option(
    "--faults",
    "kinds",
    metavar="KINDS",
    default="kill,stop",
    show_default=True,
    help="Kinds of faults (see above), separated by commas; or all.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the schedule.")
@click.option(
    "--clean-runs",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Number of jobs without faults, to compare with; jobs are judged by their NE from 5 on.",
)
@click.option(
    "--longest-stop",
    "longest_seconds",
    type=NumberRange(0, 3600),
    default=5.0,
    show_default=True,
    help="Longest duration of a fault, in seconds; below 1 only kill and reset come.",
)
@click.option(
    "--out",
    type=OutPath("folder"),
    default=Path("chaos"),
    show_default=True,
    help="Folder for the results; it must be empty or not exist.",
)
def chaos(
    job_file: Path,
    overrides: tuple[str, ...],
    kills: int,
    kinds: str,
    seed: int,
    clean_runs: int,
    longest_seconds: float,
    out: Path,
) -> None:
    """Inject faults into a job, and check that nothing is lost.

    The job runs again and again with faults of nodes of all roles at random moments, and a few times in
    between without faults. A job that stops is resumed from its last checkpoint; it writes one every 5 s,
    unless the job file says otherwise. After each run its ledger is checked from its files. The exit code is
    7 if a job hangs, leaves a process behind, or its ledger does not add up. The same seed gives the same
    schedule. The results are in chaos.json in --out.

    \b
    kill    SIGKILL of a process
    stop    SIGSTOP of a process, later SIGCONT
    reset   the connections to a node are ended once
    cut     the connections to a node are ended, and new ones too, for a while
    stall   what a node sends is held back for a while: its links are half open
    delay   what goes to and from a node takes 0.5 s longer for a while
    disk    a process can write no file for a while, as if its disk were full
    clock   the wall clock of a process jumps by 10 minutes or a day, and later jumps back
    """  # noqa: D301
    from ...lab.chaos.run import ChaosPlan, run_chaos
    from ...nodes.sync_rules import with_sync_nodes
    from ...pipeline.errors import ExitCode, JobFileError
    from ...pipeline.input.plan import require_fixed_input
    from ...pipeline.jobfile.load import load_job

    if out.exists() and any(out.iterdir()):
        raise JobFileError("is not empty", where=f"--out {out}", remedy="give another folder")
    job = with_sync_nodes(load_job(str(job_file), overrides), may_import=True)
    require_fixed_input(job)
    if not job.checkpoint.model_fields_set:
        overrides = (*overrides, "checkpoint.every_seconds=5")
    chosen = _fault_kinds(kinds, longest_seconds)
    plan = ChaosPlan(kills, seed, chosen, clean_runs, longest_seconds=longest_seconds)
    result = run_chaos(job, (str(job_file), *overrides), out, plan, click.echo)
    show_result(result)
    if result.problems:
        sys.exit(int(ExitCode.LEDGER))


def _fault_kinds(text: str, longest_seconds: float) -> list[str]:
    from ...lab.chaos.injector import HAS_LIMITS
    from ...lab.chaos.schedule import FAULT_KINDS, SHORTEST_SECONDS
    from ...pipeline.errors import JobFileError

    kinds = list(FAULT_KINDS) if text == "all" else [kind.strip() for kind in text.split(",")]
    if unknown := [kind for kind in kinds if kind not in FAULT_KINDS]:
        remedy = f"use {', '.join(FAULT_KINDS)}, or all"
        raise JobFileError(f"{unknown[0]!r} is not a kind of fault", where="--faults", remedy=remedy)
    if longest_seconds < SHORTEST_SECONDS and all(FAULT_KINDS[kind].lasts for kind in kinds):
        raise JobFileError(
            f"{', '.join(kinds)} last 1 s or more", where="--faults", remedy="give a longer --longest-stop"
        )
    if "disk" in kinds and not HAS_LIMITS:
        raise JobFileError("disk needs Linux", where="--faults", remedy="leave it out")
    return kinds


def show_result(result: ChaosResult) -> None:
    from statistics import fmean, median

    from rich.console import Console
    from rich.table import Table

    from ...lab.chaos.run import FAR_DEVIATIONS, not_judged
    from ...pipeline.text.format import counted, number

    console = Console(soft_wrap=True)
    table = Table(title=f"{sum(result.injected.values())} faults in {len(result.jobs)} jobs")
    table.add_column("fault")
    for column in ("number", "jobs that stopped and were resumed"):
        table.add_column(column, justify="right")
    for label, count in sorted(result.injected.items()):
        table.add_row(label, str(count), str(result.resumed(label)))
    console.print(table)
    if result.recovery_seconds:
        table = Table(title="Nodes that were replaced")
        table.add_column("role")
        for column in ("number", "median recovery, s", "longest recovery, s"):
            table.add_column(column, justify="right")
        for role, after in sorted(result.recovery_seconds.items()):
            table.add_row(role, str(len(after)), number(median(after), 2), number(max(after), 2))
        console.print(table)
    console.print(f"{counted(result.missed, 'fault')} could not be injected: too late, or nothing to meet")
    clean_jobs = len(result.clean_ne)
    if (difference := result.ne_difference) is not None:
        faulted = (
            f"NE with faults {number(fmean(result.faulted_ne))} ({counted(len(result.faulted_ne), 'job')})"
        )
        clean = f"without {number(fmean(result.clean_ne))} ({counted(clean_jobs, 'job')})"
        outliers = len(result.far())
        far = f"{counted(outliers, 'job')} {'differs' if outliers == 1 else 'differ'}"
        far += f" by more than {FAR_DEVIATIONS:g} standard deviations"
        console.print(f"{faulted}, {clean}, difference {difference:+.2%}; {not_judged(clean_jobs) or far}")
    elif not clean_jobs:
        console.print("no job is judged by its NE: none was scored, since the job has no held-out data")
    else:
        console.print("no job is judged by its NE: none with faults was scored")
    console.print(
        f"problems: {len(result.problems)}" + "".join(f"\n  {problem}" for problem in result.problems)
    )
