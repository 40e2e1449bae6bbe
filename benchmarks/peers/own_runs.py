"""One whole job of ours on the data of the comparison, measured from outside."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from shadowsync.benchmarks.job_runs import job_text, query_ledger
from shadowsync.benchmarks.pairs import Figures
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.write import read_report

END_SECONDS = 0.5
SAMPLE_SECONDS = 0.25
Samples = list[tuple[int, dict[str, float]]]


class JobFailed(RuntimeError):
    """The job did not finish, or was too short to measure.

    The message says which.
    """


def sections(log: Path, batch: int, precision: str) -> dict[str, dict[str, Any]]:
    """The job of the comparison.

    2 trainers of one worker each, 1 reader, 1 embedding node, 1 sync node; SGD; the model of the comparison.
    `log` is a Parquet file, or a folder of `shadowsync prepare`.
    """
    prepared = {"prepared": str(log)}
    return {
        "run": {"node_timeout_seconds": 60.0, "start_timeout_seconds": 180.0},
        "data": prepared if log.is_dir() else {"format": "parquet", "path": str(log)},
        "model": {
            "name": "dlrm",
            "embedding_dim": 16,
            "table_rows": 100_000,
            "bottom": [512, 256, 64],
            "top": [512, 256],
        },
        "trainer": {
            "count": 2,
            "workers": 1,
            "batch": batch,
            "optimizer": "sgd",
            "lr": 0.01,
            "precision": precision,
        },
        "embedding": {"nodes": 1, "optimizer": "sgd", "lr": 0.01},
        "sync": {"algorithm": "easgd", "mode": "shadow", "nodes": 1},
    }


def run_own(log: Path, batch: int, precision: str, warm_seconds: float) -> Figures:
    """Run the job to its end; return its figures.

    `examples_per_second` is from the first to the last trained batch, `steady_examples_per_second` without
    the first `warm_seconds` and the last half second. CPU seconds are of every process of the job, supervisor
    and coordinator included, in all and by role. Raises JobFailed.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        job = sections(log, batch, precision)
        job["run"]["directory"] = name
        (folder / "job.toml").write_text(job_text(job), encoding="utf-8")
        command = [sys.executable, "-m", "shadowsync.cli", "run", str(folder / "job.toml"), "--quiet"]
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            samples = follow(process, folder)
        if process.returncode:
            text = (folder / "said").read_text("utf-8", "replace")[-1500:]
            raise JobFailed(f"the job ended with {process.returncode}: {text}")
        return figures(read_report(folder / "latest" / "report.json"), samples, warm_seconds)


def prepare(log: Path, folder: Path) -> Path:
    """Parse a log once for all runs, as `shadowsync prepare` does.

    What is there already is left alone.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        job = Path(name) / "job.toml"
        job.write_text(job_text(sections(log, 512, "float32")), encoding="utf-8")
        own = [sys.executable, "-m", "shadowsync.cli"]
        command = [*own, "prepare", str(job), "--out", str(folder), "--quiet"]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return folder


def figures(report: Report, samples: Samples, warm_seconds: float) -> Figures:
    """The figures of a finished job, from its report and its samples.

    Raises JobFailed if the job was too short.
    """
    if len(samples) < 2:
        raise JobFailed("the job was over before it could be looked at twice: more examples")
    used = per_million(samples)
    return {
        "examples_per_second": report.throughput.examples_per_second or 0.0,
        "steady_examples_per_second": steady(report.curves.throughput, warm_seconds),
        "cpu_seconds_per_million": used["all"],
        **{f"cpu_{role}": value for role, value in used.items() if role != "all"},
        "sync_gap": report.sync.gap_mean or 0.0,
        "embedding_staleness": report.staleness.embedding_mean or 0.0,
        "bfloat16_trainers": float(list(report.precision.values()).count("bfloat16")),
    }


def steady(curves: Mapping[str, Sequence[tuple[float, float]]], warm_seconds: float) -> float:
    """Examples/s of all trainers in the steady part of a job.

    The steady part lasts from `warm_seconds` after the first batch to half a second before the end. `curves`
    has, for each trainer, pairs of the end of a half second and the examples/s in it. Raises JobFailed if the
    job was too short.
    """
    total: dict[float, float] = {}
    for points in curves.values():
        for end, rate in points:
            total[end] = total.get(end, 0.0) + rate
    busy = [end for end, rate in sorted(total.items()) if rate > 0]
    inside = [
        rate for end, rate in total.items() if busy and busy[0] + warm_seconds < end <= busy[-1] - END_SECONDS
    ]
    if not inside:
        raise JobFailed(f"the job trained for less than {warm_seconds + END_SECONDS} seconds: more examples")
    return sum(inside) / len(inside)


def trained(folder: Path) -> int:
    """Examples trained in the latest run in `folder`; 0 without a ledger."""
    return int(query_ledger(folder / "latest" / "ledger.sqlite", "SELECT sum(examples) FROM batches") or 0)


def cpu_by_role(process: psutil.Process) -> dict[str, float]:
    """CPU seconds so far of a job's processes, by role.

    The processes are the supervisor (`run`) and its descendants.
    """
    found: dict[str, float] = {}
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            words, times = one.cmdline(), one.cpu_times()
            role = words[3] if words[1:3] == ["-m", "shadowsync.cli"] else "other"
            found[role] = found.get(role, 0.0) + times.user + times.system
    return found


def follow(process: subprocess.Popen[bytes], folder: Path) -> Samples:
    """Sample a job until its process ends.

    A sample is the examples trained and the CPU seconds by role.
    """
    root = psutil.Process(process.pid)
    samples: Samples = []
    while process.poll() is None:
        examples = trained(folder)
        if examples and (not samples or examples > samples[-1][0]):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                samples.append((examples, cpu_by_role(root)))
        time.sleep(SAMPLE_SECONDS)
    return samples


def per_million(samples: Samples) -> Figures:
    """CPU seconds per million examples from first to last sample, by role and `all`."""
    (first, before), (last, after) = samples[0], samples[-1]
    scale = 1e6 / (last - first)
    figures = {role: (seconds - before.get(role, 0.0)) * scale for role, seconds in after.items()}
    return {"all": sum(figures.values())} | figures
