"""How long a trainer's threads hold the interpreter lock in a step, and how many could then run at once.

    python benchmarks/interpreter_lock.py --py-spy PATH [--source DIR] [--rounds 3] [--out FILE.json]

The job of the comparison with other systems, with one trainer of one worker, so that it has a core. py-spy
looks 400 times a second which thread holds the lock; a control, a process that holds its lock for a known
share of the time, says first whether such looks find what is true here. For each thread of the trainer, by
step: milliseconds of held lock, beside its CPU milliseconds and the step's wall. A thread that lost its core
while it held the lock is counted as holding it, so on a busy machine "held" is too much. Takes root.

A step of one worker needs the lock for `held` milliseconds of all of the trainer's threads, and takes the
CPU milliseconds of the worker, if it never waits. So at most `CPU of the worker / held` workers can run at
once, whatever the cores; where that is well above 4, 4 threads on 4 cores are not held back by the lock.

`--source DIR` measures another checkout as well, in alternation: DIR has the package as `shadowsync`.
What is there so far is saved after every run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import Sections
from shadowsync.benchmarks.live_job import JobEnded, LiveJob, live_job
from shadowsync.benchmarks.lock_holders import LOOKS_PER_SECOND, holders, seen_over_true
from shadowsync.benchmarks.own_runs import sections
from shadowsync.benchmarks.pairs import Figures, save, table
from shadowsync.benchmarks.peer_log import write_peer_log

WARM_SECONDS = 3.0
CONTROL_SECONDS = 4.0
# A thread with less for each step did nothing.
LEAST_MS = 0.001
# The control must be found this near.
CONTROL_WITHIN = 0.25
NOW, OTHER = "now", "other source"
Results = dict[str, list[Figures]]


def one_trainer(log: Path, batch: int, precision: str) -> Sections:
    """The job of the comparison with one trainer of one worker, as often over the file as it takes."""
    found = sections(log, batch, precision)
    found["trainer"]["count"] = 1
    found["data"]["epochs"] = 1000
    return found


def measure(spy: Path, job: Sections, source: Path | None, seconds: float) -> Figures:
    """One run's figures. Raises JobEnded, and SystemExit where py-spy gives nothing."""
    variables = {} if source is None else {"PYTHONPATH": str(source)}
    with live_job(job, variables=variables) as live:
        live.sleep_until(live.wait_for_training() + WARM_SECONDS)
        (trainer,) = live.processes("trainer")
        return looked_at(spy, live, trainer, seconds)


def looked_at(spy: Path, live: LiveJob, trainer: int, seconds: float) -> Figures:
    """The figures of so many seconds of the trainer."""
    batches, began, before = live.trained_batches(), time.monotonic(), cpu_seconds(trainer)
    held = holders(spy, trainer, seconds)
    steps = live.trained_batches() - batches
    wall, after = time.monotonic() - began, cpu_seconds(trainer)
    names = {thread: name for thread, (name, _) in held.items()}
    figures: Figures = {"step ms": wall / steps * 1e3}
    for thread, (comm, cpu) in after.items():
        name = names.get(thread, comm)
        spent = (cpu - before.get(thread, (comm, 0.0))[1]) / steps * 1e3
        if spent < LEAST_MS and thread not in names:
            continue
        figures[f"CPU ms, {name}"] = figures.get(f"CPU ms, {name}", 0.0) + spent
    for name, share in held.values():
        figures[f"held ms, {name}"] = figures.get(f"held ms, {name}", 0.0) + share * wall / steps * 1e3
    figures["held ms"] = sum(share for _, share in held.values()) * wall / steps * 1e3
    worker = next(value for name, value in figures.items() if name.startswith("CPU ms, worker"))
    figures["workers at once, at most"] = worker / figures["held ms"]
    return figures


def cpu_seconds(process: int) -> dict[int, tuple[str, float]]:
    """Of each thread of a process the name that the kernel has for it, and its CPU seconds so far."""
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            name, ran = (task / "comm").read_text("utf-8").strip(), (task / "schedstat").read_text("utf-8")
        except FileNotFoundError:
            # The thread has ended since.
            continue
        found[int(task.name)] = (name, int(ran.split()[0]) / 1e9)
    return found


def check_source(source: Path) -> None:
    """Raises SystemExit where a job would not run the package in that folder."""
    where = "import shadowsync; print(shadowsync.__path__[0])"
    done = subprocess.run(
        [sys.executable, "-c", where], capture_output=True, text=True, check=False, cwd="/",
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    found = Path(done.stdout.strip() or "nothing")
    if not found.exists() or found.resolve() != (source / "shadowsync").resolve():
        raise SystemExit(
            f"--source {source}: no package `shadowsync` there (found: {found}) {done.stderr[-300:]}"
        )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--py-spy", default="py-spy", metavar="PATH", help="where it is, if not on the PATH")
    parser.add_argument("--source", type=Path, metavar="DIR", help="a folder with an older `shadowsync`")
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of looking, in each run")
    parser.add_argument("--examples", type=int, default=600_000, help="of the file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, default=Path("interpreter_lock.json"))
    given = parser.parse_args()
    if (spy := shutil.which(given.py_spy)) is None:
        parser.error(f"--py-spy {given.py_spy}: no such program; `pip install py-spy`, then give its path")
    given.spy = Path(spy)
    return given


def control(spy: Path) -> float:
    """What looks find here over what is true. Raises SystemExit where that is too far from 1."""
    found = seen_over_true(spy, CONTROL_SECONDS)
    print(f"control: looks found {found:.2f} of a lock that was held for a known time", flush=True)
    if abs(found - 1) > CONTROL_WITHIN:
        raise SystemExit("that is too far from 1 to measure by: try again on a quieter machine")
    return found


def main() -> None:
    """Measures, prints, and writes."""
    given = parse()
    sources: dict[str, Path | None] = {NOW: None}
    if given.source is not None:
        check_source(given.source)
        sources[OTHER] = given.source.absolute()
    log = write_peer_log(given.data / f"peer-{given.examples}.parquet", given.examples).absolute()
    settings: dict[str, Any] = {"seconds": given.seconds, "looks_per_second": LOOKS_PER_SECOND}
    settings["control"] = control(given.spy)
    runs = list(itertools.product(given.batches, given.precisions, sources))
    results: Results = {}
    for number in range(given.rounds):
        for batch, precision, source in runs if number % 2 == 0 else reversed(runs):
            name = f"{precision}, batch {batch:,}, {source}"
            job = one_trainer(log, batch, precision)
            try:
                figures = measure(given.spy, job, sources[source], given.seconds)
            except JobEnded as error:
                print(f"round {number + 1}/{given.rounds}  {name:36} failed: {error}", flush=True)
                continue
            results.setdefault(name, []).append(figures)
            shown = "  ".join(f"{key} {value:.3g}" for key, value in figures.items())
            print(f"round {number + 1}/{given.rounds}  {name:36} {shown}", flush=True)
            save(given.out, (__doc__ or "").splitlines()[0], {"settings": settings, "runs": results})
    print(table(results))


if __name__ == "__main__":
    main()
