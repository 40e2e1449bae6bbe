"""The report's figures of quality: in training, on held-out files, of validations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from ..types import ResultModel


class ProgressiveLabel(ResultModel):
    """Quality of one of several labels, see `Progressive`."""

    ne: NonNegativeFloat | None
    auc: NonNegativeFloat | None
    auc_error: NonNegativeFloat | None
    logloss: NonNegativeFloat | None


class Progressive(ResultModel):
    """Quality on the last part of training, each batch scored before its step.

    Attributes:
        model: the model that scored, in words: the replica that trains the batch.
        examples: number of scored examples. It may be less than `trained`, because the scores of a trainer
            that died are lost.
        trained: number of trained examples of this part in the first epoch.
        ne, auc, auc_error: None if nothing was scored or all labels are the same.
        logloss: None if nothing was scored, or by scores that are no logits.
        labels: of a job with several labels, the figures of each by its name.
    """

    model: str
    examples: NonNegativeInt
    trained: NonNegativeInt
    ne: NonNegativeFloat | None
    auc: NonNegativeFloat | None
    auc_error: NonNegativeFloat | None
    logloss: NonNegativeFloat | None
    labels: dict[str, ProgressiveLabel] = {}


class HourOfLabel(ResultModel):
    """Figures of one of several labels in an hour, see `TrainedHour`."""

    ne: NonNegativeFloat | None
    label_rate: NonNegativeFloat | None


class TrainedHour(ResultModel):
    """The training of one hour of the job, scored before each step.

    Attributes:
        hour: number of the hour since the job's start, from 0.
        ne: None if all labels of the hour are the same.
        labels: of a job with several labels, the figures of each by its name.
    """

    hour: NonNegativeInt
    examples: NonNegativeInt
    ne: NonNegativeFloat | None
    label_rate: NonNegativeFloat | None
    labels: dict[str, HourOfLabel] = {}


class Train(ResultModel):
    """Quality in training. Figures of quality are weighted by sample weights, counts are not.

    Attributes:
        ne_progressive: normalized entropy of all trained examples, each scored before it was trained on.
        ne_by_label: the same of each label by its name, of a job with several labels.
        progressive: quality on the job's progressive part.
        rows_warmup_examples: see `Job`.
        hours: the hours in which something was trained.
    """

    ignored_fields = frozenset({"dense_updates"})

    ne_progressive: NonNegativeFloat | None
    ne_by_label: dict[str, NonNegativeFloat | None] = {}
    progressive: Progressive | None = None
    rows_warmup_examples: NonNegativeInt = 0
    hours: list[TrainedHour] = []


class CalibrationPart(ResultModel):
    """An equal part of the examples: weight, mean prediction, mean label."""

    examples: NonNegativeFloat
    predicted: NonNegativeFloat
    rate: NonNegativeFloat


class LabelQuality(ResultModel):
    """Quality of one label on the held-out files.

    `ne`, `auc`, `calibration`, `pr_auc` and `lift` are None if all labels are the same; what needs
    probabilities is None, and the curve empty, with `model.scores = "own"`. `auc_error` bounds
    the error of `auc`, which comes from its histogram. `pr_auc`, `lift`, `calibration_error` and
    `calibration_curve` are those of `pipeline.metrics.ranking`.
    """

    ne: NonNegativeFloat | None
    auc: NonNegativeFloat | None
    auc_error: NonNegativeFloat | None = None
    logloss: NonNegativeFloat | None
    calibration: NonNegativeFloat | None
    pr_auc: NonNegativeFloat | None = None
    lift: NonNegativeFloat | None = None
    calibration_error: NonNegativeFloat | None = None
    calibration_curve: list[CalibrationPart] = []


class GroupQuality(ResultModel):
    """Quality within the groups of the held-out files; the fields are those of `metrics.top_k.GroupRanking`.

    `column` is `validation.group`, and `label` one of several labels.
    """

    column: str
    label: str = ""
    k: Annotated[int, Field(ge=1)]
    ndcg: NonNegativeFloat | None
    recall: NonNegativeFloat | None
    map: NonNegativeFloat | None
    groups: NonNegativeInt
    groups_without_positive: NonNegativeInt
    rows_without_group: NonNegativeInt
    rows_left_out: NonNegativeInt


class RetrievalFigures(ResultModel):
    """Retrieval on the held-out files by the saved model; see `metrics.retrieval.RetrievalQuality`.

    `catalogue` is `validation.items`, `column` is `validation.group`, and `without_trained` is
    `validation.exclude_trained`.
    """

    catalogue: str
    column: str = ""
    without_trained: bool
    k: Annotated[int, Field(ge=1)]
    recall: NonNegativeFloat | None
    ndcg: NonNegativeFloat | None
    hit: NonNegativeFloat | None
    mrr: NonNegativeFloat | None
    queries: NonNegativeInt
    items: NonNegativeInt
    rows: NonNegativeInt
    rows_not_in_catalogue: NonNegativeInt
    rows_without_group: NonNegativeInt
    rows_left_out: NonNegativeInt


class Evaluation(LabelQuality):
    """Quality on the held-out files, of the model that `model` names.

    Of a job with several labels it is that of the first, and `labels` has that of each label by name;
    otherwise `labels` is empty. `within_groups` is there for a job with `validation.group`, `retrieval` for
    one with `validation.items`, and `own` has the metrics of `validation.own`. `bad_rows` were malformed, and
    training did not count them already. `teacher_ne` and `gain_ratio` exist for generated logs only.
    """

    model: str
    examples: Annotated[int, Field(ge=1)]
    bad_rows: NonNegativeInt = 0
    labels: dict[str, LabelQuality] = {}
    within_groups: GroupQuality | None = None
    retrieval: RetrievalFigures | None = None
    own: dict[str, float | None] = {}
    teacher_ne: NonNegativeFloat | None = None
    gain_ratio: float | None = None


class Validation(ResultModel):
    """Checkpoints that were scored during training; their values are `curves.validation`.

    Attributes:
        failed: number of validations without a score; the events say why.
        skipped: number of validations that were due while too many others waited.
        waited_seconds: time for which training waited for validations.
        best: the metric's best value; None if no checkpoint could be scored.
        best_examples: number of trained examples at the best checkpoint.
        best_metrics: all metrics of the best checkpoint, by name, those of a further label as "ne/LABEL".
        folder: where the best checkpoint is, in the run's folder.
        best_is_last: whether the last checkpoint is the best one.
    """

    metric: str
    count: NonNegativeInt
    failed: NonNegativeInt = 0
    skipped: NonNegativeInt = 0
    waited_seconds: NonNegativeFloat = 0.0
    best: float | None
    best_examples: NonNegativeInt | None
    best_metrics: dict[str, float] = {}
    folder: str | None
    best_is_last: bool
