"""What `shadowsync tune` trains to find a planted best, beside random search.

    python benchmarks/quality/tuning.py \\
        --out benchmarks/quality/results/tuning.json  # made up: a minute of one core

A made-up job of three settings (tests/support/coordinator/planted_best.py): the scheduler and its rungs are
those of `shadowsync tune`, only the NE is computed from a formula. Its best settings are drawn at random
for each of ten seeds. Counted are the examples until a trial that trained to its end is near the best.
Goal: a median of at most 40% of those of random search.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Final

from shadowsync.benchmarks.pairs import save
from shadowsync.lab.tuning.study import StudyRules
from shadowsync.pipeline.text.format import count, percent
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.tests.support.coordinator.planted_best import NEAR, examples_to_find

GOAL: Final = 0.4


def main() -> None:
    """Find the best of every seed both ways, compare, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=400, help="of a study that does not find it")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, list[int]] = {"asha": [], "random": []}
    for seed in range(given.seeds):
        for strategy, examples in found.items():
            rules = StudyRules.model_validate({"strategy": strategy, "seed": seed})
            examples.append(examples_to_find(seed, rules, given.trials))
    rows = [
        (str(seed), count(ours), count(random), percent(ours / random))
        for seed, (ours, random) in enumerate(zip(found["asha"], found["random"], strict=True))
    ]
    print("\n".join(markdown_table(("seed", "examples of tune", "of random search", "share"), rows)))
    medians = {strategy: statistics.median(examples) for strategy, examples in found.items()}
    ratios = [ours / random for ours, random in zip(found["asha"], found["random"], strict=True)]
    share = medians["asha"] / medians["random"]
    print(f"medians: {count(medians['asha'])} and {count(medians['random'])}, {percent(share)}")
    print(f"median of the shares: {percent(statistics.median(ratios))}; goal: at most {percent(GOAL)}")
    if given.out is not None:
        save(
            given.out,
            "examples until a planted best is found",
            {"examples": found, "near": NEAR, "share_of_medians": share, "shares": ratios},
        )


if __name__ == "__main__":
    main()
