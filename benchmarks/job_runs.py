"""Whole jobs for benchmarks, and their logs, ledgers and results."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import shadowsync
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.write import read_report

Sections = dict[str, dict[str, Any]]


def job_text(sections: dict[str, dict[str, Any]]) -> str:
    """Return a job file of these sections.

    Values are texts, numbers, booleans, and lists and tables of these.
    """
    lines = []
    for name, keys in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_toml(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def on_log(log: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Return the sections of a job over a generated log.

    The timeouts are long, since nodes start slowly on oversubscribed cores.
    """
    return {
        "run": {"seed": seed, "node_timeout_seconds": 60.0, "start_timeout_seconds": 180.0},
        "data": {
            "format": "parquet",
            "path": str(log / "train-*.parquet"),
            "eval_path": str(log / "eval-*.parquet"),
        },
    }


@contextmanager
def log_or_generated(given: Path | None, examples: int, eval_examples: int) -> Iterator[Path]:
    """Yield the folder of the given log, or of a new one.

    A new log has `examples` and `eval_examples` examples, and is deleted after the block.
    """
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-log-") as name:
        log = Path(name)
        generate_log(
            log, examples=examples, eval_examples=eval_examples, seed=1, data_format="parquet", files=2
        )
        yield log


def kept_runs(path: Path) -> dict[str, Any]:
    """Return what `keep_runs` wrote; empty if there is no file yet."""
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def keep_runs(path: Path, made: Mapping[str, Any]) -> None:
    """Write the runs so far, for a script that is started again."""
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def query_ledger(file: Path, question: str) -> Any:
    """Return the first value of a query of a run's `ledger.sqlite`.

    The job may still be running. Returns None if there is no row, or if the file cannot be queried yet.
    """
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as ledger:
            row = ledger.execute(question).fetchone()
    except sqlite3.OperationalError:
        return None
    return None if row is None else row[0]


def run_job_file(job: Path, overrides: Sequence[str]) -> Report:
    """Run a job file with settings changed, in a temporary folder; return its report."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        return shadowsync.run(load_job(str(job), (*overrides, f"run.directory={json.dumps(folder)}")))


def run_job(
    sections: dict[str, dict[str, Any]],
    expect: int = 0,
    command: Sequence[str] = ("run",),
    then: Callable[[Path], object] = lambda folder: None,  # noqa: ARG005
) -> Report:
    """Run a job in a temporary folder; return its report.

    `command` is the subcommand with its options. `then` is called with the run's folder, which is deleted
    afterwards. Raises RuntimeError if the exit code is not `expect`.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        whole = {**sections, "run": {**sections.get("run", {}), "directory": folder}}
        file = Path(folder) / "job.toml"
        file.write_text(job_text(whole), encoding="utf-8")
        whole_command = [sys.executable, "-m", "shadowsync.cli", *command, str(file), "--quiet"]
        done = subprocess.run(
            whole_command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode != expect:
            raise RuntimeError(f"the job ended with {done.returncode}: {done.stderr[-2000:]}")
        then(Path(folder) / "latest")
        return read_report(Path(folder) / "latest" / "report.json")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
