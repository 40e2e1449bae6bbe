"""Emulated runs of named variants by seed, kept in a file."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import load_job

Variant: TypeAlias = tuple[tuple[str, ...], Timing]
"""Settings of a job, and the machines that it is emulated on."""


def run_variants(
    description: str | None,
    variants: Mapping[str, Variant],
    figures: Callable[[VirtualResult], dict[str, Any]],
) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Make the requested runs that the file lacks, and print means.

    `figures` returns the figures to keep of a run, including `ne`. Returns the file, and all of its runs by
    name and seed.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(variants), default=list(variants))
    parser.add_argument("--set", nargs="*", default=[], help="settings of every variant")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made: dict[str, dict[str, Any]] = kept_runs(given.out)
    for seed in range(1, given.seeds + 1):
        for name in given.only:
            overrides, timing = variants[name]
            if str(seed) in made.setdefault(name, {}):
                continue
            job = load_job(str(given.job), (*overrides, *given.set, f"run.seed={seed}"))
            made[name][str(seed)] = figures(run_virtual(job, timing))
            keep_runs(given.out, made)
            print(f"{name}, seed {seed}: {made[name][str(seed)]}", flush=True)
    for name in given.only:
        found = [run["ne"] for run in made[name].values() if run["ne"] is not None]
        if found:
            print(f"{name}: NE {statistics.fmean(found):.4f} ({min(found):.4f} to {max(found):.4f})")
    return given.out, made
