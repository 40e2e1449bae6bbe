"""Quality of a saved model by the values of a column, and GAUC."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..data.columns.fields import as_unicode, is_text, plain_times
from ..errors import DataError
from ..metrics.quality import entropy
from ..metrics.top_k import GroupRanking, TopKSums
from .prediction import ScoringModel, label_number, score_files


@dataclass(frozen=True)
class SliceScores:
    """The quality over the rows with one value of the column.

    Attributes:
        value: the value as text; None for rows without a value.
        examples: number of rows.
        rate: mean label.
        ne: logloss divided by that of always predicting `rate`; None if all labels are the same.
        auc: area under the ROC curve; None if all labels are the same.
        calibration: mean prediction divided by `rate`; None without a positive label.
    """

    value: str | None
    examples: int
    rate: float
    ne: float | None
    auc: float | None
    calibration: float | None


@dataclass(frozen=True)
class Slices:
    """The quality by a column.

    Attributes:
        column: name of the column.
        gauc: mean AUC of the slices with both labels, weighted by their examples (Zhou et al., Deep Interest
            Network, arXiv 1706.06978, section 6.3); None if there is no such slice.
        gauc_slices, gauc_examples: number of slices and examples in `gauc`.
        ranking: the figures of the first rows of each value.
        slices: all slices, sorted by excess logloss, the largest first: the sum over a slice's rows of the
            logloss minus that of predicting the slice's rate. Of scores that are no logits they have no NE
            and no calibration, and are sorted by their examples.
    """

    column: str
    gauc: float | None
    gauc_slices: int
    gauc_examples: int
    ranking: GroupRanking
    slices: list[SliceScores]

    def as_dict(self, most: int) -> dict[str, Any]:
        """Return all figures, with the first `most` slices, for JSON."""
        plain = asdict(replace(self, slices=self.slices[:most]))
        return {**plain, "ranking": self.ranking.as_dict(), "all_slices": len(self.slices)}


def score_slices(
    model: ScoringModel, patterns: Sequence[str], column: str, label: str = "", k: int = 10
) -> Slices:
    """Score files by the values of any of their columns, and rank the first `k` rows of each value.

    `label` is the name of the label, by default the first. Rows without a label or a score are left out;
    sample weights are not used. Memory: about 20 bytes a row, besides the values. Raises DataError for a
    label that the model does not have, if no row is left, for a file that lacks the column or has lists
    there, and as `score_files`.
    """
    number = label_number(model, label)
    chunks = []
    for rows, logits in score_files(model, patterns, [column]):
        if pa.types.is_nested(rows.kept[column].type):
            raise DataError(
                f"column {column} has several values a row, so rows cannot be grouped by it",
                where=rows.path,
                remedy="give --by a column with one value",
            )
        chunk = pl.DataFrame(
            {
                "value": _as_text(rows.kept[column]),
                "label": rows.labels[number],
                "logit": logits if logits.ndim == 1 else logits[:, number],
            }
        )
        chunks.append(chunk.filter(pl.col("label").is_finite() & pl.col("logit").is_finite()))
    frame = pl.concat(chunks) if chunks else pl.DataFrame()
    if frame.is_empty():
        raise DataError(
            "no row has a label and a score", where=", ".join(patterns), remedy="give files with labels"
        )
    return _slices(column, frame, k, of_logits=model.job.model.has_logits)


def _ranking(frame: pl.DataFrame, k: int) -> GroupRanking:
    # Every value has a group of its own, which is exact, as memory has all rows anyway.
    sums = TopKSums(k, limit_bytes=sys.maxsize)
    groups = frame["value"].rank("dense").fill_null(0).cast(pl.UInt64).to_numpy()
    sums.add(frame["logit"].to_numpy(), frame["label"].cast(pl.Float32).to_numpy(), groups)
    return sums.result()


def _as_text(values: pa.Array) -> pl.Series:
    """Return values as texts.

    Bytes that are not UTF-8 become escapes, so that different ones stay apart. Times are in UTC, and
    durations numbers in the column's unit.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if is_text(values.type) or pa.types.is_fixed_size_binary(values.type):
        return pl.Series(pl.from_arrow(as_unicode(values)))
    if pa.types.is_temporal(values.type):
        texts = plain_times(values).cast(pa.large_string())
        return pl.Series(pl.from_arrow(pc.replace_substring_regex(texts, r"\.0+$", "")))
    return pl.Series(values.to_pylist(), dtype=pl.String, strict=False)


def _slices(column: str, frame: pl.DataFrame, k: int, *, of_logits: bool) -> Slices:
    z, y = pl.col("logit").cast(pl.Float64), pl.col("label").cast(pl.Float64)
    # log(1 + exp(z)) - y z, without overflow.
    loss = pl.max_horizontal(z, 0.0) - y * z + (1 + (-z.abs()).exp()).log()
    ranked = frame.with_columns(
        loss=loss, prediction=1 / (1 + (-z).exp()), rank=z.rank("average").over("value")
    )
    by = ranked.group_by("value").agg(
        examples=pl.len(),
        positives=y.sum(),
        loss=pl.col("loss").mean(),
        prediction=pl.col("prediction").mean(),
        ranks=(pl.col("rank") * y).sum(),
    )
    scored = sorted(
        map(_scores, by.iter_rows(named=True)),
        key=lambda scores_of: (-scores_of[0], scores_of[1].value or ""),
    )
    slices = [scores for _, scores in scored]
    if not of_logits:
        slices = [replace(scores, ne=None, calibration=None) for scores in slices]
        slices.sort(key=lambda scores: -scores.examples)
    both = [scores_of for scores_of in slices if scores_of.auc is not None]
    examples = sum(scores_of.examples for scores_of in both)
    gauc = (
        sum(scores_of.examples * (scores_of.auc or 0.0) for scores_of in both) / examples
        if examples
        else None
    )
    return Slices(column, gauc, len(both), examples, _ranking(frame, k), slices)


def _scores(row: dict[str, Any]) -> tuple[float, SliceScores]:
    """Return a slice's excess logloss, summed over its rows, and its figures.

    The excess is over always predicting the slice's rate.
    """
    examples, positives = int(row["examples"]), float(row["positives"])
    negatives, rate = examples - positives, positives / examples
    of_mean, ne, auc = 0.0, None, None
    if positives and negatives:
        of_mean = entropy(rate)
        ne = float(row["loss"] / of_mean)
        auc = (float(row["ranks"]) - positives * (positives + 1) / 2) / (positives * negatives)
    calibration = float(row["prediction"]) / rate if rate else None
    excess = examples * (float(row["loss"]) - of_mean)
    return excess, SliceScores(row["value"], examples, rate, ne, auc, calibration)
