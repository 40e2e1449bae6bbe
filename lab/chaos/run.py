"""A chaos run: jobs with faults, and jobs without faults in between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from ...nodes.runtime.process import files_of
from ...pipeline.atomic_file import write_text
from ...pipeline.config.job import Job
from ...pipeline.errors import ClusterError, ExitCode
from ...pipeline.open_files import require_files
from ...pipeline.text.format import count, counted
from ..network.link_faults import LINK_FAULTS
from .due_faults import FaultsOfJob
from .faulted_job import FaultedJob, JobRunner, has_trained_all
from .ledger_check import problems_of, recovery_seconds
from .schedule import ScheduledFault, schedule

JSON_NAME: Final = "chaos.json"
WELL: Final = (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS)
# An outlier's NE is more than this many of the clean jobs' standard deviations from their mean.
FAR_DEVIATIONS: Final = 5.0
# The deviation of fewer jobs says too little: of two, every seventh job would be an outlier by chance.
FEWEST_CLEAN: Final = 5
# The coordinator has the job's start timeout, and then the nodes have it.
START_TIMEOUTS: Final = 2


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """What a chaos run and a soak have both.

    Attributes:
        kinds: kinds of faults, of `schedule.FAULT_KINDS`.
        roles: roles of nodes that have faults; empty: all.
        clean_runs: jobs without faults, to compare with.
        hang_seconds: see `JobRunner`.
        longest_seconds: longest duration of a fault; if it is shorter than 1 s, only kinds without one come.
    """

    seed: int
    kinds: Sequence[str] = ("kill", "stop")
    roles: Sequence[str] = ()
    clean_runs: int = FEWEST_CLEAN
    hang_seconds: float = 60.0
    longest_seconds: float = 5.0

    def aimed_at(self, job: Job) -> dict[str, int]:
        """Return the number of nodes of each role that has faults."""
        return {
            role: number for role, number in nodes_of(job).items() if not self.roles or role in self.roles
        }

    def runner(self, job: Job, source: Sequence[str], directory: Path) -> JobRunner:
        """Return what runs the job in a folder; `source` is its file, and the settings that override it."""
        start_seconds = START_TIMEOUTS * job.run.start_timeout_seconds
        return JobRunner(source, nodes_of(job), directory, self.hang_seconds, start_seconds)


@dataclass(frozen=True, kw_only=True)
class ChaosPlan(FaultPlan):
    """Configuration of a chaos run of so many faults in all."""

    faults: int


@dataclass
class ChaosResult:
    """Result of a chaos run.

    Attributes:
        jobs: one entry for each job with faults.
        injected: faults by role and kind, for example "trainer killed".
        recovery_seconds: by role, the seconds from each death until its replacement took part.
        problems: each problem with its job's name; empty if all is well.
        clean_ne, faulted_ne: NE of the scored jobs without and with faults.
    """

    jobs: list[dict[str, Any]] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    exit_codes: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    recovery_seconds: dict[str, list[float]] = field(default_factory=dict)
    clean_ne: list[float] = field(default_factory=list)
    faulted_ne: list[float] = field(default_factory=list)

    @property
    def ne_difference(self) -> float | None:
        """The mean NE with faults over the mean NE without, minus 1."""
        if not self.clean_ne or not self.faulted_ne:
            return None
        return fmean(self.faulted_ne) / fmean(self.clean_ne) - 1.0

    def resumed(self, label: str) -> int:
        """Count the jobs with faults of a label that stopped and were resumed."""
        with_it = [
            job
            for job in self.jobs
            if any(ScheduledFault(**fault).label == label for fault in job["injected"])
        ]
        return sum(len(job["exit_codes"]) > 1 for job in with_it)

    @property
    def far_is_known(self) -> bool:
        """Whether there are enough jobs without faults to know an outlier by."""
        return len(self.clean_ne) >= FEWEST_CLEAN

    def far(self) -> list[float]:
        """Return the NE of outliers among the jobs with faults, if `far_is_known`."""
        if not self.far_is_known:
            return []
        mean, spread = fmean(self.clean_ne), stdev(self.clean_ne)
        return [ne for ne in self.faulted_ne if abs(ne - mean) > FAR_DEVIATIONS * spread]


def run_chaos(
    job: Job, source: Sequence[str], directory: Path, plan: ChaosPlan, print_line: Callable[[str], None]
) -> ChaosResult:
    """Run all jobs; write the results to chaos.json.

    Jobs without faults come in between, so that a drift of the machine affects both kinds alike. `source` is
    the job's file, and the settings that override it. Raises ClusterError if a clean job does not end well,
    ResourceError if its processes may open too few files.
    """
    if why := not_judged(plan.clean_runs):
        print_line(why)
    require_files(files_of(job))
    runner = plan.runner(job, source, directory)
    result = ChaosResult()
    jobs = schedule(plan.faults, plan.seed, plan.aimed_at(job), plan.kinds, plan.longest_seconds)
    size = JobSize()
    made = 0
    for number, faults in enumerate([*jobs, ()]):
        # The first one comes before all others, since it tells the size of the job.
        while made < clean_jobs_before(number, len(jobs), plan.clean_runs):
            _, size = run_clean(runner, made, result)
            made += 1
            shown = f"{count(size.examples)} examples in {count(size.batches)} batches"
            print_line(f"clean job {made} of {plan.clean_runs}: {shown}")
        if not faults:
            break
        name = f"faulted-{number}"
        through_relay = any(fault.kind in LINK_FAULTS for fault in faults)
        due = FaultsOfJob(faults, size.batches)
        done = runner.run(name, due, examples=size.examples, through_relay=through_relay)
        problems = job_problems(done, size.examples)
        count_job(result, name, done, problems)
        said = "; ".join(str(fault) for fault in faults)
        ends = ", ".join(str(code) for code in done.exit_codes)
        wrong = "".join(f"\n  {problem}" for problem in problems)
        print_line(f"job {number + 1} of {len(jobs)}: {said}: exit {ends}{wrong}")
        write_result(directory, plan, result)
    write_result(directory, plan, result)
    return result


def nodes_of(job: Job) -> dict[str, int]:
    """Return the number of nodes by role, with the coordinator."""
    return {**job.expected, "coordinator": 1}


def not_judged(clean_jobs: int) -> str:
    """Say why no job is judged by its NE; empty if jobs are."""
    if clean_jobs >= FEWEST_CLEAN:
        return ""
    of = f"{counted(clean_jobs, 'job')} without faults to compare with"
    return f"no job is judged by its NE: {of}, and it takes {FEWEST_CLEAN}; give --clean-runs {FEWEST_CLEAN}"


def clean_jobs_before(number: int, jobs: int, clean_jobs: int) -> int:
    """Return how many clean jobs come before a job with faults, by its number."""
    return 1 + (clean_jobs - 1) * number // jobs


@dataclass(frozen=True)
class JobSize:
    """Examples and batches of the whole job."""

    examples: int = 0
    batches: int = 0


def run_clean(
    runner: JobRunner, number: int, result: ChaosResult, *, through_relay: bool = False
) -> tuple[FaultedJob, JobSize]:
    """Run a job without faults; raises ClusterError if it does not end well."""
    clean = runner.run(f"clean-{number}", through_relay=through_relay)
    report = clean.report()
    if clean.exit_codes != [ExitCode.OK] or report is None:
        what = f"a job without faults ended with {clean.exit_codes[-1]}"
        raise ClusterError(what, where=clean.last_line)
    result.clean_ne += _ne(report)
    return clean, JobSize(report["examples"]["distinct"], max(report["ledger"]["shard_applied"].values()))


def job_problems(done: FaultedJob, examples: int) -> list[str]:
    problems = []
    if done.hung:
        problems.append("it hung")
    if done.left:
        problems.append(f"it left {counted(done.left, 'process', 'processes')}")
    if done.exit_codes[-1] not in WELL and not has_trained_all(done, examples):
        problems.append(f"it ended with {done.exit_codes[-1]}: {done.last_line}")
    elif done.folder is None:
        problems.append("it has no folder")
    else:
        problems += problems_of(done.folder, examples)
    return problems


def count_job(result: ChaosResult, name: str, done: FaultedJob, problems: list[str]) -> None:
    result.injected.update(injected.fault.label for injected in done.injected)
    result.missed += len(done.missed)
    result.exit_codes.update(done.exit_codes)
    result.problems += [f"{name}: {problem}" for problem in problems]
    for folder in done.folders:
        for role, seconds in recovery_seconds(folder):
            result.recovery_seconds.setdefault(role, []).append(seconds)
    if (report := done.report()) is not None:
        result.faulted_ne += _ne(report)
    entry = {
        "name": name,
        "injected": [asdict(injected.fault) for injected in done.injected],
        "injected_at_seconds": [injected.seconds for injected in done.injected],
        "missed": [asdict(fault) for fault in done.missed],
        "exit_codes": done.exit_codes,
        "problems": problems,
        "folder": str(done.folder),
    }
    result.jobs.append(entry)


def _ne(report: dict[str, Any]) -> list[float]:
    score = report.get("eval") or {}
    return [score["ne"]] if score.get("ne") is not None else []


def write_result(
    directory: Path, plan: object, result: ChaosResult, figures: Mapping[str, float | None] | None = None
) -> None:
    """Write chaos.json: the plan, the figures and the result."""
    # Not by `asdict`, which would make a Counter count its pairs.
    tree = {"plan": vars(plan), **(figures or {}), **vars(result)}
    write_text(directory / JSON_NAME, json.dumps(tree, indent=1, default=_fields) + "\n")


def _fields(record: Any) -> Any:
    if not is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"{record!r} cannot be written as JSON")
    return asdict(record)
