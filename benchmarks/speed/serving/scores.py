"""Latency and rate of `shadowsync serve` under load.

    python benchmarks/speed/serving/scores.py RUN DATA.parquet --out benchmarks/speed/results/serving.json

`hey` (https://github.com/rakyll/hey, a package of Debian) sends requests of 50 candidates with rows of DATA
over some connections: as many as the server answers, or at a given rate. The server has core 0 and `hey` core
1, or both have both. In each round every server is measured in turn: one of each precision and, with
`--before`, one of another version of the package. Every figure is the median of the rounds. The server's CPU
for a request counts its user and system time; it hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow.parquet as pq
from shadowsync.pipeline.report.run_folders.write import describe_hardware, versions

CANDIDATES = 50
# Columns of the user and the page in the requests with a context: half of them.
SHARED = 0.5
WARM_SECONDS = 1.0
BEFORE = "before"


def bodies(data: Path, folder: Path) -> dict[str, Path]:
    """Write one request of each form; return the files by name."""
    table = pq.read_table(data).slice(0, CANDIDATES).drop_columns("label")
    columns = table.to_pydict()
    names = list(columns)
    shared = names[: int(len(names) * SHARED)]
    forms: dict[str, dict[str, Any]] = {
        "rows": {"rows": table.to_pylist()},
        "columns": {"columns": columns},
        "context and columns": {
            "context": {name: columns[name][0] for name in shared},
            "columns": {name: columns[name] for name in names if name not in shared},
        },
    }
    files = {}
    for name, body in forms.items():
        files[name] = folder / f"{name.replace(' ', '-')}.json"
        files[name].write_text(json.dumps(body))
    return files


@contextmanager
def served(run: str, cores: str, server: str, before: Path | None) -> Iterator[tuple[str, psutil.Process]]:
    """Serve the run on these cores, in a precision or by the package before.

    Yields its address and its process.
    """
    command = ["taskset", "-c", cores, sys.executable, "-m", "shadowsync", "serve", run, "--port", "0"]
    environment = dict(os.environ)
    if server == BEFORE:
        environment["PYTHONPATH"] = str(before)
    else:
        command += ["--precision", server]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tempfile.gettempdir()
    ) as process:
        try:
            assert process.stdout is not None
            found = next(m for line in process.stdout if (m := re.search(r"(http://\S+)/score", line)))
            yield found[1], psutil.Process(process.pid)
        finally:
            process.terminate()


def load(
    url: str,
    server: psutil.Process,
    body: Path,
    connections: int,
    rate: int | None,
    cores: str,
    seconds: float,
) -> dict[str, float]:
    """One run of `hey`: requests/s, and the latency and the server's CPU in milliseconds."""
    limit = [] if rate is None else ["-q", str(rate / connections)]
    command = ["taskset", "-c", cores, "hey", "-z", f"{seconds}s", "-c", str(connections), *limit]
    command += ["-m", "POST", "-T", "application/json", "-D", str(body), f"{url}/score"]
    before = server.cpu_times()
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = server.cpu_times()
    statuses = re.findall(r"\[(\d+)\]\s+(\d+) responses", text)
    if [status for status, _ in statuses] != ["200"]:
        raise SystemExit(f"not all requests were scored:\n{text}")
    found = {"requests_per_second": float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])}  # type: ignore[index]
    cpu = after.user + after.system - before.user - before.system
    found["server_cpu_ms"] = 1e3 * cpu / int(statuses[0][1])
    for share in (50, 99):
        # `hey` leaves out a percentile of too few requests.
        if percentile := re.search(rf"{share}%+ in ([\d.]+) secs", text):
            found[f"p{share}_ms"] = 1e3 * float(percentile[1])
    return found


def cases_of(files: dict[str, Path], cores: int, rates: list[int]) -> list[tuple[str, int, int | None]]:
    """Return form, connections and rate of each measurement."""
    if cores > 1:
        return [(form, 16, None) for form in files]
    cases: list[tuple[str, int, int | None]] = [(form, count, None) for form in files for count in (1, 16)]
    return cases + [("context and columns", 16, rate) for rate in rates]


def measured(
    given: argparse.Namespace, files: dict[str, Path]
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Return the figures of all rounds, by server and case."""
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    servers = [*([BEFORE] if given.before else []), *given.precision]
    for _ in range(given.rounds):
        for server_cores, hey_cores in (("0", "1"), ("0,1", "0,1")):
            count = len(server_cores.split(","))
            for name in servers:
                with served(given.run, server_cores, name, given.before) as (url, server):
                    load(url, server, files["rows"], 16, None, hey_cores, WARM_SECONDS)
                    for form, connections, rate in cases_of(files, count, given.rates):
                        key = f"{count} core{'s' * (count > 1)}; {form}; {connections} connections; " + (
                            "as many as it answers" if rate is None else f"{rate} requests/s"
                        )
                        found = load(url, server, files[form], connections, rate, hey_cores, given.seconds)
                        results.setdefault(name, {}).setdefault(key, []).append(found)
                        print(f"{name}; {key}: {found}", flush=True)
    return results


def main() -> None:
    """Measure every case, in rounds, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=os.path.abspath)
    parser.add_argument("data", type=Path)
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--before", type=Path, help="folder with another version of the package shadowsync")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="*", default=[200, 400])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = bodies(given.data, Path(folder))
        results = measured(given, files)
        sizes = {form: file.stat().st_size for form, file in files.items()}
    medians = {
        server: {
            key: {name: median(one[name] for one in found if name in one) for name in found[0]}
            for key, found in of_server.items()
        }
        for server, of_server in results.items()
    }
    record = {
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        "candidates": CANDIDATES,
        "body_bytes": sizes,
        "rounds": given.rounds,
        "seconds": given.seconds,
        "medians": medians,
    }
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
