"""Attached loops beside torchft, hivemind, torch's averager and DDP: same model, batches and data.

    python benchmarks/peers/attached_peers.py --out benchmarks/peers/results/attached_peers.json
    python benchmarks/peers/attached_peers.py --table benchmarks/peers/results/attached_peers.json

Each loop is a process with an address of its own, behind a network that delays every packet (see
`delayed_network.py`: Linux, root). A hub or lighthouse has an address of its own as well. A loop takes
`--steps` batches of its part of the data, or as many as it can in `--seconds`. In each step it waits for
`--step-ms`, as for an accelerator, so that the processes do not measure each other's share of the cores.
Each round has another teacher, other examples and first values, which all systems share.
Losses on held-out examples, computed after the run, are of its replica (`curve`) and of the mean of all
replicas (`models`), which is what `AttachedLoop.model` gives. Systems that are not installed are
left out; they need, beside this package,

    pip install --no-deps torchft==0.2.0 hivemind==1.1.12
    pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http PyYAML scipy prefetch_generator \\
        sortedcontainers uvloop grpcio-tools configargparse py-multihash varint base58 netaddr py-cid

Started again with the same --out, the script goes on where it stopped, and repeats what failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from shadowsync.benchmarks.pairs import save
from shadowsync.benchmarks.peers.delayed_network import DelayedNetwork
from shadowsync.benchmarks.peers.loop_systems import SERVER_PORT, SYSTEMS
from shadowsync.benchmarks.peers.peers import Row, read_rows
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.pipeline.wire.keys.job_key import JobKey

SETTINGS: Final = ("steps", "step_ms", "seconds")
# Of the paired differences.
AT: Final = (100, 200, 300)
START_SECONDS: Final = 90.0
# A run's end, and the computation of its losses.
END_SECONDS: Final = 60.0
SERVER_RANK: Final = -1
BATCH: Final = 64


class RunFailed(RuntimeError):
    """A run gave no figures; the message says why."""


class Host:
    """A process with a network namespace, which forks one for each run."""

    def __init__(self, rank: int, errors: Path) -> None:
        self._answers: queue.Queue[Row] = queue.Queue()
        script = str(Path(__file__).with_name("loop_host.py"))
        command = ["unshare", "--net", "--uts", sys.executable, script, str(rank)]
        with errors.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.expect("up", START_SECONDS)
        self.address, self.interface = "", ""

    @property
    def pid(self) -> int:
        """The host's process."""
        return self._process.pid

    def order(self, what: str, **rest: Any) -> None:
        """Send an order to the host, or to the process of its run."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps({"what": what, **rest}) + "\n").encode())
        self._process.stdin.flush()

    def expect(self, key: str, seconds: float) -> Row:
        """Return the next answer, which must have this key; raises RunFailed."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise RunFailed(f"no answer ({key}) in {seconds:.0f} s") from None
        if key not in answer:
            raise RunFailed(str(answer.get("failed", answer)))
        return answer

    def end_run(self) -> None:
        """End the process of a run, and what is left of its answers."""
        self.order("end")
        deadline = time.monotonic() + START_SECONDS
        while "over" not in self._answers.get(timeout=max(0.1, deadline - time.monotonic())):
            pass

    def close(self) -> None:
        """End the host."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))


@contextlib.contextmanager
def hosts_of(loops: int, network: DelayedNetwork, folder: Path) -> Iterator[tuple[list[Host], Host]]:
    """Start hosts for loops, and one for what they meet at."""
    made: list[Host] = []
    try:
        for rank in (*range(loops), SERVER_RANK):
            host = Host(rank, folder / f"host{rank}.log")
            made.append(host)
            host.address, host.interface = network.add(host.pid, len(made))
        yield made[:-1], made[-1]
    finally:
        for host in made:
            host.close()


def run(system: str, seed: int, loops: Sequence[Host], server: Host, given: argparse.Namespace) -> Row:
    """Do one run; return what each loop did. Raises RunFailed."""
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    JobKey.generate().write(folder / "job.key")
    order = {
        "system": system,
        "seed": seed,
        "addresses": [host.address for host in loops],
        "server": server.address,
        "bind": f"{server.address}:{SERVER_PORT}",
        "folder": str(folder),
        "steps": given.steps,
        "step_seconds": given.step_ms / 1000,
        "seconds": given.seconds,
    }
    started: list[Host] = []
    try:
        server.order("run", **order)
        started.append(server)
        server.expect("ready", START_SECONDS)
        for host in loops:
            host.order("run", **order, interface=host.interface)
            started.append(host)
        for host in loops:
            host.expect("ready", START_SECONDS)
        for host in loops:
            host.order("go")
        for host in loops:
            host.expect("finished", given.seconds + END_SECONDS)
        results = []
        for host in loops:
            host.order("result")
            results.append(host.expect("losses", END_SECONDS))
        loops[0].order("model")
        models = loops[0].expect("models", END_SECONDS)["models"]
        return figures(results) | {"models": [[round(step), round(loss, 4)] for step, _, loss in models]}
    finally:
        for host in started:
            host.end_run()
        shutil.rmtree(folder, ignore_errors=True)


def figures(results: Sequence[Row]) -> Row:
    """Return the figures of a run from those of its loops.

    `curve` has steps, seconds and loss, each a mean over the loops, where all were.
    """
    least = min(len(result["losses"]) for result in results)
    curve = [
        [statistics.fmean(result["losses"][at][part] for result in results) for part in range(3)]
        for at in range(least)
    ]
    return {
        "examples_per_second": sum(BATCH * one["steps"] / one["seconds"] for one in results if one["steps"]),
        "steps": statistics.fmean(one["steps"] for one in results),
        "rounds": [one["rounds"] for one in results],
        "curve": [[round(step), round(seconds, 3), round(found, 4)] for step, seconds, found in curve],
    }


def installed() -> list[str]:
    """Return the systems whose packages are there."""
    missing = [name for name in ("torchft", "hivemind") if find_spec(name) is None]
    return [system for system in SYSTEMS if system.partition("_")[0] not in missing]


def measure(given: argparse.Namespace) -> None:
    """Measure every run that the file does not have yet; save after each."""
    settings = {name: getattr(given, name) for name in SETTINGS} | {"examples": "of each round"}
    rows = [row for row in read_rows(given.out, settings) if "failed" not in row]
    done = {(row["system"], row["loops"], row["delay_ms"], row["round"]) for row in rows}
    network = DelayedNetwork()
    with (
        tempfile.TemporaryDirectory(prefix="peers-") as folder,
        hosts_of(max(given.loops), network, Path(folder)) as (hosts, server),
    ):
        for number, loops, delay, system in order_of(given):
            if (system, loops, delay, number) in done:
                continue
            network.delay_seconds = delay / 1000
            busy = psutil.cpu_percent(interval=0.3) / 100 * (psutil.cpu_count() or 1)
            row: Row = {"system": system, "loops": loops, "delay_ms": delay, "round": number}
            row["others_cores"] = round(busy, 2)
            try:
                row |= run(system, number, hosts[:loops], server, given)
            except RunFailed as error:
                row["failed"] = str(error)
            rows.append(row)
            shown = {key: value for key, value in row.items() if key != "curve"}
            print(json.dumps(shown), flush=True)
            save(given.out, "attached loops and peers, in alternation", {"settings": settings, "rows": rows})
            if given.logs:
                shutil.copytree(folder, given.logs, dirs_exist_ok=True)
    network.close()


def order_of(given: argparse.Namespace) -> Iterator[tuple[int, int, float, str]]:
    """Yield round, loops, delay and system of each run; odd rounds backwards."""
    wanted = given.systems or installed()
    for number in range(given.rounds):
        turn = [(loops, delay, one) for loops in given.loops for delay in given.delays for one in wanted]
        for loops, delay, system in turn if number % 2 == 0 else reversed(turn):
            yield number, loops, delay, system


def tables(rows: Sequence[Row], at: int, loss: float) -> str:
    """Return a table for each number of loops, of medians over rounds."""
    parts = []
    for loops in sorted({row["loops"] for row in rows}):
        mine = [row for row in rows if row["loops"] == loops]
        delays = sorted({row["delay_ms"] for row in mine})
        lines = []
        for system in dict.fromkeys(row["system"] for row in mine):
            of_system = [row for row in mine if row["system"] == system]
            cells = [
                cell([row for row in of_system if row["delay_ms"] == delay], at, loss) for delay in delays
            ]
            lines.append([system, *cells])
        head = [f"{loops} loops: examples/s; loss; s to the loss", *(f"{delay:g} ms" for delay in delays)]
        parts.append("\n".join(markdown_table(head, lines)))
    return "\n\n".join(parts)


def differences(rows: Sequence[Row], against: str) -> str:
    """Return losses less those of another system, paired by round.

    Means and 95% intervals: of the loops' own replicas, and of the mean of the replicas less the other's own
    ones. Below 0 is better.
    """
    found = [row for row in rows if "failed" not in row]
    key = ("loops", "delay_ms", "round")
    others = {tuple(row[one] for one in key): row for row in found if row["system"] == against}
    lines = []
    for system in dict.fromkeys(row["system"] for row in found):
        paired = [
            (row, others[place])
            for row in found
            if row["system"] == system and (place := tuple(row[one] for one in key)) in others
        ]
        cells = []
        for losses in (own_losses, model_losses):
            for at in AT:
                pairs = [(losses(row).get(at), own_losses(other).get(at)) for row, other in paired]
                gained = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
                cells.append(mean_interval(gained))
        lines.append([system, *cells])
    head = [f"{what} after {at}" for what in ("replica", "model") for at in AT]
    return "\n".join(markdown_table([f"loss less {against}'s", *head], lines))


def own_losses(row: Row) -> dict[int, float]:
    """Return the loops' losses by steps."""
    return {step: loss for step, _, loss in row["curve"]}


def model_losses(row: Row) -> dict[int, float]:
    """Return the losses of the mean of all replicas by steps."""
    return dict(row.get("models", ()))


def mean_interval(values: Sequence[float]) -> str:
    """Return a mean with its 95% bootstrap interval, and how many values there are."""
    if not values:
        return "-"
    drawn = np.random.default_rng(0).choice(np.array(values), (10_000, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{statistics.fmean(values):+.3f} ({low:+.3f} to {high:+.3f}), {len(values)}"


def cell(rows: Sequence[Row], at: int, loss: float) -> str:
    """Return examples/s, the loss after `at` steps, and the seconds to `loss`."""
    found = [row for row in rows if "failed" not in row]
    if not found:
        return "failed" if rows else ""
    speed = statistics.median(row["examples_per_second"] for row in found)
    losses = [value for row in found for step, _, value in row["curve"] if step == at]
    seconds = [
        min(seconds for _, seconds, value in row["curve"] if value <= loss)
        for row in found
        if any(value <= loss for _, _, value in row["curve"])
    ]
    words = [f"{speed:,.0f}"]
    for values, form in ((losses, "{:.3f}"), (seconds, "{:.1f}")):
        words.append(form.format(statistics.median(values)) if len(values) == len(found) else "-")
    return "; ".join(words)


def main() -> None:
    """Measure, or print tables of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--against", default="torchft_local_sgd", help="the table has losses less its")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", type=int, nargs="+", default=[2, 4])
    parser.add_argument(
        "--delays", type=float, nargs="+", default=[0.0, 20.0, 50.0, 200.0], help="ms, one way"
    )
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=30.0, help="beside the host's own work")
    parser.add_argument("--seconds", type=float, default=20.0, help="the longest run")
    parser.add_argument("--loss", type=float, default=1.36, help="the table has the time to it")
    parser.add_argument(
        "--at", type=int, default=300, help="steps of each loop after which the table has the loss"
    )
    parser.add_argument("--logs", type=Path, help="a folder for what the hosts wrote")
    given = parser.parse_args()
    if given.table is not None:
        rows = read_rows(given.table)
        print(tables(rows, given.at, given.loss))
        print(f"\n{differences(rows, given.against)}")
    elif given.out is None:
        parser.error("give --out or --table")
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        measure(given)


if __name__ == "__main__":
    main()
