"""A soak: jobs one after the other with a fault every few seconds, and undisturbed ones in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final

from ...nodes.runtime.process import files_of
from ...pipeline.config.job import Job
from ...pipeline.open_files import require_files
from ...pipeline.text.format import count, counted, duration
from ..network.link_faults import LINK_FAULTS
from .due_faults import SoakFaults
from .goodput import Stretch, cpu_seconds_per_million, goodput, speeds_after, stretch_of, useful_per_second
from .run import (
    ChaosResult,
    FaultPlan,
    count_job,
    job_problems,
    not_judged,
    run_clean,
    write_result,
)
from .schedule import soak_faults

# In a shorter job the time before the first fault and after the last one counts too much.
FEWEST_FAULTS_IN_A_JOB: Final = 4


@dataclass(frozen=True, kw_only=True)
class SoakPlan(FaultPlan):
    """Configuration of a soak.

    Attributes:
        every_seconds: time between two faults, which the seed changes a little.
        for_seconds: jobs with faults are started until they have trained for so long together.
    """

    every_seconds: float
    for_seconds: float


@dataclass
class SoakResult(ChaosResult):
    """Result of a soak.

    Attributes:
        clean, faulted: what each job trained, without and with faults.
        speeds: by a fault's label, the seconds until the next fault and the examples trained in them.
        trainer_seconds: from each kill of a trainer until a new one had trained a batch.
    """

    clean: list[Stretch] = field(default_factory=list)
    faulted: list[Stretch] = field(default_factory=list)
    speeds: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    trainer_seconds: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float | None:
        """Useful examples a second with faults over those without; None if a side has none."""
        return goodput(self.faulted, self.clean)

    def speed_after(self, label: str) -> float | None:
        """Return the speed from faults of a label until the next fault, over that without faults."""
        undisturbed, parts = useful_per_second(self.clean), self.speeds.get(label, [])
        seconds = sum(part_seconds for part_seconds, _ in parts)
        return (
            sum(examples for _, examples in parts) / seconds / undisturbed
            if seconds and undisturbed
            else None
        )


def run_soak(
    job: Job, source: Sequence[str], directory: Path, plan: SoakPlan, print_line: Callable[[str], None]
) -> SoakResult:
    """Run all jobs; write the results to chaos.json after each.

    `source` is the job's file, and the settings that override it. Raises ClusterError if a clean job does not
    end well, ResourceError if its processes may open too few files.
    """
    require_files(files_of(job))
    if why := not_judged(plan.clean_runs):
        print_line(why)
    soak = _Soak(job, source, directory, plan, print_line)
    while True:
        while len(soak.result.clean) < clean_jobs_by(soak.faults.soak_seconds, plan):
            soak.run_clean()
        write_result(directory, plan, soak.result, figures(soak.result))
        trains = all(stretch.seconds for stretch in soak.result.faulted)
        if not trains or soak.faults.soak_seconds >= plan.for_seconds:
            return soak.result
        soak.run_faulted()


class _Soak:
    def __init__(
        self,
        job: Job,
        source: Sequence[str],
        directory: Path,
        plan: SoakPlan,
        print_line: Callable[[str], None],
    ) -> None:
        self._plan, self._print_line, self._batch = plan, print_line, job.trainer.batch
        aimed = plan.aimed_at(job)
        drawn = soak_faults(plan.every_seconds, plan.seed, aimed, plan.kinds, plan.longest_seconds)
        self.faults = SoakFaults(drawn)
        self._runner = plan.runner(job, source, directory)
        # Jobs without faults have the relay too, so that it slows both alike.
        self._through_relay = any(kind in LINK_FAULTS for kind in plan.kinds)
        self._examples = 0
        self.result = SoakResult()

    def run_clean(self) -> None:
        result, plan = self.result, self._plan
        number = len(result.clean)
        done, size = run_clean(self._runner, number, result, through_relay=self._through_relay)
        self._examples = size.examples
        result.clean.append(stretch_of(done, self._batch))
        self._print_line(f"without faults, {number + 1} of {plan.clean_runs}: {_said(result.clean[-1])}")
        if not number and (why := too_short(done.trained_seconds, plan.every_seconds)):
            self._print_line(why)

    def run_faulted(self) -> None:
        result, name = self.result, f"faulted-{len(self.result.faulted)}"
        done = self._runner.run(name, self.faults, examples=self._examples, through_relay=self._through_relay)
        self.faults.soak_seconds += done.trained_seconds
        problems = job_problems(done, self._examples)
        count_job(result, name, done, problems)
        result.faulted.append(stretch_of(done, self._batch))
        result.trainer_seconds += done.replaced_seconds
        for label, seconds, examples in speeds_after(done):
            result.speeds.setdefault(label, []).append((seconds, examples))
        so_far = f"{duration(self.faults.soak_seconds)} of {duration(self._plan.for_seconds)}"
        ends = ", ".join(str(code) for code in done.exit_codes)
        wrong = "".join(f"\n  {problem}" for problem in problems)
        faults = counted(len(done.injected), "fault")
        self._print_line(f"{so_far}, {faults}: exit {ends}, {_said(result.faulted[-1])}{wrong}")


def clean_jobs_by(soak_seconds: float, plan: SoakPlan) -> int:
    """Return how many jobs without faults there are to be when others have trained for so long.

    The first comes before all others, the last after them.
    """
    return 1 + int((plan.clean_runs - 1) * min(1.0, soak_seconds / plan.for_seconds))


def too_short(job_seconds: float, every_seconds: float) -> str:
    """Say that jobs are too short for so few faults; empty if they are not."""
    if job_seconds >= FEWEST_FAULTS_IN_A_JOB * every_seconds:
        return ""
    return (
        f"a job trains for {duration(job_seconds)} only, and a fault comes every {duration(every_seconds)}: "
        "the time before its first fault counts too much; give more data, such as --set data.epochs=10"
    )


def figures(result: SoakResult) -> dict[str, float | None]:
    """Return what the jobs show together."""
    return {
        "goodput": result.goodput,
        "useful_examples_per_second": useful_per_second(result.faulted),
        "undisturbed_examples_per_second": useful_per_second(result.clean),
        "cpu_seconds_per_million": cpu_seconds_per_million(result.faulted),
        "undisturbed_cpu_seconds_per_million": cpu_seconds_per_million(result.clean),
        "trainer_seconds_mean": fmean(result.trainer_seconds) if result.trainer_seconds else None,
    }


def _said(stretch: Stretch) -> str:
    rate = count(round(useful_per_second([stretch])))
    return f"{count(stretch.useful_examples)} useful examples in {duration(stretch.seconds)}, {rate} a second"
