"""A host of `attached_peers.py`, which forks a process for each run.

    unshare --net --uts python benchmarks/peers/loop_host.py RANK

Orders come as lines of JSON on the standard input, and answers go to the standard output as such. The process
of a run reads on from where its host stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from shadowsync.attached import attach as _attach  # noqa: F401 - imported before a run is forked
from shadowsync.attached.hub import serve as _serve  # noqa: F401
from shadowsync.benchmarks.peers.loop_systems import HUBS, SYSTEMS, Place, rounds, serve_lighthouse
from shadowsync.commands.hub import hub
from torch import nn

FEATURES, HIDDEN, CLASSES, BATCH = 64, 256, 10, 64
SHARD, HELD_OUT = 2_048, 4_096
MARK: Final = 25
SERVER: Final = -1
PARTS: Final = 10_000
# Steps, seconds, and the replica as of then, float32 [numel].
Mark = tuple[int, float, torch.Tensor]


def network(seed: int) -> nn.Sequential:
    """Return the model of all runs with a seed, 85 thousand parameters."""
    torch.manual_seed(7 + seed)
    return nn.Sequential(
        *(nn.Linear(FEATURES, HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, CLASSES),
    )


def examples(seed: int, part: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features float32 [count, FEATURES] and labels int64 [count] that a teacher drew.

    Each seed has a teacher; each part of its examples is drawn apart.
    """
    of_teacher = torch.Generator().manual_seed(1 + seed)
    first = torch.randn(FEATURES, 32, generator=of_teacher) / FEATURES**0.5
    second = torch.randn(32, CLASSES, generator=of_teacher)
    random = torch.Generator().manual_seed(1000 + part + PARTS * seed)
    features = torch.randn(count, FEATURES, generator=random)
    logits = torch.relu(features @ first) @ second
    labels = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=random).squeeze(1)
    return features, labels


class Run:
    """One run in a process of its own; a thread reads orders meanwhile."""

    def __init__(self, rank: int, order: dict[str, Any], answers: int) -> None:
        self._order, self._answers = order, answers
        self._go = threading.Event()
        server, folder = order["server"], Path(order["folder"])
        self._place = Place(rank, tuple(order["addresses"]), server, order.get("interface", ""), folder)
        self._marks: list[Mark] = []
        self._lock = threading.Lock()
        self._is_finished = False
        self._steps, self._seconds = 0, 0.0
        self._rounds: int | None = None
        threading.Thread(target=self._read_orders, daemon=True).start()

    def train(self) -> None:
        """Train until the steps are done, or the time is over."""
        order, place, rank = self._order, self._place, self._place.rank
        # torchft tells the others this name, which has to lead here.
        socket.sethostname(place.address)
        seed = order["seed"]
        features, labels = examples(seed, rank, SHARD)
        # The same batches in the same order, whatever the system.
        order_of = torch.Generator().manual_seed(rank + PARTS * seed)
        model = network(seed)
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
        forward, stepped = SYSTEMS[order["system"]](model, optimizer, place)
        self._answer(ready=True)
        self._go.wait()
        limit = threading.Timer(order["seconds"], self._finish)
        limit.daemon = True
        limit.start()
        began = time.perf_counter()
        for step in range(order["steps"] + 1):
            if step % MARK == 0:
                flat = torch.cat([one.detach().reshape(-1) for one in parameters])
                self._marks.append((step, time.perf_counter() - began, flat))
                self._rounds = rounds()
            if step == order["steps"] or self._is_finished:
                break
            # As on an accelerator: the host waits, and its cores are the other threads'.
            time.sleep(order["step_seconds"])
            chosen = torch.randint(SHARD, (BATCH,), generator=order_of)
            optimizer.zero_grad()
            nn.functional.cross_entropy(forward(features[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            stepped()
            if not self._is_finished:
                self._steps, self._seconds = step + 1, time.perf_counter() - began
        self._finish()

    def serve(self) -> None:
        """Run what the loops of a system meet at."""
        order, place = self._order, self._place
        if order["system"] in HUBS:
            announce = place.folder / "hub.txt"
            threading.Thread(target=self._tell_when, args=(announce,), daemon=True).start()
            own = ["--bind", order["bind"], "--key", str(place.folder / "job.key")]
            own += ["--dir", str(place.folder / "hub"), *HUBS[order["system"]]]
            hub(["--announce", str(announce), *own], standalone_mode=False)
        else:
            if order["system"].startswith("torchft"):
                serve_lighthouse(place)
            self._answer(ready=True)

    def _tell_when(self, announce: Path) -> None:
        while not (announce.exists() and announce.read_text("ascii")):
            time.sleep(0.02)
        self._answer(ready=True)

    def _finish(self) -> None:
        with self._lock:
            if not self._is_finished:
                self._is_finished = True
                self._answer(finished=True)

    def _read_orders(self) -> None:
        while line := read_line():
            match json.loads(line)["what"]:
                case "go":
                    self._go.set()
                case "result":
                    self._answer(**self._result())
                case "model":
                    self._answer(models=self._losses(self._means()))
                case _:
                    os._exit(0)
        os._exit(0)

    def _result(self) -> dict[str, Any]:
        """Return what the loop did, and keep its replicas for whoever makes their mean."""
        torch.save(self._marks, self._place.folder / f"replicas{self._place.rank}.pt")
        losses = self._losses(self._marks)
        # A loop that waits for others when the time is over has spent that time, too.
        is_done = self._steps == self._order["steps"]
        seconds = self._seconds if is_done else self._order["seconds"]
        return {"steps": self._steps, "seconds": seconds, "rounds": self._rounds, "losses": losses}

    def _losses(self, marks: Sequence[Mark]) -> list[list[float]]:
        """Return steps, seconds and loss of each mark."""
        seed = self._order["seed"]
        features, labels = examples(seed, 999, HELD_OUT)
        model = network(seed)
        found = []
        for step, seconds, flat in list(marks):
            nn.utils.vector_to_parameters(flat, model.parameters())
            with torch.no_grad():
                found.append([step, seconds, float(nn.functional.cross_entropy(model(features), labels))])
        return found

    def _means(self) -> list[Mark]:
        """Return the marks with the mean of all loops' replicas."""
        place = self._place
        found = [torch.load(place.folder / f"replicas{rank}.pt") for rank in range(place.world)]
        return [
            (marks[0][0], marks[0][1], torch.stack([flat for _, _, flat in marks]).mean(dim=0))
            for marks in zip(*found, strict=False)
        ]

    def _answer(self, **answer: Any) -> None:
        os.write(self._answers, (json.dumps(answer) + "\n").encode())


def read_line() -> str:
    """Return the next line of the standard input; read no further."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return ""
        line += piece
    return line.decode()


def run_child(rank: int, order: dict[str, Any], answers: int) -> None:
    """Do one run in this process; it ends when it is told to."""
    os.setpgid(0, 0)
    run = Run(rank, order, answers)
    try:
        run.serve() if rank == SERVER else run.train()
    except BaseException as error:  # noqa: BLE001 - the driver is told
        traceback.print_exc()
        os.write(answers, (json.dumps({"failed": f"{type(error).__name__}: {error}"[:500]}) + "\n").encode())
    threading.Event().wait()


def main() -> None:
    """Fork a process for each order that begins a run, until the input ends."""
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    # What a run prints is no answer.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.write(answers, b'{"up": true}\n')
    while line := read_line():
        order = json.loads(line)
        if order["what"] != "run":
            continue
        child = os.fork()
        if child == 0:
            run_child(rank, order, answers)
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            # Processes that its system has started.
            os.killpg(child, signal.SIGKILL)
        os.write(answers, b'{"over": true}\n')


if __name__ == "__main__":
    main()
