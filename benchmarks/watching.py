"""What watching costs: a job with everything on that shows it, and with everything off, in alternation.

    python benchmarks/watching.py --rounds 10 --out docs/results/watching.json

On: the live table on a terminal, the page with one open event stream, TensorBoard's files, and metrics of
every node, scraped every five seconds. Off: `--quiet`, and nothing else. Those who look (the stream's reader,
the scraper) are threads of this process, and not counted. CPU seconds are those of every process of the job,
the supervisor and the coordinator among them, from the first trained batch to the last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_meter import follow, per_million
from shadowsync.benchmarks.job_runs import job_text, on_log
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.report.write import read_report

SCRAPE_SECONDS = 5.0
NODES = 8


def free_ports(count: int) -> int:
    """The first of so many in a row that nobody has."""
    for first in range(22_000, 32_000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise RuntimeError("no free ports")


class Watchers:
    """Those who look, on threads of this process, until closed."""

    def __init__(self, page_port: int, metrics_port: int) -> None:
        self._end = threading.Event()
        self.events = self.scrapes = 0
        work = (lambda: self._stream(page_port), lambda: self._scrape(metrics_port))
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends them."""
        self._end.set()
        for thread in self._threads:
            thread.join(10.0)

    def _stream(self, port: int) -> None:
        while not self._end.wait(0.5):
            with (
                contextlib.suppress(OSError, urllib.error.URLError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=5.0) as answer,
            ):
                for line in answer:
                    self.events += line.startswith(b"event: ")

    def _scrape(self, first: int) -> None:
        while not self._end.wait(SCRAPE_SECONDS):
            for port in range(first, first + NODES):
                with (
                    contextlib.suppress(OSError, urllib.error.URLError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as answer,
                ):
                    self.scrapes += len(answer.read()) > 0


def measure(log: Path, given: argparse.Namespace, *, on: bool) -> Figures:
    """One run."""
    sections: dict[str, dict[str, Any]] = {
        **on_log(log, 1),
        "trainer": {"count": 2},
        "embedding": {"nodes": 2},
    }
    del sections["data"]["eval_path"]
    sections["data"]["epochs"] = given.epochs
    page = free_ports(NODES + 1)
    metrics = page + 1
    if on:
        sections["watch"] = {"web": str(page), "tensorboard": True, "metrics_port": metrics}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        sections["run"]["directory"] = name
        (folder / "job.toml").write_text(job_text(sections), encoding="utf-8")
        command = [sys.executable, "-m", "shadowsync.cli", "run", str(folder / "job.toml")]
        ours, theirs = pty.openpty()
        stack.callback(os.close, ours)
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "50"}
        process = subprocess.Popen(
            command if on else [*command, "--quiet"],
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment,
        )  # fmt: skip
        os.close(theirs)
        said: list[bytes] = []
        threading.Thread(target=_drain, args=(ours, said), daemon=True).start()
        watchers = Watchers(page, metrics) if on else None
        samples = follow(process, folder)
        if watchers is not None:
            watchers.close()
        if process.returncode or len(samples) < 2:
            raise RuntimeError(f"the job ended with {process.returncode}: {b''.join(said).decode()}")
        if watchers is not None and not (watchers.events and watchers.scrapes):
            raise RuntimeError("nobody watched")
        report = read_report(folder / "latest" / "report.json")
        return per_million(samples) | {"examples_per_second": report.throughput.examples_per_second or 0.0}


def _drain(terminal: int, said: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while text := os.read(terminal, 1 << 16):
            said[:] = [*said[-3:], text]


def main() -> None:
    """Runs it all and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-log-") as folder:
        generate_log(Path(folder), examples=given.examples, eval_examples=0, seed=1, data_format="parquet")
        log = Path(folder)
        ways = {
            "off": lambda: measure(log, given, on=False),
            "on": lambda: measure(log, given, on=True),
        }
        results = alternate(ways, given.rounds)
    print(table(results))
    ratios = {}
    for key in ("all", "coordinator", "run", "trainer", "examples_per_second"):
        ratios[key] = ratio([row[key] for row in results["on"]], [row[key] for row in results["off"]])
        print(show_ratio(f"{key}, on over off", ratios[key]))
    if given.out is not None:
        save(given.out, "what watching costs", json.loads(json.dumps({"runs": results, "ratios": ratios})))


if __name__ == "__main__":
    main()
