"""The plan of a comparison: checked jobs, and the order of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from ...nodes.sync_rules import check_sync
from ...pipeline.atomic_file import write_text
from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ...pipeline.input.plan import plan_input, require_fixed_input, require_ne
from ...pipeline.models.registry import build_model
from ...pipeline.models.state_check import check_stateless
from ...pipeline.report.rendering.wording import emulated_links
from ...pipeline.report.run_folders.write import describe_hardware, versions
from ...pipeline.text.wall_clock import timestamp
from .record import Comparison, Run, VariantRecord
from .variants import (
    REFERENCE,
    Variant,
    parse_variants,
    reference_job,
    require_several_trainers,
    slug,
    variant_job,
)

T = TypeVar("T")

JOBS = "jobs"
RUNS = "runs"


def check(base: Job, algorithms: str, seeds: int) -> list[Variant]:
    """Check all variants before the first run.

    Raises the errors that would end a run at its start.
    """
    if base.run.seed + seeds > 2**31:
        raise JobFileError(
            f"run.seed: {seeds} seeds from {base.run.seed} on go beyond 2147483647",
            remedy="lower run.seed or --seeds",
        )
    variants = parse_variants(algorithms)
    for variant in variants:
        try:
            check_sync(variant_job(base, variant, base.run.seed, "check", base.run.directory))
        except JobFileError as error:
            raise JobFileError(str(error), where=f"--algorithms {variant.label}") from error
    reference = reference_job(base, base.run.seed, "check", base.run.directory)
    check_stateless(reference, build_model(reference))
    require_fixed_input(base)
    require_ne(base)
    plan_input(base)
    require_several_trainers([base.trainer.count], "--set trainer.count=4")
    return variants


def make_plan(base: Job, variants: Sequence[Variant], seeds: int, folder: Path) -> Comparison:
    """Build the comparison and write its jobs to `folder`/jobs.

    All runs are waiting.
    """
    jobs = folder / JOBS
    jobs.mkdir()
    chosen = list(range(base.run.seed, base.run.seed + seeds))
    runs = []
    for turn, seed in enumerate(chosen):
        for number, variant in _in_turn(list(enumerate([None, *variants])), turn):
            label = REFERENCE if variant is None else variant.label
            name = f"{number:02d}-{slug(label)}-seed{seed}"
            directory = str((folder / RUNS).absolute())
            if variant is None:
                job = reference_job(base, seed, name, directory)
            else:
                job = variant_job(base, variant, seed, name, directory)
            write_text(jobs / f"{name}.json", job.model_dump_json(indent=1) + "\n")
            runs.append(Run(label=label, seed=seed, name=name))
    reference = Variant(REFERENCE, "none")
    slow = base.network.slow
    return Comparison(
        name=base.run.name,
        started_at=timestamp(),
        seeds=chosen,
        variants=[_record(variant, base) for variant in (reference, *variants)],
        runs=runs,
        network=emulated_links(slow) if slow is not None else None,
        batch=base.trainer.batch,
        hardware=describe_hardware(),
        versions=versions(),
    )


def _in_turn(items: Sequence[T], turn: int) -> list[T]:
    """Rotate the items by `turn`, and reverse them every other turn.

    A drift of the machine then affects all items alike.
    """
    start = turn % len(items)
    rotated = [*items[start:], *items[:start]]
    return rotated[::-1] if turn % 2 else rotated


def _record(variant: Variant, base: Job) -> VariantRecord:
    none = variant.algorithm == "none"
    return VariantRecord(
        label=variant.label,
        algorithm=variant.algorithm,
        mode="none" if none else "shadow" if variant.every is None else "fixed",
        every=None if none else variant.every,
        options=variant.options,
        trainers=1 if variant.label == REFERENCE else base.trainer.count,
    )
