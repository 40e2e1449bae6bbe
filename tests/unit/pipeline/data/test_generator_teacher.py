"""The planted teacher: noisy, not linear, a function of the row alone; and the shape of what it labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.data.generator.columns import (
    BLOCK_EXAMPLES,
    COUNT_COLUMNS,
    ID_COLUMNS,
    ClickColumns,
    draw_block,
    ids_of_ranks,
    normals_of_ids,
    popularity,
)
from shadowsync.pipeline.data.generator.generator import draw_rows
from shadowsync.pipeline.data.generator.teacher import (
    EXPECTED_NE,
    LATENT_DIM,
    MEAN_LABEL,
    Teacher,
    expected_logloss,
)

Float64Array = NDArray[np.float64]
SEED, TRAIN, EVAL = 5, 8 * BLOCK_EXAMPLES, 4 * BLOCK_EXAMPLES
GOLDEN_IDS = [2538408012, 494223069, 2917084824]
GOLDEN_RANKS = [0, 43, 0, 48, 661, 1]
GOLDEN_CHANCES = [0.0765892393695635, 0.18866793589942987, 0.155483871200433]


class Sample(NamedTuple):
    rows: ClickColumns
    chances: Float64Array
    labels: NDArray[np.bool_]


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(SEED)


@pytest.fixture(scope="module")
def sample(teacher: Teacher) -> Sample:
    (rows,) = draw_rows(SEED, "train", range(TRAIN + EVAL), chunk_examples=TRAIN + EVAL)
    chances = teacher.probabilities(rows.counts, rows.ranks)
    return Sample(rows, chances, rows.chance < chances)


def losses(chances: Float64Array, labels: NDArray[np.bool_]) -> Float64Array:
    result: Float64Array = -np.log(np.where(labels, chances, 1 - chances))
    return result


def fitted(features: Float64Array, labels: NDArray[np.bool_]) -> Float64Array:
    """Logistic regression by Newton's method: the chances of all rows, from a fit to the first TRAIN."""
    inputs = np.column_stack([np.ones(len(features)), features])
    seen, targets = inputs[:TRAIN], labels[:TRAIN]
    weights = np.zeros(inputs.shape[1])
    for _ in range(8):
        chances = 1 / (1 + np.exp(-seen @ weights))
        curvature = (seen * (chances * (1 - chances))[:, None]).T @ seen + 1e-3 * np.eye(len(weights))
        weights -= np.linalg.solve(curvature, seen.T @ (chances - targets) + 1e-3 * weights)
    result: Float64Array = 1 / (1 + np.exp(-inputs @ weights))
    return result


def linear_features(rows: ClickColumns) -> tuple[Float64Array, Float64Array]:
    """What the best linear model could be given: log counts, and each id's own latent values.

    Returns [n, 13 + 26 * LATENT_DIM], and the sums of the latent values by side, [2, LATENT_DIM, n].
    """
    counts = np.nan_to_num(rows.counts, nan=0.0)
    features = list(np.sign(counts) * np.log1p(np.abs(counts)))
    sums = np.zeros((2, LATENT_DIM, rows.counts.shape[1]))
    for place, (column, ranks) in enumerate(zip(ID_COLUMNS, rows.ranks, strict=True)):
        ids = ids_of_ranks(SEED, place, np.arange(column.cardinality, dtype=np.int32))
        shares = popularity(column)
        for component in range(LATENT_DIM):
            values = normals_of_ids(SEED, place, ids, component)
            values = (values - values @ shares) / (values - values @ shares).std()
            values /= 1 + np.arange(column.cardinality) / 100
            features.append(np.append(values - values @ shares, 0.0)[ranks])
            if column.side:
                sums[int(column.side == "right"), component] += features[-1]
    return np.stack(features, axis=1), sums


def test_a_linear_model_that_knows_the_latent_values_loses(sample: Sample) -> None:
    """One weight an id can do no better than a weight on what the teacher itself says of the id.

    The same fit with the four products of the sides added must come close: it is the products that it lacks.
    """
    features, (left, right) = linear_features(sample.rows)
    labels = sample.labels[TRAIN:]
    ideal = losses(sample.chances[TRAIN:], labels)
    mean = expected_logloss(np.array(labels.mean()))
    linear = losses(fitted(features, sample.labels)[TRAIN:], labels)
    # A ratio of means: its error is that of linear - (1 - 0.6) * mean - 0.6 * ideal, row by row.
    excess = linear - 0.4 * losses(np.full(EVAL, labels.mean()), labels) - 0.6 * ideal
    assert excess.mean() > 5 * excess.std() / EVAL**0.5
    assert 0.25 < (mean - linear.mean()) / (mean - ideal.mean()) < 0.6
    products = np.stack([left[a] * right[a] for a in range(LATENT_DIM)], axis=1)
    knowing = losses(fitted(np.hstack([features, products]), sample.labels)[TRAIN:], labels)
    assert (mean - knowing.mean()) / (mean - ideal.mean()) > 0.75


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**63 - 1])
def test_noise_and_mean_hold_for_any_seed(seed: int) -> None:
    rows = draw_block(seed, "eval", 3)
    chances = Teacher(seed).probabilities(rows.counts, rows.ranks)
    expected_ne = expected_logloss(chances).mean() / expected_logloss(np.array(MEAN_LABEL))
    assert expected_ne == pytest.approx(EXPECTED_NE, abs=0.02)
    assert chances.mean() == pytest.approx(MEAN_LABEL, abs=0.01)
    assert chances.min() > 0
    assert chances.max() < 1


def test_labels_follow_the_chances(sample: Sample) -> None:
    """Calibration by decile, within 4.5 standard errors."""
    for part in np.array_split(np.argsort(sample.chances), 10):
        error = (sample.chances[part] * (1 - sample.chances[part])).sum() ** 0.5
        assert abs(sample.labels[part].sum() - sample.chances[part].sum()) < 4.5 * error


def test_a_row_does_not_depend_on_its_neighbours(teacher: Teacher, sample: Sample) -> None:
    counts, ranks = sample.rows.counts, sample.rows.ranks
    pieces = [teacher.probabilities(counts[:, n : n + 7], ranks[:, n : n + 7]) for n in range(0, 700, 7)]
    np.testing.assert_array_equal(np.concatenate(pieces), sample.chances[:700])


def test_another_seed_is_another_teacher(sample: Sample) -> None:
    other = Teacher(SEED + 1).probabilities(sample.rows.counts, sample.rows.ranks)
    assert abs(np.corrcoef(np.log(other), np.log(sample.chances))[0, 1]) < 0.5


def test_no_two_ranks_of_a_column_share_an_id() -> None:
    for place, column in enumerate(ID_COLUMNS):
        ranks = np.arange(column.cardinality, dtype=np.int32)
        ids = ids_of_ranks(SEED, place, ranks)
        assert len(np.unique(ids)) == column.cardinality


def test_ids_are_stable() -> None:
    """Golden: a log of this version must come out the same for ever."""
    assert ids_of_ranks(1, 2, np.arange(3, dtype=np.int32)).tolist() == GOLDEN_IDS
    assert draw_block(1, "train", 5).ranks[2, :6].tolist() == GOLDEN_RANKS
    rows = draw_block(1, "train", 5)
    chances = Teacher(1).probabilities(rows.counts[:, :3], rows.ranks[:, :3])
    assert chances.tolist() == pytest.approx(GOLDEN_CHANCES, rel=1e-9)


def test_distinct_ids_are_as_many_as_the_shares_say(sample: Sample) -> None:
    """The same sum that is checked here on few rows says more than 100,000 for a million."""

    def expected(examples: int) -> float:
        return sum(
            float((1 - (1 - popularity(column) * (1 - column.missing)) ** examples).sum())
            for column in ID_COLUMNS
        )

    seen = sum(len(np.unique(ranks[ranks >= 0])) for ranks in sample.rows.ranks)
    assert seen == pytest.approx(expected(TRAIN + EVAL), rel=0.01)
    assert expected(1_000_000) > 250_000


def test_counts_have_long_tails_and_gaps(sample: Sample) -> None:
    for column, counts in zip(COUNT_COLUMNS, sample.rows.counts, strict=True):
        assert np.isnan(counts).mean() == pytest.approx(column.missing, abs=0.01)
        assert (counts < 0).mean() == pytest.approx(column.negative, abs=0.01)
        assert np.nanmin(counts) >= -1
        there = counts[counts >= 0]
        assert np.quantile(there, 0.999) > 8 * max(np.median(there), 1) * column.spread
    assert any(column.negative for column in COUNT_COLUMNS)


def test_ids_have_long_tails_and_gaps(sample: Sample) -> None:
    for column, ranks in zip(ID_COLUMNS, sample.rows.ranks, strict=True):
        assert (ranks < 0).mean() == pytest.approx(column.missing, abs=0.01)
        there = ranks[ranks >= 0]
        assert there.max() < column.cardinality
        times = np.bincount(there, minlength=column.cardinality)[:3] / len(there)
        np.testing.assert_allclose(times, popularity(column)[:3], atol=0.01)


def test_a_rare_click_has_its_rate_and_as_much_to_learn(sample: Sample) -> None:
    rare = Teacher(SEED, 0.002).probabilities(sample.rows.counts, sample.rows.ranks)
    assert rare.mean() == pytest.approx(0.002, rel=0.1)
    ne = expected_logloss(rare).mean() / expected_logloss(np.array(rare.mean()))
    assert ne == pytest.approx(EXPECTED_NE, abs=0.06), "tails are heavy: a few rows weigh"
    assert np.corrcoef(np.argsort(np.argsort(rare)), np.argsort(np.argsort(sample.chances)))[0, 1] > 0.999
