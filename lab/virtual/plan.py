"""Plan of a virtual comparison: algorithms, trainers, seeds, and their jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from ...nodes.sync_rules import check_sync
from ...pipeline.atomic_file import write_text
from ...pipeline.codecs.formats import Float32
from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ...pipeline.jobfile.load import validate_job
from ...pipeline.report.document import Hardware
from ...pipeline.report.rendering.wording import emulated_links
from ...pipeline.report.run_folders.write import describe_hardware, versions
from ...pipeline.text.wall_clock import timestamp
from ...pipeline.types import first_fault
from ..comparison.record import ComparisonPart, read_json, write_json
from ..comparison.variants import REFERENCE, Variant, parse_variants, reference_job, slug, variant_job
from .result import VirtualResult
from .timing import Timing

JOBS: Final = "jobs"
RESULTS: Final = "results"
JSON_NAME: Final = "virtual.json"


class VirtualRun(ComparisonPart):
    """One run: an algorithm's label, a number of trainers and a seed."""

    label: str
    trainers: int
    seed: int
    name: str


class VirtualPlan(ComparisonPart):
    """The content of virtual.json, from which a comparison resumes.

    `network` describes the emulated links.
    """

    format_version: Literal[1] = 1
    name: str
    started_at: str
    labels: list[str]
    trainers: list[int]
    seeds: list[int]
    timing: Timing
    runs: list[VirtualRun]
    network: str | None
    hardware: Hardware
    versions: dict[str, str]


def parse_timing(texts: Sequence[str]) -> Timing:
    """Parse KEY=VALUE of `--timing`; raises JobFileError."""
    values: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in Timing.model_fields:
            raise JobFileError(
                f"--timing: {text!r} is not KEY=VALUE of {', '.join(Timing.model_fields)}",
                remedy="write --timing step_seconds=0.02",
            )
        values[key] = value.split(",") if key == "slower" else value
    try:
        return Timing.model_validate(values)
    except ValidationError as error:
        raise JobFileError(f"--timing: {first_fault(error)}", remedy="give another number") from error


def parse_trainers(text: str, most: int = 1024) -> list[int]:
    """Parse the comma-separated value of `--trainers`, each at most `most`; raises JobFileError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= most for part in parts):
        raise JobFileError(f"--trainers: {text!r} given", remedy="write numbers of trainers, such as 1,2,4,8")
    return sorted({int(part) for part in parts})


def make_virtual_plan(
    base: Job, algorithms: str, trainers: list[int], seeds: int, timing: Timing
) -> tuple[VirtualPlan, dict[str, Job]]:
    """Make the plan and the jobs of its runs; raises JobFileError."""
    variants = parse_variants(algorithms)
    chosen = list(range(base.run.seed, base.run.seed + seeds))
    runs: list[VirtualRun] = []
    jobs: dict[str, Job] = {}

    def add(job: Job, label: str) -> None:
        name = f"{slug(label)}-{job.trainer.count}-seed{job.run.seed}"
        while name in jobs:
            # Two labels may differ only in characters that a file name lacks.
            name += "_"
        jobs[name] = job
        runs.append(VirtualRun(label=label, trainers=job.trainer.count, seed=job.run.seed, name=name))

    for seed in chosen:
        add(reference_job(base, seed, base.run.name, base.run.directory), REFERENCE)
        for variant in variants:
            for count in trainers:
                add(virtual_job(base, variant, count, seed), variant.label)
    slow = base.network.slow
    plan = VirtualPlan(
        name=base.run.name,
        started_at=timestamp(),
        labels=[variant.label for variant in variants],
        trainers=trainers,
        seeds=chosen,
        timing=timing,
        runs=runs,
        network=emulated_links(slow) if slow is not None else None,
        hardware=describe_hardware(),
        versions=versions(),
    )
    return plan, jobs


def write_plan(folder: Path, plan: VirtualPlan, jobs: Mapping[str, Job]) -> None:
    """Write the plan and its jobs to a new folder."""
    (folder / JOBS).mkdir()
    (folder / RESULTS).mkdir()
    for name, job in jobs.items():
        write_text(job_path(folder, name), job.model_dump_json(indent=1) + "\n")
    write_json(folder / JSON_NAME, plan)


def virtual_job(base: Job, variant: Variant, trainers: int, seed: int) -> Job:
    """Build the job of a variant with `trainers` trainers; raises JobFileError."""
    tree = variant_job(base, variant, seed, base.run.name, base.run.directory).model_dump()
    tree["trainer"] |= {"count": trainers, "device": "cpu"}
    job = validate_job(tree, where=f"--algorithms {variant.label}")
    check_sync(job)
    for way in ("vectors", "gradients"):
        if (codec := getattr(job.codecs, way)) != Float32.name:
            raise JobFileError(
                f"codecs.{way}: {codec!r} given; codecs of rows are not emulated",
                where="--virtual",
                remedy=f'set it to "{Float32.name}", or compare without --virtual',
            )
    return job


def read_virtual_plan(folder: Path) -> VirtualPlan:
    """Read the plan of a folder; raises JobFileError."""
    return read_json(folder / JSON_NAME, VirtualPlan)


def results_of(folder: Path, plan: VirtualPlan) -> dict[str, VirtualResult]:
    """Read the results that are there, by the run's name."""
    paths = {run.name: result_path(folder, run.name) for run in plan.runs}
    return {name: read_json(path, VirtualResult) for name, path in paths.items() if path.exists()}


def job_path(folder: Path, name: str) -> Path:
    return folder / JOBS / f"{name}.json"


def result_path(folder: Path, name: str) -> Path:
    """Return the path of a run's result, present once it has finished."""
    return folder / RESULTS / f"{name}.json"
