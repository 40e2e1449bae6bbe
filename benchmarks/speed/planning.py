"""The plan's examples/s beside measured ones, for settings that were not profiled.

    python benchmarks/speed/planning.py --out docs/results/planning.json        # an hour on two quiet cores
    python benchmarks/speed/planning.py --rounds 1 --only 1 --examples 100000   # does it run

One job is profiled. Then each of twelve settings of workers, trainers, embedding nodes, batches in flight and
rounds runs on all cores of this machine, in alternation, and the median of its examples/s is set beside what
the profile predicts. Goals: each within 10%, rank correlation at least 0.9. The control: a profile of a model
with larger layers must miss by more than 25%. Readers, sync node and coordinator share the cores.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from scipy.stats import spearmanr
from shadowsync.benchmarks.job_runs import Sections, job_text, log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import Results, alternate, save
from shadowsync.lab.capacity.demands import Demands, demands_of, require_same_model
from shadowsync.lab.capacity.layout import Layout
from shadowsync.lab.capacity.machine import parse_machine
from shadowsync.lab.capacity.plan_job import profile_of_run
from shadowsync.lab.capacity.prediction import JobRules, predict
from shadowsync.nodes.launch import with_sync_nodes
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_resolved, validate_job
from shadowsync.pipeline.performance.document import Profile
from shadowsync.pipeline.text.format import count, percent
from shadowsync.pipeline.text.markdown import markdown_table

GOAL: Final = 0.10
RANK_GOAL: Final = 0.9
CONTROL_GOAL: Final = 0.25
BASE: Final[Sections] = {
    "model": {"embedding_dim": 16, "table_rows": 50_000, "bottom": [512, 256, 64], "top": [512, 256]},
    "trainer": {"count": 1, "workers": 1, "batch": 512},
    "embedding": {"nodes": 1},
    "sync": {"nodes": 1},
}
OTHER_MODEL: Final[Sections] = {"model": {"bottom": [64, 16], "top": [64]}}
HELD_OUT: Final[dict[str, Sections]] = {
    "2 trainers": {"trainer": {"count": 2}},
    "2 workers": {"trainer": {"workers": 2}},
    "3 workers": {"trainer": {"workers": 3}},
    "2 trainers of 2 workers": {"trainer": {"count": 2, "workers": 2}},
    "2 embedding nodes": {"embedding": {"nodes": 2}},
    "2 trainers, 2 embedding nodes": {"trainer": {"count": 2}, "embedding": {"nodes": 2}},
    "no lookup ahead": {"trainer": {"lookups_ahead": 0}},
    "2 trainers, no lookup ahead": {"trainer": {"count": 2, "lookups_ahead": 0}},
    "3 lookups ahead": {"trainer": {"lookups_ahead": 3}},
    "2 readers": {"data": {"readers": 2}},
    "2 trainers, duty 0.05": {"trainer": {"count": 2}, "sync": {"duty": 0.05}},
    "2 trainers, gap 4": {"trainer": {"count": 2}, "sync": {"gap": 4, "duty": 0.05}},
}


def merged(*all_changes: Sections) -> Sections:
    """Return settings upon settings."""
    sections: Sections = {}
    for changes in all_changes:
        for name, keys in changes.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections


def profiled(sections: Sections, seconds: float) -> tuple[Profile, Demands, Job]:
    """Profile a job; return the profile, its costs and the resolved job."""
    found: list[tuple[Profile, Demands, Job]] = []

    def read(folder: Path) -> None:
        profile, place = profile_of_run(folder)
        job = load_resolved(str(folder / "job.json"))
        found.append((profile, demands_of(profile, require_same_model(job, profile, place), place), job))

    run_job(sections, command=("profile", "--seconds", str(seconds)), then=read)
    return found[0]


def predicted(profile: Profile, demands: Demands, job: Job) -> float:
    """Return the examples/s that a profile predicts of a job on this machine."""
    assert profile.measured.basis is not None
    layout = Layout(
        trainers=job.trainer.count,
        workers=job.trainer.workers,
        embedding_nodes=job.embedding.nodes,
        embedding_threads=job.embedding.threads,
        readers=job.data.readers,
        sync_nodes=job.sync_nodes,
    )
    machine = parse_machine(None, profile.measured.cores, profile.measured.basis)
    prediction = predict(layout, demands, JobRules.of(job), machine, 1)
    assert prediction is not None
    return prediction.examples_per_second


def job_of(sections: Sections) -> Job:
    """Return the job of these sections."""
    return with_sync_nodes(validate_job(sections, where="the job"), may_import=True)


def compare(
    results: Results, settings: Mapping[str, Sections], base: Sections, profile: Profile, demands: Demands
) -> dict[str, dict[str, float]]:
    """Return measured and predicted examples/s by setting."""
    rows = {}
    for name, runs in results.items():
        median = statistics.median(run["examples_per_second"] for run in runs)
        guess = predicted(profile, demands, job_of(merged(base, settings[name])))
        rows[name] = {"measured": median, "predicted": guess, "error": guess / median - 1}
    return rows


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Render measured and predicted speeds."""
    lines = [
        (name, count(row["measured"]), count(row["predicted"]), percent(row["error"]))
        for name, row in rows.items()
    ]
    return "\n".join(markdown_table(("setting", "measured", "predicted", "off"), lines))


def verdicts(
    rows: Mapping[str, Mapping[str, float]], wrong: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return the goals and whether they are met."""
    measured = [row["measured"] for row in rows.values()]
    guessed = [row["predicted"] for row in rows.values()]
    rank = float(spearmanr(measured, guessed).statistic) if len(rows) > 2 else None
    return {
        "largest error": max(abs(row["error"]) for row in rows.values()),
        f"within {GOAL:.0%}": sum(abs(row["error"]) <= GOAL for row in rows.values()),
        "settings": len(rows),
        "rank correlation": rank,
        f"rank correlation at least {RANK_GOAL}": rank is not None and rank >= RANK_GOAL,
        f"control off by more than {CONTROL_GOAL:.0%}": sum(
            abs(row["error"]) > CONTROL_GOAL for row in wrong.values()
        ),
    }


def main() -> None:
    """Profile, measure, compare, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=600_000)
    parser.add_argument("--profile-seconds", type=float, default=20.0)
    parser.add_argument("--only", type=int, default=len(HELD_OUT), help="so many of the settings")
    parser.add_argument("--data", type=Path, help="a generated log to use")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    settings = dict(list(HELD_OUT.items())[: given.only])
    with log_or_generated(given.data, given.examples, 1000) as log:
        base = merged(on_log(log, 1), BASE)
        del base["data"]["eval_path"]
        long = {"data": {"epochs": 100}}
        profile, demands, _ = profiled(merged(base, long), given.profile_seconds)
        print(job_text(base), f"profiled: {count(profile.examples_per_second)} examples/s", flush=True)

        def speed(changes: Sections) -> dict[str, float]:
            found = run_job(merged(base, changes)).throughput.examples_per_second
            assert found is not None
            return {"examples_per_second": found}

        results = alternate(
            {name: partial(speed, changes) for name, changes in settings.items()}, given.rounds
        )
        other, costs, _ = profiled(merged(base, OTHER_MODEL, long), given.profile_seconds)
    rows = compare(results, settings, base, profile, demands)
    wrong = compare(results, settings, base, other, costs)
    print(table(rows))
    found = verdicts(rows, wrong)
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    if given.out is not None:
        save(given.out, "planned speeds", {"runs": results, "compared": rows, "other_model": wrong} | found)


if __name__ == "__main__":
    main()
