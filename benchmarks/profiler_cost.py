"""What `shadowsync profile` costs: CPU seconds per million examples of the same job, with it and without.

    python benchmarks/profiler_cost.py [--log FOLDER] [--rounds 10] [--out FILE.json]

Alternating jobs, each looked at from outside over the same seconds of its life: all CPU seconds of all of its
processes and the examples in its ledger, from 3 seconds after its first batches, when a profile has begun to
measure, to shortly before a profile would end; "with the trace" goes on into the second that a profile
traces. The paired ratio with a 95% bootstrap interval; the promise is at most 1.03. Beside it, from each
profile itself, the share of all CPU seconds that its samplers took, which needs no pairs and no quiet
machine. Saved after every round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import Sections, log_or_generated, on_log
from shadowsync.benchmarks.live_job import END_SECONDS, live_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table
from shadowsync.nodes.coordinator.profiler import MOST_WARM_UP_SECONDS, TRACE_SECONDS, WARM_UP_SHARE
from shadowsync.pipeline.performance.document import PROFILE_JSON, read_profile

COST = "CPU s / million"
TRACED = "CPU s / million, with the trace"
SAMPLERS = "samplers' share of CPU"
BATCH = 512
# A profile's warm-up, and the first question of its own.
BEGIN_SECONDS = MOST_WARM_UP_SECONDS
# It began when all trainers were seen to train, which from outside is not known to the tick.
MARGIN_SECONDS = 0.3


def one_job(log: Path) -> Sections:
    """One trainer of two workers; its input lasts for longer than anybody looks."""
    sections = on_log(log, seed=1)
    sections["data"].pop("eval_path")
    sections["data"]["epochs"] = 1000
    sections["trainer"] = {"count": 1, "workers": 2, "batch": BATCH}
    return sections


def measure(log: Path, seconds: float, profiled: bool) -> Figures:
    """One job's figures: a profile of so many seconds, or a run that is interrupted when that would end."""
    command = ("profile", "--seconds", str(seconds)) if profiled else ("run",)
    measured = min(MOST_WARM_UP_SECONDS, WARM_UP_SHARE * seconds) + seconds
    with live_job(one_job(log), command) as job:
        start = job.wait_for_training()
        seen = []
        for after in (BEGIN_SECONDS, measured - MARGIN_SECONDS, measured + TRACE_SECONDS - MARGIN_SECONDS):
            job.sleep_until(start + after)
            seen.append((job.trained_batches() * BATCH, time.monotonic(), job.cpu_seconds()))
        (first, began, used), (last, ended, _) = seen[:2]
        found: Figures = {"examples/s": (last - first) / (ended - began)}
        for name, (examples, _, cpu) in zip((COST, TRACED), seen[1:], strict=True):
            found[name] = (cpu - used) / (examples - first) * 1e6
        if profiled:
            job.process.wait(END_SECONDS)
            found[SAMPLERS] = samplers_share(job.folder / "latest" / PROFILE_JSON)
        return found


def samplers_share(path: Path) -> float:
    """Of the CPU seconds of all nodes, those of the threads that sample them."""
    nodes = read_profile(path).measured.nodes
    sampled = sum(node.threads["sampler"].cpu_seconds for node in nodes if "sampler" in node.threads)
    return sampled / sum(node.cpu_seconds for node in nodes)


def ratios(results: Results) -> dict[str, dict[str, float]]:
    """Of each cost, with a profile over without."""
    found = {}
    for key in (COST, TRACED):
        profiled, plain = ([one[key] for one in results[name]] for name in ("profile", "run"))
        found[f"{key}, profile / run"] = ratio(profiled, plain)
    return found


def keep(out: Path, settings: dict[str, Any], results: Results) -> None:
    """Saves what there is so far."""
    what = (__doc__ or "").splitlines()[0]
    save(out, what, {"runs": results, "ratios": ratios(results), "settings": settings})


def main() -> None:
    """Measures, prints, and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, help="a generated log; one is made without it")
    parser.add_argument("--examples", type=int, default=600_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="of a profile, 6 or more")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("profiler_cost.json"))
    options = parser.parse_args()
    if options.seconds < 2 * BEGIN_SECONDS:
        parser.error(f"--seconds {options.seconds}: {2 * BEGIN_SECONDS:g} or more")
    settings = {key: getattr(options, key) for key in ("rounds", "seconds", "examples")}
    with log_or_generated(options.log, options.examples, eval_examples=1000) as log:
        runs: dict[str, Callable[[], Figures]] = {
            "run": partial(measure, log.absolute(), options.seconds, profiled=False),
            "profile": partial(measure, log.absolute(), options.seconds, profiled=True),
        }
        results = alternate(runs, options.rounds, partial(keep, options.out, settings))
    print(table(results))
    for name, value in ratios(results).items():
        print(show_ratio(name, value))


if __name__ == "__main__":
    main()
