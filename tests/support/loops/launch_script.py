"""A loop with tables under torchrun's variables, in a process of its own: ORDER, CASE, and the test's folder.

ORDER is what is made first, "tables" or "attach"; that ends last. Each step adds 1 to row 0 and to a row of
its own. Cases: "late": rank 1 begins when the first part of rank 0 has left; "twice": another
module is there, too; "rank R raises" in its third step. Files with the rank in their names say what was.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import shadowsync
import torch
from shadowsync.attached.torchrun import ENV
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.loops.attached_loops import Task, sgd, small_model

STEPS = 6
SECONDS = 300.0
# The first part that ends, by ORDER, by the name of its thread.
FIRST_TO_END = {"tables": "attached loop", "attach": "tables"}


def threads(name: str) -> int:
    """How many threads of this name there are."""
    return sum(one.name == name for one in threading.enumerate())


def tables_of(name: str) -> shadowsync.Embeddings:
    return shadowsync.Embeddings(
        {name: 4}, 2, join=ENV, optimizer="sgd", lr=1.0, init_scale=1e-6, timeout_seconds=SECONDS
    )


def main(order: str, case: str, folder: Path) -> None:
    rank = int(os.environ["RANK"])

    def write(name: str, what: object) -> None:
        (folder / f"{name}-{rank}.txt").write_text(str(what), encoding="ascii")

    if case == "late" and rank == 1:
        wait_until((folder / "left-0.txt").exists, "rank 0 has left", SECONDS)
    model, task = small_model(), Task(rank)
    optimizer = sgd(model)
    with contextlib.ExitStack() as block:
        if order == "tables":
            tables = block.enter_context(tables_of("shared"))
            # Once the loops of all ranks have left.
            block.callback(lambda: write("rows", tables.vectors("shared")[:, 0].round().tolist()))
        sync = block.enter_context(
            shadowsync.attach(model, optimizer, join=ENV, algorithm="ma", duty=1.0, timeout_seconds=SECONDS)
        )
        if order == "attach":
            tables = block.enter_context(tables_of("shared"))
        if case == "twice":
            block.enter_context(tables_of("more"))
        write("hubs", threads("hub"))
        write("algorithm", sync._role.job.sync.algorithm)
        ids = torch.tensor([0, 1 + rank])
        # One whose hub is to end with rank 0 goes on until then.
        steps = itertools.count(1) if (case, rank) == ("rank 0 raises", 1) else range(1, STEPS + 1)
        for step in steps:
            (-tables(ids)).sum().backward()
            tables.flush()
            task.step(model, optimizer)
            write("steps", step)
            if case == f"rank {rank} raises" and step == 3:
                wait_until((folder / f"steps-{1 - rank}.txt").exists, "the other one trains", SECONDS)
                raise ZeroDivisionError("mine")
        if case == "late" and rank == 0:
            watch(FIRST_TO_END[order], lambda: write("left", 1))
    others = folder / f"steps-{1 - rank}.txt"
    write("others", others.read_text() if others.exists() else 0)


def watch(name: str, told: Callable[[], None]) -> None:
    """Call `told` once the thread of this name has ended."""

    def wait() -> None:
        wait_until(lambda: not threads(name), "it has left", SECONDS)
        told()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
