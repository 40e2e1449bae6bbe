"""A training loop in a process of its own, until a file says stop: NAME, ADDRESS, the test's folder.

It writes the steps that it has made to NAME.txt, and ends when there is a file `stop` in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import shadowsync
import torch
from shadowsync.tests.support.loops.attached_loops import Task, small_model
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 2_000
BATCH = 4


def main(name: str, address: str, folder: Path) -> None:
    torch.set_num_threads(1)
    model, task = small_model(), Task(len(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.arange(EXAMPLES))
    steps = 0
    with shadowsync.attach(model, optimizer, join=address, timeout_seconds=120.0) as sync:
        loader = DataLoader(data, batch_size=BATCH, sampler=sync.sampler(data, examples_per_step=BATCH))
        while not (folder / "stop").exists():
            for _ in loader:
                task.step(model, optimizer)
                steps += 1
                if steps % 10 == 0:
                    (folder / f"{name}.txt").write_text(str(steps), encoding="ascii")
                if (folder / "stop").exists():
                    break


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
