"""Latency and rate of `shadowsync serve` under load.

    python benchmarks/speed/serving.py RUN DATA.parquet --out docs/results/serving.json

`hey` (https://github.com/rakyll/hey, a package of Debian) sends requests of 50 candidates with rows of DATA
over some connections: as many as the server answers, or at a given rate. The server has core 0 and `hey` core
1, or both have both. Every figure is the median of the rounds. The server's CPU for a request counts its user
and system time; it hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
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
from shadowsync.pipeline.report.write import describe_hardware, versions

CANDIDATES = 50
# Columns of the user and the page in the requests with a context: half of them.
SHARED = 0.5
SECONDS = 8


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
def served(run: str, cores: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server of the run on these cores; yields its address and its process."""
    command = ["taskset", "-c", cores, sys.executable, "-m", "shadowsync", "serve", run, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(m for line in process.stdout if (m := re.search(r"(http://\S+)/score", line)))
            yield found[1], psutil.Process(process.pid)
        finally:
            process.terminate()


def load(
    url: str, server: psutil.Process, body: Path, connections: int, rate: int | None, cores: str
) -> dict[str, float]:
    """One run of `hey`: requests/s, and the latency and the server's CPU in milliseconds."""
    limit = [] if rate is None else ["-q", str(rate / connections)]
    command = ["taskset", "-c", cores, "hey", "-z", f"{SECONDS}s", "-c", str(connections), *limit]
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
        found[f"p{share}_ms"] = 1e3 * float(re.search(rf"{share}% in ([\d.]+) secs", text)[1])  # type: ignore[index]
    return found


def main() -> None:
    """Measure every case, in rounds, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="*", default=[200, 400])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = bodies(given.data, Path(folder))
        for _ in range(given.rounds):
            for server_cores, hey_cores in (("0", "1"), ("0,1", "0,1")):
                with served(given.run, server_cores) as (url, server):
                    count = len(server_cores.split(","))
                    cases = [(form, connections, None) for form in files for connections in (1, 16)]
                    cases += [("context and columns", 16, rate) for rate in given.rates]
                    load(url, server, files["rows"], 1, None, hey_cores)
                    for form, connections, rate in cases:
                        key = f"{count} core{'s' * (count > 1)}; {form}; {connections} connections; " + (
                            "as many as it answers" if rate is None else f"{rate} requests/s"
                        )
                        found = load(url, server, files[form], connections, rate, hey_cores)
                        results.setdefault(key, []).append(found)
                        print(f"{key}: {found}", flush=True)
        sizes = {form: file.stat().st_size for form, file in files.items()}
    medians = {
        key: {name: median(one[name] for one in found) for name in found[0]} for key, found in results.items()
    }
    record = {
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        "candidates": CANDIDATES,
        "body_bytes": sizes,
        "rounds": given.rounds,
        "medians": medians,
    }
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
