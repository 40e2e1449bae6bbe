"""What `shadowsync tune` trains to find a planted best of real jobs.

    python benchmarks/quality/tuning_jobs.py --seeds 3 --out docs/results/tuning_jobs.json

The demo's job on --examples of a generated log. Searched are algorithm, gap, and the rates of the dense part
and of the rows, both over five decades. The best rates of the job are taken from a grid of nine jobs.
Planting: the job gets the searched rates times factors that each seed draws, so that the best ones are at
another place of the range in each. Counted are the examples until a trial that trained to its end has an NE
within NEAR of the grid's least. Random search, the control, counts with all that it trained if it has not
found it after --trials, which is then too little; if ours has not, there is nothing to compare. Goal: a
median of at most 40% of the control's.

Runs that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs, log_or_generated
from shadowsync.lab.tuning.space import Parameters, Range, parse_space
from shadowsync.lab.tuning.study import Objective, Outcome, ReportRung, Study, StudyRules
from shadowsync.lab.tuning.trial_run import JobTrials
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.write import describe_hardware, versions
from shadowsync.pipeline.text.format import count, number, percent
from shadowsync.pipeline.text.markdown import markdown_table

DEMO: Final = Path(__file__).parents[2] / "examples" / "demo.toml"
SEARCH: Final = (
    "sync.algorithm=easgd,ma,bmuf",
    "sync.gap=1..64:log",
    "trainer.lr=1e-5..1.0:log",
    "embedding.lr=1e-4..10.0:log",
)
# Factors of the job's own rates.
GRID: Final = {"trainer.lr": (0.2, 1.0, 5.0), "embedding.lr": (1.0, 3.0, 9.0)}
NEAR: Final = 0.004
GOAL: Final = 0.4
# The best is planted at these shares of a logarithmic range.
INNER: Final = (0.15, 0.85)


def main() -> None:
    """Make the missing studies, print both sides, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=500_000)
    parser.add_argument("--trials", type=int, default=60, help="of a study that does not find it")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made: dict[str, Any] = kept_runs(given.out)
    with log_or_generated(None, given.examples, given.examples // 10) as log:
        overrides = [f"data.path={log}/train-*.parquet", f"data.eval_path={log}/eval-*.parquet"]
        base = load_job(str(DEMO), overrides)
        if "grid" not in made:
            made |= {"hardware": describe_hardware().model_dump(), "versions": versions()}
            made |= {"examples": given.examples, "near": NEAR, "grid": grid(base)}
            keep_runs(given.out, made)
        best = min(made["grid"], key=lambda one: float(one["ne"]))
        print(f"least NE of the grid: {best['ne']:.5f}, at {best['rates']}", flush=True)
        for seed in range(given.seeds):
            for strategy in ("asha", "random"):
                studies = made.setdefault(strategy, [])
                if len(studies) <= seed:
                    rules = StudyRules.model_validate({"strategy": strategy, "seed": seed})
                    factors = planted(seed, best["rates"])
                    studies.append(search(base, rules, factors, best["ne"] + NEAR, given.trials))
                    keep_runs(given.out, made)
    show(made, given.seeds)


def run(trials: JobTrials, folder: Path, number: int, parameters: Parameters, report: ReportRung) -> Outcome:
    """Make a trial, and delete its run."""
    outcome = trials(number, parameters, report)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return outcome


def grid(base: Job) -> list[dict[str, Any]]:
    """Return the NE of the job at rates around its own."""
    own = {"trainer.lr": base.trainer.lr, "embedding.lr": base.embedding.lr}
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-tuning-") as name:
        trials = JobTrials(base, Path(name), [])
        for dense in GRID["trainer.lr"]:
            for rows in GRID["embedding.lr"]:
                rates = {
                    "trainer.lr": own["trainer.lr"] * dense,
                    "embedding.lr": own["embedding.lr"] * rows,
                }
                outcome = run(trials, Path(name), len(found), rates, lambda _rung, _ne: False)
                if outcome.ne is None:
                    raise RuntimeError(f"the job at {rates} has no score: {outcome.why}")
                found.append({"rates": rates, "ne": outcome.ne})
                print(f"grid: {rates}: NE {outcome.ne:.5f}", flush=True)
    return found


def planted(seed: int, best: Mapping[str, float]) -> dict[str, float]:
    """Draw factors that put the best rates at random places of their ranges."""
    draw = random.Random(seed)
    ranges = {one.key: one for one in parse_space(SEARCH) if isinstance(one, Range)}
    factors = {}
    for key, value in best.items():
        place = draw.uniform(*INNER)
        low, high = math.log(ranges[key].low), math.log(ranges[key].high)
        factors[key] = value / math.exp(low + place * (high - low))
    return factors


def search(
    base: Job, rules: StudyRules, factors: Mapping[str, float], good_ne: float, most: int
) -> dict[str, Any]:
    """Search until a complete trial is good; return what it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="benchmark-tuning-") as name:
        trials = JobTrials(base, Path(name), rules.shares)

        def objective(number: int, parameters: Parameters, report: ReportRung) -> Outcome:
            real = {key: value * factors.get(key, 1) for key, value in parameters.items() if key in factors}
            return run(trials, Path(name), number, {**parameters, **real}, report)

        study = Study(parse_space(SEARCH), rules)
        found = search_until(study, objective, good_ne, most)
    examples = sum(trial.examples for trial in study.trials)
    states = [trial.state for trial in study.trials]
    figures = {
        "examples": examples,
        "found": found,
        "ne": study.best.ne if study.best is not None else None,
        "states": {state: states.count(state) for state in sorted(set(states))},
        "seconds": time.monotonic() - began,
    }
    print(f"seed {rules.seed}, {rules.strategy}: {figures}", flush=True)
    return figures


def search_until(study: Study, objective: Objective, good_ne: float, most: int) -> bool:
    """Make trials; return whether a complete one was good."""
    for _ in range(most):
        trial = study.advance(objective)
        if trial.ne is not None and trial.ne <= good_ne:
            return True
    return False


def show(made: Mapping[str, Any], seeds: int) -> None:
    """Print a row for each seed, and the median."""
    pairs = list(zip(made["asha"][:seeds], made["random"][:seeds], strict=True))
    rows = []
    for seed, (ours, control) in enumerate(pairs):
        cells = [
            f"{count(one['examples'])}, NE {number(one['ne'])}{'' if one['found'] else ' (not found)'}"
            for one in (ours, control)
        ]
        rows.append((str(seed), *cells, percent(share_of(ours, control))))
    print("\n".join(markdown_table(("seed", "examples of tune", "of random search", "share"), rows)))
    shares = [share for ours, control in pairs if (share := share_of(ours, control)) is not None]
    if len(shares) < len(pairs):
        print(f"tune found it with {len(shares)} of {len(pairs)} seeds: too few trials to compare")
        return
    middle = percent(statistics.median(shares))
    print(f"median of the shares over {seeds} seeds: {middle}; goal: at most {percent(GOAL)}")


def share_of(ours: Mapping[str, Any], control: Mapping[str, Any]) -> float | None:
    """Return the share of the control's examples; None if ours did not find it.

    It is too much where the control has not found it.
    """
    return float(ours["examples"] / control["examples"]) if ours["found"] else None


if __name__ == "__main__":
    main()
