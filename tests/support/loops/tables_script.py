"""A loop with a shared table in a process of its own: INDEX, ADDRESS, and the test's folder.

It adds 1 to row 0 and to a row of its own, STEPS times. With INDEX 1 and the address of a hub it then goes on
until it is killed. It writes the table as it left it to table-INDEX.txt.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import shadowsync
import torch

ROWS, STEPS = 4, 5


def main(index: int, address: str, folder: Path) -> None:
    torch.set_num_threads(1)
    tables = shadowsync.Embeddings(
        {"shared": ROWS}, 2, join=address, optimizer="sgd", lr=1.0, timeout_seconds=300.0
    )
    with tables:
        ids = torch.tensor([0, 1 + index])
        for step in itertools.count(1):
            (-tables(ids)).sum().backward()
            tables.flush()
            # Whole at any instant, also when this process is killed.
            made = folder / f"steps-{index}.partial"
            made.write_text(str(step), encoding="ascii")
            made.replace(folder / f"steps-{index}.txt")
            if step >= STEPS and not (index == 1 and address != "env://"):
                break
        rows = tables.vectors("shared")[:, 0].tolist()
    (folder / f"table-{index}.txt").write_text(" ".join(map(str, rows)), encoding="ascii")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
