"""What a scorer keeps of a scoring pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..types import Float32Array, RankingSettings, Uint64Array
from .quality import QualitySums
from .top_k import SENT_BYTES, GroupRanking, TopKSums


@dataclass(slots=True)
class PassSums:
    """Sums over scored examples, which merge over scorers. Not thread-safe.

    Attributes:
        quality: sums for NE, AUC and so on.
        top: the first rows of each group; None for a job without such figures.
    """

    quality: QualitySums = field(default_factory=QualitySums)
    top: TopKSums | None = None
    _ranking: RankingSettings | None = None

    @classmethod
    def of(cls, ranking: RankingSettings | None, limit_bytes: int = SENT_BYTES) -> PassSums:
        """Return sums of no example; see `TopKSums`."""
        return cls(QualitySums(), None if ranking is None else TopKSums(ranking.k, limit_bytes), ranking)

    def add(
        self,
        scores: Float32Array,
        labels: Float32Array,
        weights: Float32Array | None = None,
        groups: Uint64Array | None = None,
    ) -> None:
        """Add B examples; arguments as `QualitySums.add`, and `groups` as `Batch.groups` has them.

        Raises ValueError for a wrong shape or value; nothing is then added.
        """
        if self._ranking is not None and (groups is None or len(groups) <= self._ranking.group):
            raise ValueError("the examples have no groups")
        self.quality.add(scores, labels, weights)
        if self.top is not None and self._ranking is not None and groups is not None:
            _, group, label = self._ranking
            ranked = (scores, labels) if scores.ndim == 1 else (scores[:, label], labels[:, label])
            self.top.add(*ranked, groups[group])

    def merge(self, other: PassSums) -> None:
        """Add the examples of `other`, sums of the same job, which does not change."""
        self.quality.merge(other.quality)
        if self.top is not None and other.top is not None:
            self.top.merge(other.top)

    @property
    def ranking(self) -> GroupRanking | None:
        """The figures within groups; None for a job without."""
        return None if self.top is None else self.top.result()
