"""A made-up objective with a planted best setting, for studies without jobs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

from shadowsync.lab.tuning.space import Dimension, Parameters, parse_space
from shadowsync.lab.tuning.study import Outcome, ReportRung, Study, StudyRules

SPACE: Final[tuple[Dimension, ...]] = parse_space(
    ["sync.algorithm=easgd,ma,bmuf,ds_sync", "sync.gap=1..64:log", "trainer.lr=1e-4..1:log"]
)
ALGORITHMS: Final = ("easgd", "ma", "bmuf", "ds_sync")
EXAMPLES: Final = 1_000_000
FLOOR: Final = 0.75
# A trial has found the best if its NE is this near to it; about one random setting in 60 is.
NEAR: Final = 0.004


@dataclass(frozen=True)
class Planted:
    """NE by examples, least at settings that a seed has drawn.

    A learning curve is FLOOR + a bowl around the best settings + a part that shrinks with the examples. How
    fast it shrinks differs between settings, and each score has noise, so that the first rungs mislead.
    """

    seed: int

    def ne(self, parameters: Parameters, examples: float) -> float:
        """Return the NE of these settings after so many examples."""
        draw = random.Random(self.seed)
        algorithm, gap, rate = draw.choice(ALGORITHMS), draw.random(), draw.random()
        own = random.Random(f"{self.seed} {sorted(parameters.items())} {examples}")
        slow = random.Random(f"{self.seed} {sorted(parameters.items())}").uniform(0.5, 2.0)
        at_gap = math.log(float(parameters["sync.gap"])) / math.log(64)
        at_rate = math.log(float(parameters["trainer.lr"]) / 1e-4) / math.log(1e4)
        bowl: float = 0.3 * (at_rate - rate) ** 2 + 0.05 * (at_gap - gap) ** 2
        bowl += 0.0 if parameters["sync.algorithm"] == algorithm else 0.01
        learning: float = 0.02 * slow * (EXAMPLES / examples) ** 0.5 - 0.02 * slow
        return FLOOR + bowl + learning + own.gauss(0.0, 0.0005)


def examples_to_find(seed: int, rules: StudyRules, most: int) -> int:
    """Return the examples that a study trains until a complete trial is near the planted best.

    That of `most` trials, if none is.
    """
    planted, study, trained = Planted(seed), Study(SPACE, rules), 0

    def objective(_number: int, parameters: Parameters, report: ReportRung) -> Outcome:
        for rung, share in enumerate(rules.shares):
            examples = int(share * EXAMPLES)
            if report(rung, planted.ne(parameters, examples)):
                return Outcome(None, examples, stopped=True)
        return Outcome(planted.ne(parameters, EXAMPLES), EXAMPLES)

    for _ in range(most):
        trial = study.advance(objective)
        trained += trial.examples
        if trial.ne is not None and trial.ne <= FLOOR + NEAR:
            break
    return trained
