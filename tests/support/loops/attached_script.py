"""A training loop in a process of its own: INDEX, ADDRESS, the number of loops, and the test's folder.

It writes the steps that it made to loop-INDEX.txt. A loop whose INDEX is 0 makes HELD steps, and then waits
to be killed. The others go through the data from then on, train until they know of its death, and then go
through what is left of the data; a loop that is the only one trains until it knows of another one. With env://
as ADDRESS nobody is killed: each goes through its share.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import shadowsync
import torch
from shadowsync.tests.support.loops.attached_loops import Task, small_model
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 400
BATCH = 4
HELD = 6


def main(index: int, address: str, count: int, folder: Path) -> None:
    torch.set_num_threads(1)
    model, task = small_model(), Task(index)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.arange(EXAMPLES))
    seen: list[int] = []
    first = folder / "loop-0.txt"
    with shadowsync.attach(model, optimizer, join=address, wait_for=count, timeout_seconds=300.0) as sync:
        sampler = sync.sampler(data, examples_per_step=BATCH, epochs=1, span=20)
        loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
        knows_all = has_held = address == "env://" or index == 0
        while not (knows_all and has_held):
            # On a busy machine they would leave it less than that.
            task.step(model, optimizer)
            # It hears of the others, and of itself, with heartbeats.
            knows_all = knows_all or sync.metrics()["members"] >= count
            has_held = count == 1 or (first.exists() and first.read_text() == str(HELD))
        for number, (indices,) in enumerate(loader):
            task.step(model, optimizer)
            seen += indices.tolist()
            (folder / f"loop-{index}.txt").write_text(str(number + 1), encoding="ascii")
            while index == 0 and number + 1 == HELD and address != "env://":
                # It holds a part of a span, and trains no more of it.
                threading.Event().wait(0.05)
        if address != "env://":
            while (members := sync.metrics()["members"]) == count or members < count == 1:
                task.step(model, optimizer)
        for (indices,) in loader:
            task.step(model, optimizer)
            seen += indices.tolist()
    (folder / f"seen-{index}.txt").write_text(" ".join(map(str, seen)), encoding="ascii")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
