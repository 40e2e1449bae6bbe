"""A training loop in a process of its own: INDEX, ADDRESS, the number of loops, and the test's folder.

It writes the steps that it made to loop-INDEX.txt. A loop whose INDEX is 0 trains until it is killed; the
others until they know of that, and then go through what is left of the data. With env:// as ADDRESS nobody is
killed: each goes through its share of the data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import shadowsync
import torch
from shadowsync.tests.support.loops.attached_loops import Task, small_model
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 400
BATCH = 4


def main(index: int, address: str, count: int, folder: Path) -> None:
    """Train."""
    torch.set_num_threads(1)
    model, task = small_model(), Task(index)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.arange(EXAMPLES))
    seen: list[int] = []
    with shadowsync.attach(model, optimizer, join=address, wait_for=count, timeout_seconds=300.0) as sync:
        sampler = sync.sampler(data, examples_per_step=BATCH, epochs=1, span=20)
        loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
        for number, (indices,) in enumerate(loader):
            task.step(model, optimizer)
            seen += indices.tolist()
            (folder / f"loop-{index}.txt").write_text(str(number + 1), encoding="ascii")
            while index == 0 and number == 5 and address != "env://":
                # It holds a part of a span, and trains no more of it.
                pass
        while address != "env://" and sync.metrics()["members"] == count:
            task.step(model, optimizer)
        for (indices,) in loader:
            task.step(model, optimizer)
            seen += indices.tolist()
    (folder / f"seen-{index}.txt").write_text(" ".join(map(str, seen)), encoding="ascii")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
