"""A job of processes under a flood of hostile messages: `python -m shadowsync.tests.fuzz.flood --out FILE`.

The deterministic job runs twice with a key over TCP: undisturbed, then with attackers of every socket that it
listens on: one has the key but no place in the job, another has no key, and a third one sends messages that
never end, with the key and without. It fails unless the job ends well, its ledger adds up, both models are
equal bit by bit, and all messages without an end were cut.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from shadowsync.lab.chaos.ledger_check import problems_of
from shadowsync.nodes.runtime.process import CLI, python, runs
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE
from shadowsync.tests.support.jobs.deterministic import deterministic, digests, was_trained
from shadowsync.tests.support.jobs.runs import RunFolder, small_job, write_job

LOOK_SECONDS = 0.5
# Growth counts from here on, however long it takes: before, a process has not used all that it needs.
WARM_BATCHES = 800
EXAMPLES = 20_000


class Watched:
    """The processes of a running job: their memory over time, by role.

    Attributes:
        is_warm: whether growth counts by now.
    """

    def __init__(self, process: subprocess.Popen[bytes], run: RunFolder) -> None:
        self._process, self._run = process, run
        self.is_warm = False
        self.bytes: dict[str, list[int]] = {}
        self.peaks: dict[str, int] = {}

    def nodes(self) -> Iterator[tuple[str, psutil.Process]]:
        """Each node's process, by role."""
        found: dict[int, tuple[str, psutil.Process, int]] = {}
        for child in psutil.Process(self._process.pid).children(recursive=True):
            try:
                line = child.cmdline()
                if runs(line, CLI):
                    found[child.pid] = line[line.index(CLI) + 1], child, child.ppid()
            except psutil.Error:
                continue
        # What a node starts has its command line until it runs a program of its own.
        yield from ((role, node) for role, node, parent in found.values() if parent not in found)

    def endpoints(self) -> list[str]:
        """Every address on which a node listens."""
        found = set()
        for _, node in self.nodes():
            found |= {one.laddr for one in node.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        return [f"tcp://{address.ip}:{address.port}" for address in sorted(found)]

    def runs_on(self) -> bool:
        """Wait a little; return whether the job has not ended by then."""
        try:
            self._process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            return True
        return False

    def record_memory_until_end(self) -> None:
        """Record the memory of each node from time to time, until the job ends."""
        while self.runs_on():
            self.record_memory()

    def record_memory(self) -> None:
        """Record the memory of each node."""
        self.is_warm = self.is_warm or self._run.batches() >= WARM_BATCHES
        for role, node in self.nodes():
            try:
                found = self.bytes.setdefault(f"{role} {node.pid}", [])
                if self.is_warm:
                    found.append(node.memory_info().rss)
                    self._note_peak(f"{role} {node.pid}", Path(f"/proc/{node.pid}"))
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue

    def _note_peak(self, name: str, process: Path) -> None:
        """Note the most resident bytes since the first call for this process, also between two looks."""
        if name not in self.peaks:
            # Sets VmHWM back to what is resident (proc_pid_clear_refs(5)).
            (process / "clear_refs").write_text("5", encoding="ascii")
        lines = (process / "status").read_text(encoding="ascii").splitlines()
        peak = next((line for line in lines if line.startswith("VmHWM:")), "VmHWM: 0")
        self.peaks[name] = max(self.peaks.get(name, 0), int(peak.split()[1]) * 1024)

    def growth(self) -> dict[str, dict[str, float]]:
        """Of each node the resident bytes after WARM_BATCHES, their maximum, and at the end, in MB.

        `peak` is the maximum since then as the kernel saw it, so also between two looks.
        """
        found = {}
        for name, warm in self.bytes.items():
            if warm:
                peak = self.peaks.get(name, 0)
                values = {"warm": warm[0], "most": max(warm), "last": warm[-1], "peak": peak}
                found[name] = {key: round(value / 1e6, 1) for key, value in values.items()}
        return found


def run_job(job: Path, key: Path, stack: ExitStack) -> tuple[subprocess.Popen[bytes], Watched]:
    """Start the job of a file, after which its run is named; return its process."""
    command = python(CLI, "run", str(job), "--key", str(key), "--quiet")
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL))
    return process, Watched(process, run_of(job))


def run_of(job: Path) -> RunFolder:
    """Return the run of a job's file."""
    return RunFolder(job.parent / "runs" / job.stem)


@contextmanager
def attackers(
    attacks: Mapping[str, int], key: Path, endpoints: list[str], seed: int
) -> Iterator[dict[str, Any]]:
    """Attack while the block lasts; the counts of each attacker are in the dictionary after it.

    `attacks` has the most that each module's attacker does.
    """
    counts: dict[str, Any] = {}
    running = []
    for module, most in attacks.items():
        command = [sys.executable, "-m", f"shadowsync.tests.fuzz.{module}", str(seed), str(most)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, KEY_VARIABLE: str(key)},
        )
        assert process.stdin is not None
        process.stdin.write("".join(f"{endpoint}\n" for endpoint in endpoints))
        process.stdin.flush()
        running.append((module, process))
    try:
        yield counts
    finally:
        for module, process in running:
            said, _ = process.communicate(timeout=120.0)
            lines = said.splitlines()[1:]
            counts[module] = [[int(number) for number in line.split()] for line in lines]


def attacked(
    job: Path, key: Path, seed: int, attacks: Mapping[str, int]
) -> tuple[int, Watched, dict[str, Any]]:
    """Run the job under attack; return its exit code, its memory and what was sent."""
    with ExitStack() as stack:
        process, watched = run_job(job, key, stack)
        while watched.runs_on() and len(watched.endpoints()) < 4:
            pass
        endpoints = watched.endpoints()
        with attackers(attacks, key, endpoints, seed) as counts:
            watched.record_memory_until_end()
        return process.returncode, watched, {"endpoints": endpoints, **counts}


def calm(job: Path, key: Path) -> tuple[int, Watched]:
    """Run the job undisturbed."""
    with ExitStack() as stack:
        process, watched = run_job(job, key, stack)
        watched.record_memory_until_end()
        return process.returncode, watched


def refused(folder: Path) -> int:
    """Connections that the job's nodes refused because of the key."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return sum(int(node.get("refused_connections", 0)) for node in report["nodes"])


def make_jobs(folder: Path, epochs: int) -> tuple[Path, Path]:
    """Write the files of the two jobs, which differ only in their names."""
    log = folder / "log"
    log.mkdir()
    generate_log(log, examples=EXAMPLES, eval_examples=1000, seed=1, data_format="parquet", files=2)
    changes: dict[str, dict[str, Any]] = {
        "sync": {"algorithm": "easgd", "mode": "fixed", "every": 2},
        "network": {"transport": "tcp"},
    }

    def make(name: str) -> Path:
        settings = {**deterministic(changes, 5, name), "data": {"epochs": epochs}}
        return write_job(folder / f"{name}.toml", small_job(log, folder / "runs"), settings)

    return make("calm"), make("attacked")


def main() -> None:
    """Run the job twice, compare, and write what was sent and how much memory it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--messages", type=int, default=sys.maxsize, help="most of each attacker")
    parser.add_argument(
        "--unfinished", type=int, default=20, help="endless messages of each kind to a socket"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        key = folder / "job.key"
        subprocess.run(python(CLI, "key", "new", str(key)), check=True, stdout=subprocess.DEVNULL)
        first, second = make_jobs(folder, given.epochs)
        code, before = calm(first, key)
        attacks = {"attack": given.messages, "keyless": given.messages, "unfinished": given.unfinished}
        attacked_code, during, sent = attacked(second, key, given.seed, attacks)
        one, other = run_of(first), run_of(second)
        result = {
            "exit_codes": [code, attacked_code],
            "problems": problems_of(other.folder, given.epochs * EXAMPLES),
            "equal": digests(one) == digests(other) and was_trained(other),
            "refused_connections": refused(other.folder),
            "sent": sent,
            "memory_calm_megabytes": before.growth(),
            "memory_attacked_megabytes": during.growth(),
        }
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    all_cut = all(2 * connections == cut > 0 for _, connections, cut in sent["unfinished"] or [(0, 1, 0)])
    if result["exit_codes"] != [0, 0] or result["problems"] or not (result["equal"] and all_cut):
        sys.exit(1)


if __name__ == "__main__":
    main()
