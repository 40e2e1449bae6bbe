"""Decisions of a merge's window in a second of CPU time: contributions, each with the question when to close.

    python benchmarks/speed/nodes/merge_decisions.py

Merges of all trainers, whose contributions come over 5 s, in order. It measures the first ones of a merge, in
which most trainers are waited for.
"""

from __future__ import annotations

import random
import time
from typing import Final

from shadowsync.sync_algos.contract.merge_window import MergeTerms, MergeWindow

COUNTS: Final = (4, 100, 1_000, 10_000)
WARM_MERGES: Final = 9
MERGE_SECONDS: Final = 30.0
CPU_SECONDS: Final = 2.0


def contributions(draw: random.Random, trainers: int, merge: int) -> list[float]:
    """Return the times of one merge's contributions, ascending."""
    return sorted(merge * MERGE_SECONDS + draw.uniform(10.0, 15.0) for _ in range(trainers))


def decisions_per_second(trainers: int) -> float:
    """Return the contributions, with a question each, in a second of CPU time."""
    window, draw = MergeWindow(lambda n: MergeTerms((n + 1) // 2, 4.0, MERGE_SECONDS)), random.Random(1)
    made, began, merge = 0, 0.0, 0
    while True:
        for trainer, now in enumerate(contributions(draw, trainers, merge)):
            window.late_seconds(trainer, now)
            window.contributed(trainer, 64, now)
            if merge < WARM_MERGES:
                continue
            window.closes_at(now)
            made += 1
            if made % 32 == 0 and (passed := time.thread_time() - began) > CPU_SECONDS:
                return made / passed
        merge += 1
        window.close(merge * MERGE_SECONDS)
        if merge == WARM_MERGES:
            began = time.thread_time()


if __name__ == "__main__":
    for count in COUNTS:
        print(f"{count} trainers: {decisions_per_second(count):,.0f} decisions a second", flush=True)
