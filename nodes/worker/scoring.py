"""What a worker scores: held-out data in passes, and training data before its step."""

from __future__ import annotations

import copy

from ...pipeline.errors import JobFileError
from ...pipeline.metrics.pass_sums import PassSums
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.types import RankingSettings
from .batches import InFlightBatch
from .step import Stepper


class Scoring:
    """The passes and sums of one worker, whose thread owns it.

    Args:
        ranking: how rows are ranked within groups; None for a job without.

    Attributes:
        pass_number: the current pass over held-out data; 0 before the first.
        sums: those of the current pass.
        progressive: sums over the training batches that were scored before their step.
    """

    def __init__(self, ranking: RankingSettings | None) -> None:
        self._ranking = ranking
        self.pass_number = 0
        self.sums = PassSums.of(ranking)
        self.progressive = QualitySums()
        self._progressive_spans: frozenset[int] = frozenset()

    def score_before_steps(self, spans: frozenset[int]) -> None:
        """Score the batches of these spans before their step, in the first epoch."""
        self._progressive_spans = spans

    def progressive_of(self, batch: InFlightBatch) -> QualitySums | None:
        """Return the sums that a training batch is scored for; None for most batches."""
        id = batch.delivery.id
        is_scored = id.epoch == 0 and id.span in self._progressive_spans and not batch.delivery.replay
        return self.progressive if is_scored else None

    def begin(self, pass_number: int) -> None:
        """Begin a pass; the one before is abandoned."""
        self.pass_number, self.sums = pass_number, PassSums.of(self._ranking)

    def score(self, batch: InFlightBatch, stepper: Stepper) -> None:
        """Score a batch of the current pass; raises JobFileError for a logit that is not finite."""
        delivery = batch.delivery
        try:
            stepper.score(delivery, batch.requests, batch.replies, self.sums)
        except ValueError as error:
            raise JobFileError(
                f"batch {tuple(delivery.id)} of scoring pass {delivery.pass_number}, over held-out data,"
                f" cannot be scored: {error}",
                where=batch.reader.name,
                remedy="lower trainer.lr or embedding.lr, or correct what the model computes from these rows",
            ) from error

    def sums_of(self, pass_number: int) -> PassSums:
        """Return a copy of a pass's sums so far, which another thread may read.

        Of a reader that has died, more deliveries may be scored meanwhile.
        """
        return copy.deepcopy(self.sums) if pass_number == self.pass_number else PassSums.of(self._ranking)
