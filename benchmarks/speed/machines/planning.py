"""The plan's examples/s beside measured ones, for settings that were not profiled.

    python benchmarks/speed/machines/planning.py \\
        --out benchmarks/speed/results/planning.json  # 10 minutes on two quiet cores
    python benchmarks/speed/machines/planning.py \\
        --again benchmarks/speed/results/planning.json  # predict the same runs anew
    python benchmarks/speed/machines/planning.py --rounds 1 --seconds 6 --only 2        # does it run

One job is profiled once, and predicts twelve settings of trainers, workers, nodes, batches in flight, rounds
and cores. Each then runs for about `--seconds`, in alternation, and the median of its examples/s is set
beside the prediction. The first two seconds of training and the last bucket of the curve do not count, as in
a profile. Goals: each within 10%, rank correlation at least 0.9. The control: a profile of a model with
smaller layers must miss by more than 25%.

The runs need every core: what other processes took of them is printed with each, and above 5% a run says
nothing. `TUNING` has further settings, of which the profiles are kept: if the plan is off, they may say why,
and the plan may be changed for them, never for the twelve.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from scipy.stats import spearmanr
from shadowsync.benchmarks.job_runs import Sections, job_text, log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, save
from shadowsync.lab.capacity.demands import Demands, demands_of, require_same_model
from shadowsync.lab.capacity.layout import Layout
from shadowsync.lab.capacity.machine import parse_machine
from shadowsync.lab.capacity.plan_job import profile_of_run
from shadowsync.lab.capacity.prediction import JobRules, predict
from shadowsync.nodes.sync_rules import with_sync_nodes
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job, load_resolved
from shadowsync.pipeline.performance.document import Profile
from shadowsync.pipeline.performance.measurements import ProfileMeasurements
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.text.format import count, percent
from shadowsync.pipeline.text.markdown import markdown_table

GOAL: Final = 0.10
RANK_GOAL: Final = 0.9
CONTROL_GOAL: Final = 0.25
SETTLING_SECONDS: Final = 2.0
# Of half a second each.
LEAST_BUCKETS: Final = 6
LEAST_SECONDS: Final = 6.0
LOUD: Final = 0.05
BASE: Final[Sections] = {
    "model": {"embedding_dim": 16, "table_rows": 50_000, "bottom": [512, 256, 64], "top": [512, 256]},
    "trainer": {"count": 1, "workers": 1, "batch": 512},
    "embedding": {"nodes": 1},
    "sync": {"algorithm": "easgd", "nodes": 1},
}
OTHER_MODEL: Final[Sections] = {"model": {"bottom": [64, 16], "top": [64]}}
CORES: Final = "cores"
"""Not a section of the job file: the cores that the job may use."""
HELD_OUT: Final[dict[str, Sections]] = {
    "2 trainers": {"trainer": {"count": 2}},
    "2 workers": {"trainer": {"workers": 2}},
    "2 trainers of 2 workers": {"trainer": {"count": 2, "workers": 2}},
    "2 embedding nodes": {"embedding": {"nodes": 2}},
    "2 trainers, 2 embedding nodes, 2 readers": {
        "trainer": {"count": 2},
        "embedding": {"nodes": 2},
        "data": {"readers": 2},
    },
    "no lookup ahead": {"trainer": {"lookups_ahead": 0}},
    "2 trainers, no lookup ahead": {"trainer": {"count": 2, "lookups_ahead": 0}},
    "duty 0.2": {"sync": {"duty": 0.2}},
    "2 trainers, duty 0.3": {"trainer": {"count": 2}, "sync": {"duty": 0.3}},
    "2 trainers, gap 4": {"trainer": {"count": 2}, "sync": {"gap": 4, "duty": 1.0}},
    "1 core": {CORES: {"number": 1}},
    "1 core, 2 trainers, duty 0.3": {CORES: {"number": 1}, "trainer": {"count": 2}, "sync": {"duty": 0.3}},
}
TUNING: Final[dict[str, Sections]] = {
    "3 workers": {"trainer": {"workers": 3}},
    "3 trainers": {"trainer": {"count": 3}},
    "3 workers, no lookup ahead": {"trainer": {"workers": 3, "lookups_ahead": 0}},
    "2 workers, duty 0.5": {"trainer": {"workers": 2}, "sync": {"duty": 0.5}},
    "1 core, 2 workers": {CORES: {"number": 1}, "trainer": {"workers": 2}},
    "3 trainers, duty 0.3": {"trainer": {"count": 3}, "sync": {"duty": 0.3}},
    "1 core, duty 0.3": {CORES: {"number": 1}, "sync": {"duty": 0.3}},
    "duty 0.4": {"sync": {"duty": 0.4}},
    "2 trainers, duty 0.1": {"trainer": {"count": 2}, "sync": {"duty": 0.1}},
    "1 core, 3 trainers, duty 0.2": {CORES: {"number": 1}, "trainer": {"count": 3}, "sync": {"duty": 0.2}},
    "3 embedding nodes, no lookup ahead": {"embedding": {"nodes": 3}, "trainer": {"lookups_ahead": 0}},
    "no rounds, no lookup ahead": {"sync": {"algorithm": "none"}, "trainer": {"lookups_ahead": 0}},
}


def merged(*all_changes: Sections) -> Sections:
    """Return settings upon settings."""
    sections: Sections = {}
    for changes in all_changes:
        for name, keys in changes.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections


@contextmanager
def on_cores(sections: Sections) -> Iterator[tuple[Sections, int]]:
    """Keep this process to the cores of a setting; yield the rest of it."""
    usable = sorted(os.sched_getaffinity(0))
    cores = sections.get(CORES, {}).get("number", len(usable))
    os.sched_setaffinity(0, usable[:cores])
    try:
        yield {name: keys for name, keys in sections.items() if name != CORES}, cores
    finally:
        os.sched_setaffinity(0, usable)


def profiled(sections: Sections, seconds: float) -> tuple[Profile, Demands]:
    """Profile a job; return the profile and its costs."""
    found: list[tuple[Profile, Demands]] = []

    def read(folder: Path) -> None:
        profile, place = profile_of_run(folder)
        job = load_resolved(str(folder / "job.json"))
        found.append((profile, demands_of(profile, require_same_model(job, profile, place), place)))

    with on_cores(merged(sections, {"data": {"epochs": 100}})) as (job_file, _):
        run_job(job_file, command=("profile", "--seconds", str(seconds)), then=read)
    return found[0]


def predicted(profile: Profile, demands: Demands, sections: Sections) -> float:
    """Return the examples/s that a profile predicts of a setting on this machine."""
    with on_cores(sections) as (job_file, cores):
        job = job_of(job_file)
    layout = Layout(
        trainers=job.trainer.count,
        workers=job.trainer.workers,
        embedding_nodes=job.embedding.nodes,
        embedding_threads=job.embedding.threads,
        readers=job.data.readers,
        sync_nodes=job.sync_nodes,
    )
    machine = parse_machine(None, cores, profile.measured.basis)
    prediction = predict(layout, demands, JobRules.of(job), machine, 1)
    assert prediction is not None
    return prediction.examples_per_second


def job_of(sections: Sections) -> Job:
    """Return the job of these sections, as `shadowsync run` reads it."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        file = Path(folder) / "job.toml"
        file.write_text(job_text(sections), encoding="utf-8")
        return with_sync_nodes(load_job(str(file)), may_import=True)


def steady_speed(report: Report) -> float | None:
    """Return a run's examples/s without its beginning and its last, partial bucket.

    Returns None for a run that was too short.
    """
    curves = report.curves.throughput.values()
    trained = [seconds for points in curves for seconds, value in points if value > 0.0]
    first, last = min(trained), min(points[-1][0] for points in curves)
    counted: dict[float, float] = {}
    for points in curves:
        for seconds, value in points:
            if first + SETTLING_SECONDS < seconds < last:
                counted[seconds] = counted.get(seconds, 0.0) + value
    return statistics.fmean(counted.values()) if len(counted) >= LEAST_BUCKETS else None


def measured(sections: Sections, examples: int, expected: float, seconds: float) -> Figures:
    """Run a setting for about so many seconds; return its figures.

    `examples` are those of the log. Where more than twice the `expected` examples/s were trained, the run was
    too short, and another one is made.
    """
    figures = _measured(sections, max(1, round(expected * seconds / examples)))
    while "examples_per_second" not in figures:
        longer = figures["whole_run"] * seconds / examples
        figures = _measured(sections, max(2, round(longer)))
    return figures


def _measured(sections: Sections, epochs: int) -> Figures:
    busy, own, began = _busy_seconds(), _own_seconds(), time.monotonic()
    with on_cores(merged(sections, {"data": {"epochs": epochs}})) as (job_file, _):
        report = run_job(job_file)
    seconds = (time.monotonic() - began) * (psutil.cpu_count() or 1)
    elsewhere = max(0.0, (_busy_seconds() - busy) - (_own_seconds() - own)) / seconds
    speed = steady_speed(report)
    return {
        **({"examples_per_second": speed} if speed is not None else {}),
        "whole_run": report.throughput.examples_per_second or 0.0,
        "cpu_seconds_per_million": report.throughput.cpu_seconds_per_million or 0.0,
        "sync_gap": report.sync.gap_mean or 0.0,
        "elsewhere": elsewhere,
    }


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds() -> float:
    """Return the CPU seconds of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def compare(results: Results, guesses: Mapping[str, float]) -> dict[str, Figures]:
    """Return measured and predicted examples/s by setting."""
    rows = {}
    for name, runs in results.items():
        median = statistics.median(run["examples_per_second"] for run in runs)
        rows[name] = {"measured": median, "predicted": guesses[name], "error": guesses[name] / median - 1}
    return rows


def table(rows: Mapping[str, Figures]) -> str:
    """Render measured and predicted speeds."""
    lines = [
        (name, count(row["measured"]), count(row["predicted"]), percent(row["error"]))
        for name, row in rows.items()
    ]
    return "\n".join(markdown_table(("setting", "measured", "predicted", "off"), lines))


def verdicts(rows: Mapping[str, Figures], wrong: Mapping[str, Figures]) -> dict[str, Any]:
    """Return the goals and whether they are met."""
    speeds = [row["measured"] for row in rows.values()]
    guessed = [row["predicted"] for row in rows.values()]
    rank = float(spearmanr(speeds, guessed).statistic) if len(rows) > 2 else None
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


def tuned(base: Sections, names: Sequence[str], seconds: float, guess: Any) -> dict[str, Any]:
    """Profile the settings that the plan may be changed for."""
    found = {}
    for name in names:
        sections = merged(base, TUNING[name])
        profile, _ = profiled(sections, seconds)
        speed, planned = profile.examples_per_second, guess(sections)
        print(f"tuning  {name:28} {count(speed)}, predicted {count(planned)}", flush=True)
        kept = profile.measured.model_dump(mode="json")
        found[name] = {"examples_per_second": speed, "predicted": planned, "measured": kept}
    return found


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=9.0, help="of training of each run, about")
    parser.add_argument("--examples", type=int, default=60_000, help="of the log, read again and again")
    parser.add_argument("--profile-seconds", type=float, default=15.0)
    parser.add_argument("--only", type=int, default=len(HELD_OUT), help="so many of the settings")
    parser.add_argument("--tuning", type=int, default=len(TUNING), help="so many of the others")
    parser.add_argument("--data", type=Path, help="a generated log to use")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", type=Path, metavar="FILE", help="predict what FILE has the runs of, anew")
    given = parser.parse_args()
    if given.seconds < LEAST_SECONDS:
        parser.error(f"--seconds: at least {LEAST_SECONDS:g}, since the first ones do not count")
    return given


def predict_again(results: Mapping[str, Any]) -> None:
    """Print the predictions of the present formulas for a file's profiles, beside its runs."""
    base = merged(on_log(Path("log"), 1), BASE)
    compared = []
    for key, changes in (("profile", {}), ("other_profile", OTHER_MODEL)):
        profile = Profile.of(ProfileMeasurements.model_validate(results[key]), [], None)
        demands = demands_of(profile, profile.measured.basis, key)
        guesses = {
            name: predicted(profile, demands, merged(base, HELD_OUT[name], changes))
            for name in results["runs"]
        }
        compared.append(compare(results["runs"], guesses))
        tuning = results.get("tuning", {}) if key == "profile" else {}
        for name, found in tuning.items():
            planned = predicted(profile, demands, merged(base, TUNING[name]))
            print(f"tuning  {name:28} {count(found['examples_per_second'])}, predicted {count(planned)}")
    print(table(compared[0]))
    print("\n".join(f"{name}: {value}" for name, value in verdicts(*compared).items()))


def main() -> None:
    """Profile, predict, measure, compare, and save."""
    given = arguments()
    if given.again is not None:
        predict_again(json.loads(given.again.read_text("utf-8"))["results"])
        return
    began = time.monotonic()
    names = list(HELD_OUT)[: given.only]
    with log_or_generated(given.data, given.examples, 1000) as log:
        base = merged(on_log(log, 1), BASE)
        del base["data"]["eval_path"]
        settings = {name: merged(base, HELD_OUT[name]) for name in names}
        profile, demands = profiled(base, given.profile_seconds)
        guess = partial(predicted, profile, demands)
        print(f"{job_text(base)}\nprofiled: {count(profile.examples_per_second)} examples/s", flush=True)
        guesses = {name: guess(sections) for name, sections in settings.items()}
        other, costs = profiled(merged(base, OTHER_MODEL), given.profile_seconds)
        wrong = {name: predicted(other, costs, merged(settings[name], OTHER_MODEL)) for name in names}
        found: dict[str, Any] = {
            "profile": profile.measured.model_dump(mode="json"),
            "other_profile": other.measured.model_dump(mode="json"),
            "predicted": guesses,
        }
        print("\n".join(f"predicted  {name:42} {count(rate)}" for name, rate in guesses.items()), flush=True)
        if given.out is not None:
            save(given.out, "planned speeds", found)

        def keep(results: Results) -> None:
            rows, control = compare(results, guesses), compare(results, wrong)
            found.update(runs=results, compared=rows, other_model=control, verdicts=verdicts(rows, control))
            if given.out is not None:
                save(given.out, "planned speeds", found)

        def runs_of(name: str) -> Figures:
            return measured(settings[name], given.examples, guesses[name], given.seconds)

        alternate({name: partial(runs_of, name) for name in names}, given.rounds, keep)
        print(table(found["compared"]))
        print("\n".join(f"{name}: {value}" for name, value in found["verdicts"].items()))
        loud = [name for name, runs in found["runs"].items() if any(run["elsewhere"] > LOUD for run in runs)]
        print(f"something else ran beside: {', '.join(loud) or 'none of them'}")
        shorter = max(5.0, given.profile_seconds / 2)
        found["tuning"] = tuned(base, list(TUNING)[: given.tuning], shorter, guess)
        found["loud"], found["seconds"] = loud, time.monotonic() - began
        keep(found["runs"])


if __name__ == "__main__":
    main()
