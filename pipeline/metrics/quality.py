"""Quality of predictions: logloss, NE, AUC and calibration, from mergeable sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..errors import DataError
from ..types import MAX_LABELS, Float32Array, Float64Array, Mask

BINS: Final = 65_536
OTHER_BINS: Final = 8_192
_LOGIT_SCALE: Final = 3.0
_HEADER: Final = 7
_MOST_EXAMPLES: Final = 2**53
# Sums over many of these stay finite; no example's loss, times its weight, is more.
_MOST_SUM: Final = 1e100
_LARGEST_LOGIT: Final = float(np.finfo(np.float32).max)
# Of sums of float64, in another order, against the bounds that their bins give.
_ROUNDING: Final = 1e-6


def gain_ratio(ne: float | None, teacher_ne: float | None) -> float | None:
    """Return the gain ratio: (1 - NE) / (1 - NE of the teacher).

    Returns None if either is unknown, or the teacher is no better than the mean label.
    """
    if ne is None or teacher_ne is None or teacher_ne >= 1.0:
        return None
    return (1.0 - ne) / (1.0 - teacher_ne)


def entropy(rate: float) -> float:
    """Return the logloss of always predicting this mean label, strictly between 0 and 1."""
    return -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))


class QualitySums:
    """Sums over scored examples, for logloss, NE, AUC and calibration.

    The AUC comes from a histogram of z / (3 + |z|), with z the logit, cut into `bins` equal bins. With 65,536
    bins a bin is 0.0001 wide at z = 0, 0.0004 at 3 and 0.002 at 10; no finite z is outside. Pairs in one bin
    count half; `auc_error` bounds the error of this. Counts are exact, also when objects are merged; the two
    sums of floats are exact up to float64 rounding.

    With sample weights every figure is that of scikit-learn with `sample_weight`: an example counts by its
    weight in the losses, in the mean label, and in all pairs of the AUC. Bins then have sums of weights,
    which are exact up to float64 rounding.

    Of a job with several labels all figures are of the first one; `others` has the sums of each further
    label. Their histograms have OTHER_BINS bins, so that the sums of MAX_LABELS labels fit into a message:
    their bins are 8 times as wide.

    Not thread-safe: each thread has its own object, and the objects are merged. Merging needs equal `bins`.

    Attributes:
        bins: number of bins.
        others: sums of the further labels; empty for one label, and before the first examples.
    """

    __slots__ = (
        "_counts",
        "_examples",
        "_loss_sum",
        "_probability_sum",
        "_weight",
        "_weighted",
        "bins",
        "others",
    )

    def __init__(self, bins: int = BINS) -> None:
        if bins < 2:
            raise ValueError(f"a histogram needs at least 2 bins, not {bins}")
        self.bins = bins
        self.others: tuple[QualitySums, ...] = ()
        self._examples = 0
        self._weight = 0.0
        self._weighted = False
        self._loss_sum = 0.0
        self._probability_sum = 0.0
        # The bins of negatives, then those of positives, so that one scatter-add fills both.
        self._counts = np.zeros(2 * bins, dtype=np.float64)

    def add(self, logits: Float32Array, labels: Float32Array, weights: Float32Array | None = None) -> None:
        """Add B examples.

        Args:
            logits: float32 [B], finite; [B, T] of T labels.
            labels: float32, each 0.0 or 1.0, of the same shape.
            weights: sample weights, float32 [B], finite and not negative; by default 1 each.

        Raises:
            ValueError: a wrong shape or value; nothing is then added.
        """
        if logits.ndim not in (1, 2) or logits.shape != labels.shape:
            raise ValueError(
                f"logits {logits.shape} and labels {labels.shape} must both be [B], or [B, T] of T labels"
            )
        z = logits.astype(np.float64)
        positive = labels == 1.0
        if not np.isfinite(z).all():
            bad = int(np.argwhere(~np.isfinite(z))[0][0])
            raise ValueError(f"logit {bad} of {len(z)} is {z[bad]}: the model has diverged")
        if not (positive | (labels == 0.0)).all():
            raise ValueError("a label is neither 0 nor 1")
        weight = _checked_weights(weights, len(z))
        if logits.ndim == 1:
            self._require_others(0)
            self._add(z, positive, weight, weighted=weights is not None)
            return
        self._require_others(logits.shape[1] - 1)
        for label, sums in enumerate((self, *self.others)):
            sums._add(z[:, label], positive[:, label], weight, weighted=weights is not None)

    def _add(self, z: Float64Array, positive: Mask, weight: Float64Array | float, *, weighted: bool) -> None:
        magnitude = np.abs(z)
        # exp(-|z|) cannot overflow, and log1p keeps the small losses of confident, right answers.
        decay = np.exp(-magnitude)
        loss = np.log1p(decay) + np.where(positive, np.maximum(-z, 0.0), np.maximum(z, 0.0))
        probability = np.where(z >= 0.0, 1.0, decay) / (1.0 + decay)
        place = (z / (magnitude + _LOGIT_SCALE) + 1.0) * (0.5 * self.bins)
        index = np.minimum(place.astype(np.int64), self.bins - 1) + positive * self.bins
        np.add.at(self._counts, index, weight)
        self._examples += len(z)
        self._weight += float(np.sum(weight)) if weighted else len(z)
        self._weighted |= weighted
        self._loss_sum += float((loss * weight).sum())
        self._probability_sum += float((probability * weight).sum())

    def by_label(self, names: Sequence[str]) -> dict[str, QualitySums]:
        """Return the sums of each label by its name, those of the first too.

        Raises ValueError for another number of names.
        """
        return dict(zip(names, (self, *self.others), strict=True))

    def merge(self, other: QualitySums) -> None:
        """Add the examples of `other`, which does not change.

        Raises ValueError if its number of bins, or of labels, differs.
        """
        if other.bins != self.bins:
            raise ValueError(f"sums of {other.bins} bins do not add to sums of {self.bins}")
        if other.examples:
            self._require_others(len(other.others))
            for mine, its in zip(self.others, other.others, strict=True):
                mine.merge(its)
        self._counts += other._counts
        self._examples += other._examples
        self._weight += other._weight
        self._weighted |= other._weighted
        self._loss_sum += other._loss_sum
        self._probability_sum += other._probability_sum

    def _require_others(self, count: int) -> None:
        """Begin with sums of `count` further labels; raise ValueError if there are others."""
        if not self._examples:
            self.others = tuple(QualitySums(OTHER_BINS) for _ in range(count))
        elif len(self.others) != count:
            raise ValueError(f"sums of {count + 1} labels do not add to sums of {len(self.others) + 1}")

    @property
    def examples(self) -> int:
        """Return the number of examples added so far."""
        return self._examples

    @property
    def weighted(self) -> bool:
        """Return whether examples were added with sample weights."""
        return self._weighted

    @property
    def weight(self) -> float:
        """Return the sum of the examples' weights; without weights it is `examples`."""
        return self._weight

    @property
    def positives(self) -> float:
        """Return the weight of examples with label 1; without weights their number."""
        return float(self._counts[self.bins :].sum())

    @property
    def logloss(self) -> float:
        """Return the mean cross entropy in nats.

        Raises DataError without examples, or without any weight.
        """
        return self._loss_sum / self._counted()

    @property
    def ne(self) -> float | None:
        """Return the normalized entropy: logloss over the entropy of the mean label.

        1.0 is no better than always predicting the mean. Returns None if all labels are the same; raises
        DataError without examples. Source: He et al., ADKDD 2014.
        """
        self._counted()
        negatives, positives = float(self._counts[: self.bins].sum()), self.positives
        # Both are sums of bins, so none is negative, as the weight of all less one of them may be.
        rarer = min(negatives, positives) / (negatives + positives)
        if not rarer:
            return None
        return self.logloss / entropy(rarer)

    @property
    def calibration(self) -> float | None:
        """Return mean prediction over mean label; None without positives.

        Raises DataError without examples.
        """
        self._counted()
        positives = self.positives
        return self._probability_sum / positives if positives else None

    @property
    def auc(self) -> float | None:
        """Return the area under the ROC curve; ties count half.

        Returns None if all labels are the same; raises DataError without examples.
        """
        negatives, positives, pairs = self._pairs()
        if not pairs > 0.0:
            return None
        below = np.cumsum(negatives) - negatives
        # The rounding of sums of weights must not make it more than 1.
        return min(1.0, float(np.dot(positives, below + 0.5 * negatives)) / pairs)

    @property
    def auc_error(self) -> float | None:
        """Return the largest error of `auc` against the exact AUC.

        Returns None if `auc` is None.
        """
        negatives, positives, pairs = self._pairs()
        return float(np.dot(positives, 0.5 * negatives)) / pairs if pairs else None

    def histogram(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return the used bins: negatives, positives, probability at the middle.

        Each array is float64 [K], in the order of the logit. With 65,536 bins, and logits of at least -6, the
        relative error of a probability is at most 0.0004. Raises DataError without examples.
        """
        self._counted()
        negatives, positives = self._counts[: self.bins], self._counts[self.bins :]
        used = np.flatnonzero(negatives + positives)
        place = (used + 0.5) * (2.0 / self.bins) - 1.0
        logits = _LOGIT_SCALE * place / (1.0 - np.abs(place))
        probabilities = 1.0 / (1.0 + np.exp(-np.clip(logits, -700.0, 700.0)))
        return negatives[used], positives[used], probabilities

    def to_array(self) -> Float64Array:
        """Return the exact sums as float64 [7 + 3K], followed by those of `others`.

        `from_array` returns an equal object. The values are: bins, examples, loss sum, probability sum, K
        (the number of used bins), weight, whether weights were given; then the numbers, the negatives and the
        positives of the used bins.
        """
        negatives, positives = self._counts[: self.bins], self._counts[self.bins :]
        used = np.flatnonzero(negatives + positives)
        sums = (self._loss_sum, self._probability_sum, len(used), self._weight, float(self._weighted))
        header = (self.bins, self._examples, *sums)
        first = (np.array(header, np.float64), used, negatives[used], positives[used])
        return np.concatenate([*first, *(sums.to_array() for sums in self.others)])

    def to_bytes(self) -> bytes:
        """Return the bytes of `to_array`."""
        return self.to_array().tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> QualitySums:
        """Return the sums from the bytes of `to_bytes`; raises ValueError for others."""
        return cls.from_array(np.frombuffer(data, dtype=np.float64))

    @classmethod
    def from_array(cls, array: Float64Array) -> QualitySums:
        """Return the sums from an array that `to_array` made.

        Raises ValueError for anything else, or for another number of bins.
        """
        sums, rest = cls._first_of(array, BINS)
        others: list[QualitySums] = []
        while len(rest) and len(others) + 1 < MAX_LABELS:
            other, rest = cls._first_of(rest, OTHER_BINS)
            if other.examples != sums.examples:
                raise ValueError(f"quality sums of {sums.examples} and {other.examples} examples")
            others.append(other)
        if len(rest):
            raise ValueError(f"quality sums of more than {MAX_LABELS} labels")
        sums.others = tuple(others)
        return sums

    @classmethod
    def _first_of(cls, array: Float64Array, bins: int) -> tuple[QualitySums, Float64Array]:
        """Return the sums at the beginning of an array, and its rest."""
        if array.dtype != np.float64 or array.ndim != 1 or len(array) < _HEADER:
            raise ValueError(f"quality sums are float64 [7 + 3K], not {array.dtype} {array.shape}")
        # False for NaN as well.
        if not ((array >= 0.0) & (array <= _MOST_SUM)).all() or array[1] > _MOST_EXAMPLES:
            raise ValueError("quality sums hold a number that is negative, too large, or NaN")
        if array[0] != bins:
            raise ValueError(f"quality sums have {array[0]:.0f} bins; {bins} were expected")
        if array[4] > bins or array[4] % 1 or len(array) < _HEADER + 3 * array[4]:
            raise ValueError(f"quality sums of {array[4]:.0f} used bins cannot be {len(array)} long")
        array, rest = np.split(array, [_HEADER + 3 * int(array[4])])
        used, negatives, positives = array[_HEADER:].reshape(3, -1)
        weighted = bool(array[6])
        whole = used if weighted else array[_HEADER:]
        if not np.array_equal(whole, np.floor(whole)) or (used >= bins).any() or (np.diff(used) <= 0).any():
            raise ValueError("the bins of quality sums are whole numbers, ascending, each there once")
        total = negatives.sum() + positives.sum()
        if not (math.isclose(total, array[5], rel_tol=1e-9) if weighted else total == array[1] == array[5]):
            raise ValueError("the bins of quality sums do not add up to their examples")
        _require_sums_of(used, negatives, positives, bins, loss_sum=array[2], probability_sum=array[3])
        sums = cls(bins)
        sums._examples, sums._loss_sum, sums._probability_sum = (
            int(array[1]),
            float(array[2]),
            float(array[3]),
        )
        sums._weight, sums._weighted = float(array[5]), weighted
        sums._counts[used.astype(np.int64)] = negatives
        sums._counts[used.astype(np.int64) + bins] = positives
        return sums, rest

    def _counted(self) -> float:
        if self._examples == 0:
            raise DataError("there are no examples to score", remedy="give a file that has some")
        if self._weight == 0.0:
            raise DataError("all examples have weight 0", remedy="give a file in which some have more")
        return self._weight

    def _pairs(self) -> tuple[Float64Array, Float64Array, float]:
        self._counted()
        negatives, positives = self._counts[: self.bins], self._counts[self.bins :]
        return negatives, positives, float(negatives.sum()) * float(positives.sum())


def _require_sums_of(
    used: Float64Array,
    negatives: Float64Array,
    positives: Float64Array,
    bins: int,
    *,
    loss_sum: float,
    probability_sum: float,
) -> None:
    """Raise ValueError for sums that no examples of these bins have: a bin bounds its logits."""
    lower, upper = _logits_at(used, bins), _logits_at(used + 1.0, bins)
    everyone = negatives + positives
    for what, value, least, most in (
        (
            "loss",
            loss_sum,
            negatives @ _softplus(lower) + positives @ _softplus(-upper),
            negatives @ _softplus(upper) + positives @ _softplus(-lower),
        ),
        (
            "probability",
            probability_sum,
            everyone @ np.exp(-_softplus(-lower)),
            everyone @ np.exp(-_softplus(-upper)),
        ),
    ):
        slack = _ROUNDING * (most + 1.0)
        if not least - slack <= value <= most + slack:
            raise ValueError(f"a sum of {what} of {value:g}, where the bins allow {least:g} to {most:g}")


def _logits_at(edges: Float64Array, bins: int) -> Float64Array:
    """Return the logits at edges of bins; beyond the first and the last are all finite float32."""
    place = edges * (2.0 / bins) - 1.0
    rest = np.maximum(1.0 - np.abs(place), _LOGIT_SCALE / _LARGEST_LOGIT)
    return _LOGIT_SCALE * place / rest


def _softplus(logits: Float64Array) -> Float64Array:
    return np.logaddexp(0.0, logits)


def _checked_weights(weights: Float32Array | None, count: int) -> Float64Array | float:
    if weights is None:
        return 1.0
    if weights.shape != (count,):
        raise ValueError(f"weights {weights.shape} for {count} examples")
    if not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise ValueError("a weight is negative or not finite")
    return weights.astype(np.float64)
