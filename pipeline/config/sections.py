"""Base of all sections of a job file, and the small sections.

The sections here: run, start, sync, checkpoint, validation, watch and report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from ..types import GROUP_METRICS, MAX_PORT, MOST_TOP_ROWS, RANKED_METRICS, TRAINING_ITEMS
from .storage_url import storage_fault

# Strict types, frozen, no unknown keys. An option that is inf must reach the other nodes as inf; pydantic
# would write null.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

LOOPBACK = "127.0.0.1"


class Section(BaseModel):
    """Base of the sections: strict types, no unknown keys, frozen."""

    model_config = STRICT


class RunSection(Section):
    """Name, seed, folder and timeouts of a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = Field(
        default="job",
        description="Name of the run's folder. If the folder exists, NAME-2, NAME-3, ... is used. In a job"
        " file it defaults to the name of the file.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=1,
        description="Seed of the initial weights and embedding rows, of shuffling, and of groups that are"
        " drawn at random.",
    )
    deterministic: bool = Field(
        default=False,
        description="Produce the same bits from the same job, every time. It needs one trainer with one"
        ' worker, one reader, and sync.mode = "fixed" or sync.algorithm = "none". Checkpoints during'
        " training, and so the best one, may be after a few batches more or less.",
    )
    directory: str = Field(
        default="runs", description="Parent of the run folders, relative to the working directory."
    )
    storage: str = Field(
        default="",
        description="URL of the checkpoints, s3://BUCKET/PREFIX, gs://, az:// or file:///FOLDER, where each"
        " node writes its own part (docs/storage.md). Empty: in the run folder, on a file system that all"
        " nodes share.",
    )
    keep_checkpoints: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1,
        description="How many of the last checkpoints stay, as `step-N` after N trained examples, for"
        " `--which step-N` and `resume --from step-N`; beside the best one. Each costs what changed until the"
        " next.",
    )
    node_timeout_seconds: Seconds = Field(
        default=15.0, description="A node that sends nothing for this long is declared dead."
    )
    start_timeout_seconds: Seconds = Field(
        default=60.0, description="How long to wait at the start until all nodes have joined."
    )
    restarts: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=10,
        description="How often `shadowsync run` replaces each node that dies while the job trains.",
    )
    rejoin_seconds: Seconds = Field(
        default=60.0,
        description="How long a job waits until one joins, before it stops: without a reader, without one of"
        " its embedding nodes, or without a trainer while a center has the model.",
    )
    coordinator_wait_seconds: Seconds | None = Field(
        default=None,
        description="How long nodes train on without a connection to the coordinator, until they end. Left"
        " out: two node timeouts. An engine that starts a coordinator again may need longer.",
    )
    background_priority: Literal["low", "normal"] = Field(
        default="low",
        description='"low": checkpoints and validations beside training yield to it; "normal": they do not.',
    )

    @field_validator("storage")
    @classmethod
    def _storage_url(cls, url: str) -> str:
        if url and (fault := storage_fault(url)):
            raise ValueError(f"run.storage: {url!r} given; {fault}")
        return url


class StartSection(BaseModel):
    """The start of a run: initial values, or another run's checkpoint."""

    model_config = STRICT

    checkpoint: str = Field(
        default="",
        description="Folder of the run or of the checkpoint to start from, relative to the folder of the job"
        " file, or the URL of a storage or of a checkpoint in it. Empty: start from initial values.",
    )
    which: Annotated[str, Field(pattern=r"^(last|best|step-(0|[1-9][0-9]*))$")] = Field(
        default="last",
        description='Which checkpoint of that run: "last"; "best", the best one by validation; or "step-N",'
        " that after N examples, see `run.keep_checkpoints`.",
    )
    dense: Literal["matching", "all", "none"] = Field(
        default="matching",
        description="Which dense parameters to load: those of the same name and shape, and of first layers"
        " what belongs to columns that both have; all (another model is then refused); or none.",
    )
    resume: bool = Field(
        default=False,
        description="Continue that run, as `shadowsync resume` does: its ledger, optimizer states and"
        " replicas are restored, and what it trained is not trained again.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> StartSection:
        if self.resume and not self.checkpoint:
            raise ValueError(
                "start.resume: true given; it needs start.checkpoint, use `shadowsync resume RUN`"
            )
        if self.resume and self.dense != "matching":
            raise ValueError(
                f'start.dense: "{self.dense}" given; a resumed run takes its whole model, leave it out'
            )
        return self


class SyncSection(Section):
    """Synchronization of the replicas.

    `shadowsync algos` lists the algorithms and their options.
    """

    algorithm: str = Field(
        default="bmuf",
        description="`bmuf`, `easgd`, `decoupled`, `ma`, `gaia`, `ds_sync`, `tree`, `none`, or your own,"
        ' "package.module:Class" or "./file.py:Class".'
        " Default of a job with one trainer: `easgd` with `elastic_rate = 1`, for a center that outlives the"
        " trainer.",
    )
    mode: Literal["shadow", "fixed"] = Field(
        default="shadow",
        description='"shadow": in the background, while training continues; "fixed": in the training loop,'
        " after every `every` iterations.",
    )
    every: Positive = Field(default=30, description="fixed: iterations of a worker between two rounds.")
    duty: Fraction = Field(
        default=0.01,
        description="shadow: share of one core, and of `link_bytes_per_second`, that rounds may use.",
    )
    gap: Positive | None = Field(
        default=None,
        description="shadow: iterations of a trainer, over all its workers, between round starts; `duty` may"
        " make it more. Default: as few as `duty` allows.",
    )
    start_iterations: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="shadow, with `gap`: for a trainer's first N iterations, the gap grows evenly from 1 to"
        " `gap`.",
    )
    start_duty: Fraction | None = Field(
        default=None,
        description="shadow, with `gap`: `duty` during the first `start_iterations`. Default: `duty`.",
    )
    optimizer_state: Literal["own", "synchronized"] = Field(
        default="own",
        description='"synchronized": rounds also synchronize the state of `trainer.optimizer`, as they do the'
        " weights, which adds the bytes of one (Adagrad) or two (Adam) models to each round."
        ' "own": each trainer keeps its own state.',
    )
    nodes: Annotated[int, Field(ge=0)] = Field(
        default=1,
        description="Number of sync nodes, for an algorithm with a center; others have none and ignore this."
        " To start nodes one by one with an algorithm of your own, give it: 0 without a center.",
    )
    chunk_bytes: Annotated[int, Field(ge=1 << 12, le=64 << 20)] = Field(
        default=1 << 20, description="Size of the chunks in which parameters are sent."
    )
    link_bytes_per_second: Rate | None = Field(
        default=None,
        description="shadow: bandwidth of the link, of which `duty` limits the use; without it `duty` limits"
        " CPU time only.",
    )
    timeout_seconds: Seconds = Field(
        default=10.0,
        description="How long a round waits for a peer or a sync node before it continues without it.",
    )
    options: dict[str, JsonValue] = Field(default={}, description="Options of the algorithm.")

    @model_validator(mode="after")
    def _consistent(self) -> SyncSection:
        if self.start_iterations and self.gap is None:
            raise ValueError(
                f"sync.start_iterations: {self.start_iterations} given; set sync.gap, which the gap grows to"
            )
        if self.start_duty is not None and not self.start_iterations:
            raise ValueError(
                f"sync.start_duty: {self.start_duty} given; set sync.start_iterations, for which it holds"
            )
        return self


class CheckpointSection(BaseModel):
    """Checkpoints during training; one is always written at the end.

    Training never waits for a disk. An embedding node writes all its rows once, while it serves, and then
    those that changed; when these come to half of all rows, it writes all of them again. Rows are copied a
    few MB at a time, for which lookups and pushes wait; the last ones, which changed meanwhile, are copied at
    once. If there is not enough memory for them, no checkpoint is taken, and the report says so. A checkpoint
    takes up to one and a half times the rows on the disk, and twice that while all rows are written again.

    If both keys are set, whichever is due first counts.
    """

    model_config = STRICT

    every_examples: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Take a checkpoint each time all trainers together have trained this many examples. 0:"
        " never.",
    )
    every_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=60.0,
        description="Take a checkpoint after every this many seconds. 0: never. If an embedding node dies,"
        " the batches since then are trained again.",
    )


VALIDATION_METRICS: Final = {
    "ne": False,
    "logloss": False,
    "calibration_error": False,
    "auc": True,
    "pr_auc": True,
    "lift": True,
}
"""The metrics that a best checkpoint is chosen by, and whether a higher value is better.

Beside them are GROUP_METRICS and RANKED_METRICS with a number of rows, as in "ndcg@10", and "mrr"; their
higher values are better."""

TOP_ROWS: Final = 10
"""Rows of a group, or items, that count where `validation.metric` names no number of them."""
MRR: Final = "mrr"


def rows_that_count(metric: str) -> int | None:
    """Return the k of a metric as "ndcg@10" or "ndcg@10/LABEL"; None for a metric of another kind.

    Raises ValueError for a k that is not a number from 1 to MOST_TOP_ROWS.
    """
    name, separator, rows = metric.partition("/")[0].partition("@")
    if not separator or name not in (*GROUP_METRICS, *RANKED_METRICS):
        return None
    if not (rows.isascii() and rows.isdigit() and 1 <= int(rows[:9]) <= MOST_TOP_ROWS):
        raise ValueError(
            f"validation.metric: {metric!r} given; give {name} with a number of rows from 1 to"
            f" {MOST_TOP_ROWS}, such as {name}@{TOP_ROWS}"
        )
    return int(rows)


def catalogue_of_towers(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section of a job of two towers with what its items are ranked among.

    That is the items of the training part, unless the section says what, or has a metric of another kind.
    """
    metric = str(body.get("metric", MRR))
    if "items" in body or (metric != MRR and metric.partition("@")[0] not in RANKED_METRICS):
        return body
    return {"items": TRAINING_ITEMS, **body}


class ValidationSection(BaseModel):
    """Validation during training: a separate process scores a checkpoint that was just written.

    The best checkpoint so far is kept in the run's folder as `best/`. Validation needs validation data:
    `data.validation_path` or `data.split.validation`. A job with such data scores its last checkpoint even if
    no key of this section is set. Training does not wait for a validation unless `wait` says so: up to 8
    checkpoints wait for theirs, and a further one is skipped, which the report says.
    """

    model_config = STRICT

    every_examples: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Validate each time all trainers together have trained this many examples. 0: never.",
    )
    every_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="Validate after every this many seconds of training. 0: never."
    )
    every_epochs: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Validate after every this many epochs. 0: never."
    )
    metric: str = Field(
        default="ne",
        description='The metric that decides which checkpoint is the best: the lowest "ne", "logloss" or'
        ' "calibration_error", or the highest "auc", "pr_auc" or "lift"; of a further label as in'
        ' "auc/bought". With `group` also the highest "ndcg@K", "recall@K" or "map@K" of the K rows of each'
        ' group with the highest scores, such as "ndcg@10". With `items` the highest "recall@K", "ndcg@K" or'
        ' "hit@K" of the first K items, or "mrr"; "recall@10" if it is left out. With `model.scores = "own"`'
        ' it is "auc" if it is left out.',
    )
    group: str = Field(
        default="",
        description='Column of kind "group": validations, held-out files and `shadowsync eval` have NDCG,'
        " recall and MAP of the first K rows of each of its groups, with the K of `metric`, else 10. With"
        " `items` a group is one query, to which the items of all its positive rows are relevant.",
    )
    items: str = Field(
        default="",
        description="two_tower, sequence: the catalogue, a file, glob or URL of items in the job's format, or"
        ' "training", the items of the training part. Validations, held-out files and `shadowsync eval` then'
        " have recall, NDCG and hit rate of the first K items, and MRR: each positive row's item is ranked"
        " among all items, and each row is a query unless `group` is given. If it is left out it is"
        ' "training", unless `metric` is of another kind, such as "auc", or `data.follow` is set.',
    )
    exclude_trained: bool = Field(
        default=False,
        description="`items`: a group's items that are in its positive rows of the training part are not"
        " ranked, but for those of its held-out rows; for the test and `shadowsync eval` neither are those of"
        " the validation part. It needs `group`, and 8 bytes of memory for each such pair.",
    )
    own: Annotated[list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]], Field(max_length=64)] = (
        Field(
            default=[],
            description="Metrics of your own model, by their names in the attribute `metrics` of its class."
            " Validations, `shadowsync eval` and the report's held-out figures have them, and `metric` may be"
            " one; higher is better.",
        )
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Stop early after this many validations in a row without an improvement; the run counts"
        " as successful. 0: never.",
    )
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0,
        description="How much better than the best value so far the metric must be to count as an"
        " improvement.",
    )
    wait: bool = Field(
        default=False,
        description="Training waits until the checkpoint is scored, so that `patience` stops it at once: for"
        " small data, on which an epoch takes less time than a validation.",
    )

    def _require_known(self) -> None:
        taken = [name for name in self.own if name in (*VALIDATION_METRICS, "calibration")]
        if taken or len(set(self.own)) < len(self.own):
            raise ValueError(
                f"validation.own: {self.own} given; give each name once, and none of a built-in metric"
            )
        metric, name = self.metric, self.metric.partition("/")[0]
        plain = (*VALIDATION_METRICS, *((MRR,) if self.items else ()))
        if rows_that_count(metric) is None and name not in plain and metric not in self.own:
            of_groups = ", ".join(f"{group_metric}@{TOP_ROWS}" for group_metric in GROUP_METRICS)
            raise ValueError(
                f"validation.metric: {metric!r} given; give one of"
                f" {', '.join((*VALIDATION_METRICS, *self.own))}, or with validation.group {of_groups}, or"
                f" with validation.items {', '.join((*(f'{of}@{TOP_ROWS}' for of in RANKED_METRICS), MRR))}"
            )

    @property
    def highest_is_best(self) -> bool:
        """Whether a higher value of the metric is better."""
        return VALIDATION_METRICS.get(self.metric.partition("/")[0], True)

    @model_validator(mode="after")
    def _consistent(self) -> ValidationSection:
        self._require_known()
        for key, value in (("wait", self.wait and "true"), ("patience", self.patience)):
            if value and not self.enabled:
                raise ValueError(
                    f"validation.{key}: {value} given; set validation.every_examples, every_seconds or"
                    f" every_epochs of [validation], or leave {key} out: the end is validated in any case"
                )
        self._require_ranked()
        return self

    def _require_ranked(self) -> None:
        """Raise ValueError for a metric, or an exclusion, without what it is of."""
        name, ranked = self.metric.partition("@")[0], rows_that_count(self.metric) is not None
        if self.items and ranked and name not in RANKED_METRICS:
            raise ValueError(
                f"validation.metric: {self.metric!r} given, and with validation.items whole catalogues are"
                f" ranked; give one of {', '.join(f'{of}@{TOP_ROWS}' for of in RANKED_METRICS)} or {MRR}"
            )
        if not self.items and name in RANKED_METRICS and name not in GROUP_METRICS:
            raise ValueError(
                f"validation.metric: {self.metric!r} given without a catalogue; name its items in"
                " validation.items"
            )
        if ranked and not self.items and not self.group:
            raise ValueError(
                f"validation.metric: {self.metric!r} given without groups; name a column of kind"
                ' "group" in validation.group'
            )
        for key, value in (("items", self.items), ("group", self.group)):
            if self.exclude_trained and not value:
                raise ValueError(
                    f"validation.exclude_trained: true given without validation.{key}; give that, or leave it"
                    " out"
                )

    @property
    def enabled(self) -> bool:
        """Whether checkpoints are validated during training."""
        return self.every_examples > 0 or self.every_seconds > 0 or self.every_epochs > 0


class WatchSection(BaseModel):
    """Ways to watch a run while it trains (docs/watching.md)."""

    model_config = STRICT

    web: str = Field(
        default="",
        description='Where the coordinator serves a web page of the job: "8080" (loopback) or "HOST:PORT".'
        " Empty: no page.",
    )
    tensorboard: bool = Field(
        default=False, description="Whether the coordinator writes TensorBoard event files to the run folder."
    )
    mlflow: str = Field(
        default="",
        description="Tracking URI of MLflow, where the coordinator writes scalars and settings: a server,"
        ' or "sqlite:///FILE". Empty: none.',
    )
    wandb: bool = Field(
        default=False,
        description="Whether the coordinator writes an offline run of Weights & Biases to the run folder.",
    )
    metrics_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = Field(
        default=0,
        description="Port of each node's Prometheus metrics, on `network.bind`; 0: none. Under"
        " `shadowsync run` this is the coordinator's port, and the nodes use the ports after it.",
    )

    @field_validator("web", mode="before")
    @classmethod
    def _port(cls, value: Any) -> Any:
        # So that `--set watch.web=8080` needs no quotes within quotes.
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("web")
    @classmethod
    def _address(cls, text: str) -> str:
        try:
            if text:
                parse_page_address(text)
        except ValueError as error:
            raise ValueError(f"watch.web: {error}") from error
        return text


class ReportSection(BaseModel):
    """The content of a report besides its figures."""

    model_config = STRICT

    pictures: bool = Field(
        default=True,
        description="Whether to draw the curves, as ne.png, throughput.png and sync_gap.png; their points are"
        " in report.json in any case.",
    )


def parse_page_address(text: str) -> tuple[str, int]:
    """Parse "8080" (on loopback) or "HOST:PORT" into host and port.

    Port 0 means any free port. Raises ValueError for anything else.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > MAX_PORT or (colon and not host):
        raise ValueError(f'"{text}" given; write a port, as "8080", or HOST:PORT, as "0.0.0.0:8080"')
    return host or LOOPBACK, int(port)
