"""A job whose page and metrics strangers attack: `python -m shadowsync.tests.fuzz.doors --out FILE`.

The deterministic job runs twice with a page and metrics on loopback, without a token: undisturbed, then with
idle connections to each of these ports, which are opened again when they are closed, and with requests whose
body of 1 MB unpacks to 1 GiB. It fails unless both jobs end well, the ledger adds up, both models are equal
bit by bit, and no node grew by more than GROWTH_MEGABYTES while it was attacked. It also says how late the
control loop of each process was at most: a callback that takes it for long makes it as late.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shadowsync.lab.chaos.ledger_check import problems_of
from shadowsync.nodes.runtime.process import CLI, python
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.tests.fuzz.flood import EXAMPLES, Watched, run_of
from shadowsync.tests.support.jobs.deterministic import deterministic, digests, was_trained
from shadowsync.tests.support.jobs.processes import free_ports
from shadowsync.tests.support.jobs.runs import small_job, write_job

NODES = 5
UNPACKED_BYTES = 1 << 30
GROWTH_MEGABYTES = 50.0
CONNECT_SECONDS = 2.0
TURN_SECONDS = 0.1
# What each process of a job runs before anything else: every loop writes when it was late, and by how much.
LATE_LOOPS = """
import os, time
from shadowsync.nodes.runtime.main_loop import PauseAwareLoop

def tick(self):
    due = getattr(self, "due", None)
    now = time.monotonic()
    if due is not None and now - due > 0.005:
        with open(os.path.join({folder!r}, str(os.getpid())), "a") as file:
            file.write(f"{{now}} {{now - due}}\\n")
    self.due = now + 0.002
    self.call_later(0.002, self._tick)

PauseAwareLoop._tick = tick
"""


def bomb() -> bytes:
    """A request of 1 MB whose body unpacks to 1 GiB."""
    packer = zlib.compressobj(wbits=31)
    part = bytes(1 << 24)
    body = b"".join(packer.compress(part) for _ in range(UNPACKED_BYTES >> 24)) + packer.flush()
    head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Strangers:
    """Who attacks the ports from a thread, until closed.

    Attributes:
        opened: idle connections so far.
        sent: requests with a body so far.
    """

    def __init__(self, ports: list[int], connections: int, bombs: int, request: bytes) -> None:
        self.opened = self.sent = 0
        self._ports, self._most, self._bombs = ports, connections, bombs
        self._request = request
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._idle, self._send)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the attack."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _idle(self) -> None:
        with selectors.DefaultSelector() as selector:
            while not self._ended.is_set():
                for at in range(self._most - len(selector.get_map())):
                    if self._ended.is_set():
                        break
                    if (connection := self._connect(self._ports[at % len(self._ports)])) is not None:
                        selector.register(connection, selectors.EVENT_READ)
                        self.opened += 1
                for key, _ in selector.select(TURN_SECONDS):
                    # It was shut down.
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                self._ended.wait(TURN_SECONDS)
            for key in [*selector.get_map().values()]:
                key.fileobj.close()  # type: ignore[union-attr]

    def _send(self) -> None:
        while self.sent < self._bombs and not self._ended.wait(TURN_SECONDS):
            connection = self._connect(self._ports[self.sent % len(self._ports)])
            if connection is None:
                continue
            self.sent += 1
            with connection:
                try:
                    connection.sendall(self._request)
                    connection.recv(1 << 16)
                except OSError:
                    # It was shut down before its end.
                    continue

    def _connect(self, port: int) -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS)
        except OSError:
            # The queue of the port is full, or the job has ended.
            self._ended.wait(TURN_SECONDS)
            return None


def run(job: Path, attack: tuple[int, int] | None, ports: list[int]) -> dict[str, Any]:
    """Run a job; return its exit code, its nodes' memory, how late loops were, and what strangers did."""
    # Takes seconds, and the job is not to go on meanwhile.
    request = b"" if attack is None else bomb()
    with ExitStack() as stack:
        lags = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (lags / "sitecustomize.py").write_text(LATE_LOOPS.format(folder=str(lags)), encoding="utf-8")
        command = python(CLI, "run", str(job), "--quiet")
        environment = os.environ | {"PYTHONPATH": str(lags)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
        watched = Watched(stack.enter_context(process), run_of(job))
        while watched.runs_on() and len(watched.endpoints()) < len(ports):
            pass
        # What they grow by is counted from then on.
        while not watched.is_warm and watched.runs_on():
            watched.record_memory()
        began, cpu = time.monotonic(), time.process_time()
        strangers = None if attack is None else Strangers(ports, *attack, request)
        try:
            watched.record_memory_until_end()
        finally:
            if strangers is not None:
                strangers.close()
        counts = {} if strangers is None else {"connections": strangers.opened, "bombs": strangers.sent}
        late = lateness(lags, watched, began)
        return {
            "exit_code": process.returncode,
            "memory_megabytes": memory(watched),
            "late_milliseconds": late,
            # Of this process, whose threads are the strangers: they share the cores with the job.
            "strangers_cores": round((time.process_time() - cpu) / (time.monotonic() - began), 2),
            **counts,
        }


def lateness(lags: Path, watched: Watched, since: float) -> dict[str, list[float]]:
    """Return the three longest delays of each node's loop since a time, in ms."""
    found = {}
    for name in watched.bytes:
        path = lags / name.split()[-1]
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        late = [float(line.split()[1]) * 1e3 for line in lines if float(line.split()[0]) > since]
        found[name] = [round(one, 1) for one in sorted(late, reverse=True)[:3]]
    return found


def memory(watched: Watched) -> dict[str, float]:
    """Of each node the most resident megabytes beyond those after its start."""
    return {name: values["peak"] - values["warm"] for name, values in watched.growth().items()}


def doors(folder: Path, epochs: int, connections: int, bombs: int) -> dict[str, Any]:
    """Run both jobs in a folder; return what came out, with "problems" if it should not have."""
    log = folder / "log"
    log.mkdir()
    generate_log(log, examples=EXAMPLES, eval_examples=1000, seed=1, data_format="parquet", files=2)
    results, runs = {}, []
    for name, attack in (("calm", None), ("attacked", (connections, bombs))):
        first = free_ports(NODES + 1)
        ports = [*range(first, first + NODES + 1)]
        changes: dict[str, dict[str, Any]] = {
            "sync": {"algorithm": "easgd", "mode": "fixed", "every": 2},
            "watch": {"metrics_port": first, "web": f"127.0.0.1:{ports[-1]}"},
        }
        settings = {**deterministic(changes, 5, name), "data": {"epochs": epochs}}
        job = write_job(folder / f"{name}.toml", small_job(log, folder / "runs"), settings)
        results[name] = run(job, attack, ports)
        runs.append(run_of(job))
        throughput = runs[-1].report.throughput
        results[name]["examples_per_second"] = throughput.examples_per_second
        results[name]["cpu_seconds_per_million"] = throughput.cpu_seconds_per_million
    calm, attacked = results["calm"], results["attacked"]
    growth = {
        name: round(grown, 1)
        for name, grown in attacked["memory_megabytes"].items()
        if grown > GROWTH_MEGABYTES
    }
    problems = problems_of(runs[1].folder, epochs * EXAMPLES)
    problems += [f"exit codes {calm['exit_code']}, {attacked['exit_code']}"] * (
        (calm["exit_code"], attacked["exit_code"]) != (0, 0)
    )
    problems += ["the models differ"] * (digests(runs[0]) != digests(runs[1]) or not was_trained(runs[1]))
    problems += [f"nodes grew, in MB: {growth}"] * bool(growth)
    return {**results, "problems": problems}


def main() -> None:
    """Run the job twice, compare, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--connections", type=int, default=1500, help="idle ones at once, to all ports")
    parser.add_argument("--bombs", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = doors(Path(scratch), given.epochs, given.connections, given.bombs)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
