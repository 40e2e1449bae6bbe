"""The schema of a job file.

Every default here is the documented one; unknown keys are refused.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

from pydantic import ConfigDict, Field, model_validator

from ..types import NEED_PROBABILITIES, TRAINING_ITEMS, RankingSettings, RetrievalSettings
from .columns import suggest
from .data import DataSection
from .model import (
    ONE_LABEL_MODELS,
    TOWER_MODELS,
    EmbeddingSection,
    ModelSection,
    check_attention,
)
from .network import CodecsSection, NetworkSection
from .sections import (
    STRICT,
    TOP_ROWS,
    CheckpointSection,
    ReportSection,
    RunSection,
    Section,
    StartSection,
    SyncSection,
    ValidationSection,
    WatchSection,
    catalogue_of_towers,
    rows_that_count,
)
from .tables import (
    EmbeddedColumn,
    TableSection,
    TableSettings,
    columns_of,
    require_fixed_rows,
    require_growable,
    require_known,
    table_names,
    table_settings,
)
from .towers import (
    check_hard_negatives,
    check_history,
    check_towers,
    has_made_label,
    label_of_towers,
)
from .trainer import TrainerSection

ONE_TRAINER_SYNC: Final = {"algorithm": "easgd", "options": {"elastic_rate": 1.0}}
"""The default with one trainer: a center that has its model, from which whatever replaces it continues.

At this rate the center takes the replica's values and does not draw the replica back.
"""

LEAST_START_EXAMPLES: Final = 50_000
"""Examples of one trainer after which a model has begun to learn, in all that was measured."""


class Job(Section):
    """A whole job file, with all defaults filled in.

    `digest` covers what all nodes must agree on.
    """

    # In the file `tables` has sections of some tables only; the property `tables` has all tables.
    model_config = STRICT | ConfigDict(serialize_by_alias=True)

    run: RunSection = RunSection()
    data: DataSection
    model: ModelSection = ModelSection()
    trainer: TrainerSection = TrainerSection()
    embedding: EmbeddingSection = EmbeddingSection()
    table_sections: dict[str, TableSection] = Field(default={}, alias="tables")
    sync: SyncSection = SyncSection()
    codecs: CodecsSection = CodecsSection()
    network: NetworkSection = NetworkSection()
    start: StartSection = StartSection()
    checkpoint: CheckpointSection = CheckpointSection()
    validation: ValidationSection = ValidationSection()
    watch: WatchSection = WatchSection()
    report: ReportSection = ReportSection()

    @model_validator(mode="before")
    @classmethod
    def _one_trainer(cls, tree: Any) -> Any:
        """Choose the algorithm of a job with one trainer that names none."""
        if not isinstance(tree, dict):
            return tree
        sync, trainer = tree.get("sync", {}), tree.get("trainer", {})
        if not (isinstance(sync, dict) and isinstance(trainer, dict)) or "algorithm" in sync:
            return tree
        alone = trainer.get("count", 1) == 1
        return tree | {"sync": ONE_TRAINER_SYNC | sync} if alone else tree

    @model_validator(mode="before")
    @classmethod
    def _metric_of_scores(cls, tree: Any) -> Any:
        """Choose the metric of a job whose scores have no NE, and that names none; and what towers rank."""
        if not isinstance(tree, dict):
            return tree
        model, validation = tree.get("model", {}), tree.get("validation", {})
        if not (isinstance(model, dict) and isinstance(validation, dict)):
            return tree
        towers, data = model.get("name") in TOWER_MODELS, tree.get("data", {})
        if towers and isinstance(data, dict) and not data.get("follow"):
            validation = catalogue_of_towers(validation)
        if not towers and model.get("scores") != "own":
            return tree
        metric = f"recall@{TOP_ROWS}" if validation.get("items") else "auc"
        return tree | {"validation": {"metric": metric} | validation}

    @model_validator(mode="before")
    @classmethod
    def _label_of_towers(cls, tree: Any) -> Any:
        """Give a job of two towers without a label one that is 1 in every row."""
        if not (isinstance(tree, dict) and isinstance(tree.get("data"), dict)):
            return tree
        data = tree["data"]
        label = label_of_towers(tree.get("model"), data.get("columns"))
        return tree | {"data": data | {"columns": data["columns"] | label}} if label else tree

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        rows, tables = self.model.table_rows, len(table_names(self.data.table_columns))
        if isinstance(rows, list) and len(rows) != tables:
            key = "data.columns" if self.data.columns else "data.categorical_features"
            raise ValueError(
                f"model.table_rows: {len(rows)} numbers given; give one number, or one for each of the "
                f"{tables} tables ({key})"
            )
        require_known(self.table_sections, self.data.table_columns)
        require_fixed_rows(
            self.data.table_columns, rows if isinstance(rows, list) else None, self.table_sections
        )
        check_attention(self.model, self.embedded_columns)
        check_hard_negatives(self.model, self.embedded_columns)
        check_towers(self.model, self.embedded_columns, self.data.dense_names)
        check_history(self.model, self.embedded_columns, self.data.columns)
        require_growable(self.data.table_columns, self.table_sections)
        if self.run.deterministic:
            self._require_same_bits()
        if self.model.loss != "log" and self.data.negative_share != 1.0:
            raise ValueError(
                f"data.negative_share: {self.data.negative_share:g} given; scores of the {self.model.loss}"
                ' loss cannot be calibrated back: leave it out, or set model.loss = "log"'
            )
        self._require_own_figures()
        return self

    @model_validator(mode="after")
    def _endless(self) -> Job:
        """Raise ValueError for what never comes in a job that follows its input."""
        if self.data.follow and self.validation.every_epochs:
            raise ValueError(
                f"validation.every_epochs: {self.validation.every_epochs} given; with data.follow no epoch "
                "ends, so set every_examples or every_seconds"
            )
        return self

    @model_validator(mode="after")
    def _groups(self) -> Job:
        """Raise ValueError for a column of groups that is not there."""
        columns = self.data.group_names
        if self.validation.group and self.validation.group not in columns:
            remedy = (
                suggest(self.validation.group, columns)
                if columns
                else f'add one to data.columns, such as {self.validation.group}_group = {{ kind = "group",'
                f' source = "{self.validation.group}" }}'
            )
            raise ValueError(
                f'validation.group: {self.validation.group!r} is no column of kind "group"; {remedy}'
            )
        return self

    @model_validator(mode="after")
    def _catalogue(self) -> Job:
        """Raise ValueError for a catalogue that a model, or a job that follows its input, cannot have."""
        items = self.validation.items
        if items and not self.model.has_towers:
            raise ValueError(
                f"validation.items: {items!r} given; it is for {' or '.join(TOWER_MODELS)}, and model.name is"
                f' "{self.model.name}": leave it out'
            )
        if self.data.follow and self.retrieval is not None and self.retrieval.needs_training_part:
            key = "items" if items == TRAINING_ITEMS else "exclude_trained"
            raise ValueError(
                f"validation.{key}: {getattr(self.validation, key)!r} given; with data.follow the training"
                " part has no end: " + ("give a file of items" if items == TRAINING_ITEMS else "leave it out")
            )
        if self.data.has_held_out and not items and has_made_label(self.model, self.data.columns):
            raise ValueError(
                "validation.items: not given, and without a label each row is a positive, so nothing but the"
                " rank among items says how good the model is: give a file of items"
                + ("" if self.data.follow else f', or "{TRAINING_ITEMS}"')
            )
        return self

    @model_validator(mode="after")
    def _several_labels(self) -> Job:
        """Raise ValueError for what has a meaning for one label only, and for a label that is not there."""
        names = self.data.label_names
        further = self.validation.metric.partition("/")[2]
        if "/" in self.validation.metric and further not in names[1:]:
            known = (
                f"give one of {', '.join(names[1:])}"
                if len(names) > 1
                else "there is one label: leave it out"
            )
            raise ValueError(
                f"validation.metric: {self.validation.metric!r} given; {further!r} is no further label;"
                f" {known}"
            )
        if len(names) == 1:
            return self
        labels = f"data.columns has {len(names)} labels ({', '.join(names)})"
        if self.model.name in ONE_LABEL_MODELS:
            raise ValueError(
                f"model.name: {self.model.name!r} has one logit, and {labels}: give"
                f' "shared_bottom", "mmoe", "ple" or your own model'
            )
        if not isinstance(self.model.output_bias, str):
            raise ValueError(
                f"model.output_bias: {self.model.output_bias:g} given, and {labels}: give"
                ' "label_rate" or "drawn"'
            )
        if self.data.negative_share != 1.0:
            raise ValueError(
                f"data.negative_share: {self.data.negative_share:g} given, and {labels}: without negatives of"
                " one, the scores of the others cannot be calibrated back; leave it out"
            )
        return self

    def _require_same_bits(self) -> None:
        """Raise ValueError for what is not the same in each run of a deterministic job."""
        for key, value in (
            ("trainer.count", self.trainer.count),
            ("trainer.workers", self.trainer.workers),
            ("data.readers", self.data.readers),
        ):
            if value != 1:
                raise ValueError(f"{key}: {value} given; run.deterministic = true needs 1")
        if self.sync.mode != "fixed" and self.sync.algorithm != "none":
            raise ValueError(
                'sync.mode: "shadow" given; run.deterministic = true needs "fixed", '
                'or sync.algorithm = "none"'
            )
        if self.model.dropout:
            raise ValueError(
                f"model.dropout: {self.model.dropout:g} given; what it drops is not the same in each run,"
                " so run.deterministic = true needs 0"
            )
        if self.data.follow:
            raise ValueError(
                "data.follow: true given; when files come is not the same in each run, so"
                " run.deterministic = true needs false"
            )
        if self.validation.patience:
            raise ValueError(
                f"validation.patience: {self.validation.patience} given; how much is trained when a"
                " validation is due is not the same in each run, so run.deterministic = true needs 0"
            )
        for name, section in self.table_sections.items():
            if section.evict_after_seconds:
                raise ValueError(
                    f"tables.{name}.evict_after_seconds: {section.evict_after_seconds:g} given; when rows"
                    " are freed is not the same in each run, so run.deterministic = true needs 0"
                )

    def _require_own_figures(self) -> None:
        """Raise ValueError for what a loss or scores of one's own leave without a meaning."""
        if self.validation.own and ":" not in self.model.name:
            raise ValueError(
                f"validation.own: given; it is for a model of your own, and {self.model.name!r} is built in"
            )
        if self.model.has_own_loss and any(weight != 1.0 for weight in self.data.loss_weights):
            raise ValueError(
                f'data.columns: a loss_weight is given, and model.loss = "{self.model.loss}" has all labels'
                " in one loss; leave it out"
            )
        metric = self.validation.metric
        if not self.model.has_logits and metric.partition("/")[0] in NEED_PROBABILITIES:
            raise ValueError(
                f"validation.metric: {metric!r} needs probabilities, which scores of model.scores ="
                f' "{self.model.scores}" are not; give "auc", "pr_auc", "lift", or with validation.group'
                ' "ndcg@10"'
            )

    @property
    def tables(self) -> tuple[TableSettings, ...]:
        """All tables with their settings, in the order of their first columns."""
        columns, rows, rules = self.data.table_columns, self.model.table_rows, self.embedding
        every = TableSettings(
            name="",
            rows=0,
            dim=self.model.embedding_dim,
            optimizer=rules.optimizer,
            lr=rules.lr,
            weight_decay=rules.weight_decay,
            init_scale=rules.init_scale,
            storage=rules.storage,
            folder=rules.folder,
        )
        counts = rows if isinstance(rows, list) else [rows] * len(table_names(columns))
        return table_settings(columns, every, counts, self.table_sections, self.model.table_kind)

    @property
    def embedded_columns(self) -> tuple[EmbeddedColumn, ...]:
        """The columns whose ids have rows of a table, in the order of the model's embeddings."""
        return columns_of(self.tables)

    @property
    def column_rows(self) -> tuple[int, ...]:
        """Rows of the table of each of `embedded_columns`."""
        return tuple(column.table.rows for column in self.embedded_columns)

    @property
    def growing_columns(self) -> tuple[str, ...]:
        """Names of the columns whose tables grow, in the order of the model's embeddings."""
        return tuple(column.name for column in self.embedded_columns if column.grows)

    @property
    def growing_tables(self) -> tuple[str, ...]:
        """Names of the tables that grow, in the order of `tables`."""
        return tuple(table.name for table in self.tables if table.growth is not None)

    @property
    def hashed_tables(self) -> dict[str, int]:
        """Rows of the tables in which ids can share one, by name."""
        own_rows = {column.table for column in self.data.table_columns if column.fixed_rows is not None}
        return {
            table.name: table.rows
            for table in self.tables
            if table.growth is None and table.name not in own_rows
        }

    @property
    def model_inputs(self) -> tuple[int, list[int]]:
        """Number of dense features, and the width of each embedding."""
        return self.data.dense_width, [column.dim for column in self.embedded_columns]

    @property
    def logit_offset(self) -> float:
        """The number that is added to a logit to calibrate it.

        With a share s of the negatives and a weight w of positives the number is log(s / w): the logit of
        p / (p + (1 - p) w / s) is the logit of p plus log(s / w).
        """
        return math.log(self.data.negative_share) + self.model.logit_offset

    @property
    def ranking(self) -> RankingSettings | None:
        """What scorers rank within groups; None for nothing."""
        if not self.validation.group or self.validation.items:
            return None
        metric, labels = self.validation.metric, self.data.label_names
        rows, further = rows_that_count(metric), metric.partition("/")[2]
        group = list(self.data.columns_as("group")).index(self.validation.group)
        return RankingSettings(rows or TOP_ROWS, group, labels.index(further) if rows and further else 0)

    @property
    def retrieval(self) -> RetrievalSettings | None:
        """What validations rank among a whole catalogue; None for nothing."""
        validation = self.validation
        if not validation.items:
            return None
        groups = list(self.data.columns_as("group"))
        return RetrievalSettings(
            rows_that_count(validation.metric) or TOP_ROWS,
            validation.items,
            groups.index(validation.group) if validation.group in groups else None,
            validation.exclude_trained,
        )

    @property
    def ranking_label(self) -> str:
        """The end of the names of what is ranked within groups: "/LABEL" of a further label, else ""."""
        label = 0 if self.ranking is None else self.ranking.label
        return f"/{self.data.label_names[label]}" if label else ""

    @property
    def exact_rows(self) -> bool:
        """Whether trainers add their own pushes to the rows of a batch; see `TrainerSection.exact_rows`.

        With one worker that looks up nothing ahead, each lookup follows the pushes before it.
        """
        trainer = self.trainer
        is_in_flight = trainer.workers > 1 or trainer.lookups_ahead != 0
        return trainer.exact_rows and is_in_flight and not self.run.deterministic

    @property
    def depth_is_exact(self) -> bool:
        """Whether in the start a batch's rows are the same however far ahead it is looked up.

        So they are if they are exact and no other trainer pushes. Bags that nodes sum are not exact.
        """
        summed = any(table.summed_columns for table in self.tables)
        return self.exact_rows and self._starting_trainers == 1 and not summed

    @property
    def requests_distinct_rows(self) -> bool:
        """Whether each row of a batch is requested once."""
        return self.trainer.distinct_rows or self.exact_rows

    @property
    def one_trainer_begins(self) -> bool:
        """Whether one of several trainers goes through the start alone; the others then join it.

        Not without a warm-up of the rows, which a small data set has no examples for.
        """
        return self.trainer.count > 1 and self.embedding.warmup_iterations > 0

    @property
    def rows_warmup_examples(self) -> int:
        """Number of examples, of all trainers, over which row rates grow from 0."""
        return self.embedding.warmup_iterations * self.trainer.batch * self._starting_trainers

    @property
    def start_examples(self) -> int:
        """Number of examples, of all trainers, of the job's start.

        In it gradients agree, and those that were made of the same weights and rows go too far together. So
        no worker looks further ahead than at first, and if the rows have a warm-up, one trainer
        (`one_trainer_begins`) has one worker, without lookups ahead; with `depth_is_exact` lookups are as far
        ahead as ever. It is three times that warm-up, and at least so many examples that the model has begun
        to learn, however small its batches are.
        """
        return max(3 * self.rows_warmup_examples, LEAST_START_EXAMPLES * self._starting_trainers)

    def begins_at(self, worker: int) -> int:
        """Return after how many examples, of all trainers, a trainer's worker begins; 0 is the first one.

        With a warm-up of the rows one begins after the other: a model bears the more gradients of the same
        weights the more it has learned.
        """
        return worker * self.start_examples if self.rows_warmup_examples else 0

    def begun_workers(self, examples: int) -> int:
        """Return how many workers each trainer has when all trainers have trained so many examples."""
        return sum(examples >= self.begins_at(worker) for worker in range(self.trainer.workers))

    @property
    def _starting_trainers(self) -> int:
        return 1 if self.one_trainer_begins else self.trainer.count

    @property
    def sync_nodes(self) -> int:
        """Number of sync nodes; 0 of a job `without_center`."""
        return 0 if self.sync.algorithm == "none" else self.sync.nodes

    def without_center(self) -> Job:
        """Return the job of an algorithm that keeps no center, whatever the file says of sync nodes."""
        return self.model_copy(update={"sync": self.sync.model_copy(update={"nodes": 0})})

    @property
    def expected(self) -> dict[str, int]:
        """Number of nodes by role, without the coordinator."""
        return {
            "reader": self.data.readers,
            "trainer": self.trainer.count,
            "embedding": self.embedding.nodes,
            "sync": self.sync_nodes,
        }

    @property
    def digest(self) -> str:
        """Hex SHA-256 of all that the nodes must agree on.

        The digest leaves out `network`, `watch`, `report`, `data.kafka`, the place of the run folder and the
        trainer's device.
        """
        excluded = dict.fromkeys(("network", "watch", "report"), True)
        parts = {"run": {"directory"}, "data": {"kafka"}, "trainer": {"device"}}
        text = self.model_dump_json(exclude={**excluded, **parts})
        return hashlib.sha256(text.encode()).hexdigest()
