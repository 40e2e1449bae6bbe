"""What scikit-learn reaches on a job's data: logistic regression and boosted trees.

    from shadowsync.benchmarks.quality.data_sets.floors import boosted_trees, floor_quality

The rows are those of the job, parsed and hashed as its readers do. A floor also trains on the job's
validation rows, since it holds out rows of its own. A progressive part is scored in pieces of WINDOW rows,
each by a model that was fitted to all rows before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from shadowsync.lab.virtual.source import BatchSource
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.messages import Delivery

WINDOW = 500
STRENGTHS = (0.01, 0.1, 1.0)
# Boosted trees take categories of at most 255 values.
MOST_VALUES = 255
LEAST_PROBABILITY = 1e-7


@dataclass(frozen=True)
class Rows:
    """Examples of a job.

    Attributes:
        dense: numbers, float32 [N, D].
        ids: int64 [N, T].
        labels: float32 [N].
        copies: columns of `ids` that have the values of a column of numbers.
    """

    dense: Float32Array
    ids: np.ndarray[Any, np.dtype[np.int64]]
    labels: Float32Array
    copies: tuple[int, ...] = ()

    @property
    def features(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return numbers and ids side by side, float64 [N, D + T]."""
        return np.concatenate([self.dense, self.ids], axis=1, dtype=np.float64)

    @property
    def kinds(self) -> tuple[list[int], list[int], list[int]]:
        """Return the columns of numbers, ids of few values, ids of many."""
        numbers = self.dense.shape[1]
        values = [len(np.unique(column)) for column in self.ids.T]
        few = [numbers + at for at, count in enumerate(values) if count < MOST_VALUES]
        many = [numbers + at for at, count in enumerate(values) if count >= MOST_VALUES]
        return list(range(numbers)), few, many


Floor = Callable[[Rows, int], Any]


def logistic_regression(rows: Rows, seed: int) -> Any:
    """Return logistic regression on scaled numbers and one-hot ids.

    A held-out tenth chooses its strength.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, ShuffleSplit
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers, few, many = rows.kinds
    columns = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), few + many)
    )
    held_out = ShuffleSplit(1, test_size=0.1, random_state=seed)
    search = GridSearchCV(
        LogisticRegression(max_iter=1000), {"C": STRENGTHS}, scoring="neg_log_loss", cv=held_out
    )
    return make_pipeline(columns, search)


def boosted_trees(rows: Rows, seed: int) -> Any:
    """Return boosted trees that a held-out tenth stops.

    Ids with many values become the mean of their label. Trees need no copy of a number as an id; with one
    they were worse on the visits. The folds of the means are drawn anew, whatever the seed.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder, TargetEncoder

    numbers, few, many = rows.kinds
    copies = {len(numbers) + at for at in rows.copies}
    few, many = ([column for column in kind if column not in copies] for kind in (few, many))
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    columns = make_column_transformer(
        (ordinal, few),
        ("passthrough", numbers),
        (TargetEncoder(target_type="binary"), many),
    )
    trees = HistGradientBoostingClassifier(
        max_iter=1000,
        early_stopping=True,
        categorical_features=list(range(len(few))) or None,
        random_state=seed,
    )
    return make_pipeline(columns, trees)


def floor_quality(job: Job, floor: Floor) -> QualitySums:
    """Fit a floor to a job's training rows; score it as the job is."""
    source, sums = BatchSource(job), QualitySums()
    batches = list(_first_epoch(source))
    progressive = [batch.id.span in source.plan.progressive for batch in batches]
    rows = _rows([*batches, *source.scored(source.plan.validation)], _copies(job))
    if not any(progressive):
        _score(floor(rows, job.run.seed), rows, _rows(source.scored(source.plan.test)), sums)
        return sums
    first = sum(len(batch.labels) for batch, scored in zip(batches, progressive, strict=True) if not scored)
    for start in range(first, len(rows.labels), WINDOW):
        before = _part(rows, 0, start)
        _score(floor(before, job.run.seed), before, _part(rows, start, start + WINDOW), sums)
    return sums


def _score(model: Any, train: Rows, scored: Rows, sums: QualitySums) -> None:
    model.fit(train.features, train.labels)
    chance = model.predict_proba(scored.features)[:, 1].clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    sums.add(np.log(chance / (1 - chance)).astype(np.float32), scored.labels)


def _first_epoch(source: BatchSource) -> Iterable[Delivery]:
    while (batch := source.next()) is not None and batch.id.epoch == 0:
        yield batch


def _copies(job: Job) -> tuple[int, ...]:
    columns = job.data.columns
    dense = {column.source or name for name, column in columns.items() if column.kind == "dense"}
    return tuple(at for at, column in enumerate(job.embedded_columns) if columns[column.name].source in dense)


def _rows(batches: Iterable[Delivery], copies: tuple[int, ...] = ()) -> Rows:
    whole = list(batches)
    return Rows(
        np.concatenate([batch.dense for batch in whole]),
        np.concatenate([batch.rows.T.astype(np.int64) for batch in whole]),
        np.concatenate([batch.labels for batch in whole]),
        copies,
    )


def _part(rows: Rows, start: int, stop: int) -> Rows:
    return Rows(rows.dense[start:stop], rows.ids[start:stop], rows.labels[start:stop], rows.copies)
