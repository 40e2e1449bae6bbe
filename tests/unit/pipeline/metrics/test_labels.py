"""Sums of several labels: those of each label alone, added, merged and sent as one object."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.pipeline.metrics.quality import BINS, OTHER_BINS, QualitySums
from shadowsync.pipeline.metrics.ranking import metrics_by_label, metrics_of, ranking_metrics
from shadowsync.pipeline.types import MAX_LABELS, Float32Array
from shadowsync.pipeline.wire.control.base import MAX_VALUES_BYTES

TASKS = ("clicked", "bought", "returned")


def examples(count: int, tasks: int = 3) -> tuple[Float32Array, Float32Array, Float32Array]:
    random = np.random.default_rng(count)
    logits = random.normal(0, 2, (count, tasks)).astype(np.float32)
    labels = (random.random((count, tasks)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, labels, random.exponential(1, count).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_each_label_has_the_sums_that_it_has_alone(weighted: bool) -> None:
    logits, labels, weights = examples(500)
    given = weights if weighted else None
    together = QualitySums()
    together.add(logits, labels, given)
    for at, sums in enumerate((together, *together.others)):
        alone = QualitySums(BINS if at == 0 else OTHER_BINS)
        alone.add(logits[:, at], labels[:, at], given)
        assert (sums.ne, sums.auc, sums.calibration) == (alone.ne, alone.auc, alone.calibration)
    assert together.ne != together.others[0].ne, "the control"


def test_merged_and_sent() -> None:
    whole, parts = QualitySums(), QualitySums()
    for count in (300, 200):
        logits, labels, _ = examples(count)
        whole.add(logits, labels)
        part = QualitySums()
        part.add(logits, labels)
        parts.merge(QualitySums.from_bytes(part.to_bytes()))
    parts.merge(QualitySums())
    assert len(parts.others) == 2
    assert parts.to_bytes() == whole.to_bytes()
    one = QualitySums()
    one.add(logits[:, 0], labels[:, 0])
    assert len(one.to_array()) == 7 + 3 * int(one.to_array()[4]), "the bytes of one label are as they were"


def test_metrics_by_label() -> None:
    logits, labels, _ = examples(400)
    sums = QualitySums()
    sums.add(logits, labels)
    found = metrics_by_label(sums, TASKS)
    assert {name: found[name] for name in metrics_of(sums, ranking_metrics(sums))} == metrics_of(
        sums, ranking_metrics(sums)
    )
    assert found["ne/returned"] == sums.others[1].ne
    assert found["pr_auc/bought"] == ranking_metrics(sums.others[0]).pr_auc
    assert len(found) == 3 * 7


def test_the_bins_of_further_labels_are_fine_enough() -> None:
    logits, labels, _ = examples(20_000, 2)
    sums, exact = QualitySums(), QualitySums()
    sums.add(logits, labels)
    exact.add(logits[:, 1], labels[:, 1])
    assert sums.others[0].auc == pytest.approx(exact.auc, abs=1e-4)
    mine, theirs = ranking_metrics(sums.others[0]), ranking_metrics(exact)
    assert mine.pr_auc == pytest.approx(theirs.pr_auc, abs=1e-3)
    assert mine.calibration_error == pytest.approx(theirs.calibration_error, abs=1e-3)


def test_the_largest_sums_fit_into_a_message() -> None:
    """Of as many labels as a job may have, with each bin of each histogram in use."""
    values = 7 + 3 * BINS + (MAX_LABELS - 1) * (7 + 3 * OTHER_BINS)
    assert 8 * values < 3 * MAX_VALUES_BYTES // 4


def test_what_is_refused() -> None:
    logits, labels, weights = examples(10)
    sums = QualitySums()
    sums.add(logits, labels)
    before = sums.to_bytes()
    broken = logits.copy()
    broken[3, 2] = np.inf
    for bad in ((broken, labels), (logits, labels[:, :2]), (logits, labels + np.float32(0.5))):
        with pytest.raises(ValueError, match=r"logit 3 of 10|must both be|neither 0 nor 1"):
            sums.add(*bad)
    with pytest.raises(ValueError, match="sums of 2 labels do not add to sums of 3"):
        sums.add(logits[:, :2], labels[:, :2])
    with pytest.raises(ValueError, match="sums of 1 labels do not add to sums of 3"):
        sums.add(logits[:, 0], labels[:, 0], weights)
    assert sums.to_bytes() == before, "nothing was added"
    two = QualitySums()
    two.add(logits[:, :2], labels[:, :2])
    with pytest.raises(ValueError, match="sums of 2 labels do not add to sums of 3"):
        sums.merge(two)
    array = sums.to_array()
    for wrong in (array[:-1], np.append(array, 1.0), np.concatenate([array, array])):
        with pytest.raises(ValueError, match="quality sums"):
            QualitySums.from_array(wrong)
    fewer = QualitySums(OTHER_BINS)
    fewer.add(logits[1:, 0], labels[1:, 0])
    with pytest.raises(ValueError, match="quality sums of 10 and 9 examples"):
        QualitySums.from_array(np.concatenate([array, fewer.to_array()]))
    many = np.concatenate([array, *[sums.others[0].to_array()] * MAX_LABELS])
    with pytest.raises(ValueError, match="more than 8 labels"):
        QualitySums.from_array(many)
