"""`shadowsync chaos`: jobs with injected faults, and their ledgers checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import Duration, NumberRange, OutPath

if TYPE_CHECKING:
    from ...lab.chaos.run import ChaosResult
    from ...lab.chaos.soak import SoakResult
    from ...pipeline.config.job import Job


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting in every run."
)
@click.option("--kills", type=click.IntRange(1, 100_000), help="Number of faults. [default: 10]")
@click.option(
    "--every",
    "every_seconds",
    type=Duration(),
    metavar="TIME",
    help="A soak: one fault in every such time, for example 15s, a quarter of it early or late at most.",
)
@click.option(
    "--for",
    "for_seconds",
    type=Duration(),
    metavar="TIME",
    help="With --every: how long jobs with faults are to train, together. [default: 20m]",
)
@click.option(
    "--faults",
    "kinds",
    metavar="KINDS",
    default="kill,stop",
    show_default=True,
    help="Kinds of faults (see above), separated by commas; or all.",
)
@click.option(
    "--roles",
    metavar="ROLES",
    default="all",
    show_default=True,
    help="Roles of nodes that have faults, such as trainer,reader; separated by commas.",
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
    kills: int | None,
    every_seconds: float | None,
    for_seconds: float | None,
    kinds: str,
    roles: str,
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

    With --every it is a soak: jobs one after the other, a fault in every such time, and the goodput: useful
    examples a second over those of the jobs without faults. Useful is what is in the trained model, counted
    once. A job should train for many times --every: give it enough data, such as --set data.epochs=10.

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
    from ...nodes.sync_rules import with_sync_nodes
    from ...pipeline.errors import ExitCode, JobFileError
    from ...pipeline.input.plan import require_fixed_input
    from ...pipeline.jobfile.load import load_job

    _require_one_kind_of_run(kills, every_seconds, for_seconds)
    if out.exists() and any(out.iterdir()):
        raise JobFileError("is not empty", where=f"--out {out}", remedy="give another folder")
    job = with_sync_nodes(load_job(str(job_file), overrides), may_import=True)
    require_fixed_input(job)
    if not job.checkpoint.model_fields_set:
        overrides = (*overrides, "checkpoint.every_seconds=5")
    source = (str(job_file), *overrides)
    common: dict[str, Any] = {
        "seed": seed,
        "kinds": _fault_kinds(kinds, longest_seconds),
        "roles": _roles(roles, job),
        "clean_runs": clean_runs,
        "longest_seconds": longest_seconds,
    }
    if every_seconds is None:
        result = _chaos(job, source, out, faults=kills or 10, **common)
    else:
        result = _soak(
            job, source, out, every_seconds=every_seconds, for_seconds=for_seconds or 1200.0, **common
        )
    if result.problems:
        sys.exit(int(ExitCode.LEDGER))


def _require_one_kind_of_run(
    kills: int | None, every_seconds: float | None, for_seconds: float | None
) -> None:
    from ...pipeline.errors import JobFileError

    if kills is not None and every_seconds is not None:
        raise JobFileError(
            "--kills gives a number of faults, and --every makes a soak", remedy="leave one of the two out"
        )
    if for_seconds is not None and every_seconds is None:
        raise JobFileError("--for is for a soak", where="--for", remedy="add --every 15s")


def _chaos(job: Job, source: tuple[str, ...], out: Path, **plan: Any) -> ChaosResult:
    from ...lab.chaos.run import ChaosPlan, run_chaos

    result = run_chaos(job, source, out, ChaosPlan(**plan), click.echo)
    show_result(result)
    return result


def _soak(job: Job, source: tuple[str, ...], out: Path, **plan: Any) -> ChaosResult:
    from ...lab.chaos.soak import SoakPlan, run_soak

    result = run_soak(job, source, out, SoakPlan(**plan), click.echo)
    show_result(result)
    show_goodput(result)
    return result


def _roles(text: str, job: Job) -> list[str]:
    from ...lab.chaos.run import nodes_of
    from ...pipeline.errors import JobFileError

    present = [role for role, number in nodes_of(job).items() if number]
    if text == "all":
        return present
    roles = [role.strip() for role in text.split(",")]
    if unknown := [role for role in roles if role not in present]:
        remedy = f"use {', '.join(present)}, or all"
        raise JobFileError(f"the job has no {unknown[0]!r}", where="--roles", remedy=remedy)
    return roles


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
    faults = sum(result.injected.values())
    table = Table(title=f"{counted(faults, 'fault')} in {counted(len(result.jobs), 'job')}")
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


def show_goodput(result: SoakResult) -> None:
    from statistics import median

    from rich.console import Console
    from rich.table import Table

    from ...lab.chaos.goodput import cpu_seconds_per_million, useful_per_second
    from ...pipeline.text.format import count, counted, number, percent

    console = Console(soft_wrap=True)
    table = Table(title="Speed from a fault until the next one")
    table.add_column("fault")
    for column in ("number", "of the speed without faults"):
        table.add_column(column, justify="right")
    for label in sorted(result.speeds):
        table.add_row(label, str(len(result.speeds[label])), percent(result.speed_after(label)))
    console.print(table)
    if after := result.trainer_seconds:
        times = f"median {number(median(after), 2)} s, longest {number(max(after), 2)} s"
        kills = counted(len(after), "kill")
        console.print(f"from the kill of a trainer until another one had trained: {times} (of {kills})")
    repeated, lost, useful = (
        count(sum(getattr(job, name) for job in result.faulted))
        for name in ("repeated_examples", "lost_examples", "useful_examples")
    )
    dense = f"at most {lost} are not in the dense parameters, since their trainer died"
    console.print(f"with faults: {useful} useful examples; {repeated} were trained again; {dense}")
    cpu, undisturbed = (number(cpu_seconds_per_million(jobs), 1) for jobs in (result.faulted, result.clean))
    console.print(f"CPU seconds for a million useful examples: {cpu} with faults, {undisturbed} without")
    rates = [useful_per_second([job]) for job in result.clean]
    spread = f"{count(round(min(rates)))} to {count(round(max(rates)))} from job to job"
    faulted, clean = (count(round(useful_per_second(jobs))) for jobs in (result.faulted, result.clean))
    with_faults = f"goodput {number(result.goodput, 3)}: {faulted} useful examples a second with faults"
    console.print(f"{with_faults}, {clean} without ({spread})")
