"""`[model]` and `[embedding]`: the model, and the nodes of its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, JsonValue, model_validator

from .columns import suggest
from .sections import Fraction, Positive, Rate, Section
from .tables import (
    EmbeddedColumn,
    MemoryBytes,
    RowDecayRate,
    RowOptimizerName,
    RowsSetting,
    RowStorageName,
    TableDim,
    TableKind,
)

OutputBias: TypeAlias = Annotated[float, Field(ge=-30, le=30, allow_inf_nan=False)]

# How a message shows it.
_ATTENTION_EXAMPLE: Final = '{ history = "item" }'


class EmbeddingSection(Section):
    """Embedding nodes and the optimizer of rows."""

    nodes: Positive = Field(
        default=1, description="Number of embedding nodes; the tables are split over them."
    )
    optimizer: RowOptimizerName = Field(
        default="rowwise_adagrad",
        description="Optimizer of the rows. Its state: `rowwise_adagrad` keeps one number per row, `adagrad`"
        " one per float, `adam` two per float and a count of the row's steps (lazy: a row without a gradient"
        " does not change).",
    )
    lr: Rate = Field(default=0.02, description="Learning rate of the rows.")
    weight_decay: RowDecayRate = Field(
        default=0.0,
        description="Decoupled weight decay of the rows: a step also takes lr * weight_decay * w off each row"
        " that it has (lazy: others keep their values).",
    )
    warmup_iterations: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0,
        description="Iterations over which the learning rate of the rows grows linearly from 0, in addition"
        " to `trainer.schedule`: the first gradients come from a dense model that has learned nothing yet."
        " Counted in examples: `warmup_iterations` * `trainer.batch`. Over three times as many, and at least"
        " 50,000 examples, one trainer trains alone, with one worker and without looking anything up ahead;"
        " then the others join it, and of its other workers one begins after as many examples again, until"
        " all do.",
    )
    init_scale: Rate = Field(
        default=0.05, description="Initial values are uniform in `[-init_scale, init_scale)`."
    )
    storage: RowStorageName = Field(
        default="float32",
        description="Type of the rows in a node's memory; `bfloat16` halves their size. Updates are computed"
        " in float32 and rounded stochastically, so that small ones are not lost; optimizer state, messages"
        " and checkpoints are float32.",
    )
    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1,
        description="Threads of a node that read and write rows; each row belongs to one of them. More than"
        " one helps on a host with free cores.",
    )
    placement: Literal["measured", "rows"] = Field(
        default="measured",
        description="How the tables are split over several nodes. `measured` reads a sample of the input,"
        " times lookups and updates, and balances their cost, while no node holds more than 1.25 times the"
        " mean of the bytes; `rows` balances the bytes, whatever is looked up. A run that is resumed with the"
        " same number of nodes keeps the split of its checkpoint.",
    )
    memory_fraction: Fraction = Field(
        default=0.8, description="Share of the free memory that the rows of a node may use."
    )
    memory_bytes: MemoryBytes = Field(
        default=0,
        description="Most bytes of memory for the rows of a node, with optimizer state and the search for"
        ' ids: a number, or "4GiB". Rows that do not fit lie in a file on the node\'s disk, and are brought'
        " into memory when they are used; values are the same to the bit. 0: all rows are in memory.",
    )
    folder: str = Field(
        default="",
        description="memory_bytes: folder of the file, on a local disk of the node. The file has room for"
        " all rows of the tables that do not fit, no name, and is gone when the node ends. Empty: /var/tmp.",
    )


ONE_LABEL_MODELS: Final = (
    "autoint",
    "dcn_v2",
    "deepfm",
    "din",
    "dlrm",
    "finalmlp",
    "sequence",
    "two_tower",
    "wide_deep",
)
"""Built-in models with one logit, or one score."""
TOWER_MODELS: Final = ("sequence", "two_tower")
"""Built-in models with a vector of the query and one of the item."""
IN_BATCH_SOFTMAX: Final = "in_batch_softmax"


class ModelSection(Section):
    """The dense model and the sizes of its tables."""

    name: str = Field(
        default="dlrm",
        description='"dlrm", "wide_deep", "dcn_v2", "deepfm", "autoint", "finalmlp" or "din"; for several'
        ' labels, too, "shared_bottom", "mmoe" or "ple"; for retrieval "two_tower" or "sequence"; or your'
        ' own: "package.module:Class" or "./file.py:Class".',
    )
    embedding_dim: TableDim = Field(default=16, description="Floats in a row of every table.")
    table_rows: RowsSetting | list[RowsSetting] = Field(
        default=100_000,
        description="Rows of every table, the most of a growing one; or a list with the rows of each.",
    )
    table_kind: TableKind = Field(
        default="growing",
        description="Kind of the tables that state neither kind nor rows, see `tables.NAME.kind`; if it is"
        ' left out and `table_rows` is given, "hashed". A column with a row for each value has neither'
        " kind.",
    )
    bottom: Annotated[list[Positive], Field(max_length=64)] = Field(
        default=[512, 256, 64],
        description="Hidden layer widths of dlrm's bottom MLP, over the dense features; widths of"
        " shared_bottom's shared layers, of each expert of mmoe and ple, and of finalmlp's first stream.",
    )
    top: Annotated[list[Positive], Field(max_length=64)] = Field(
        default=[512, 256],
        description="Hidden layer widths of the MLP that computes the logit; in shared_bottom, mmoe and ple"
        " each label has one, in two_tower each tower. In finalmlp the second stream; in autoint `[]`"
        " leaves the MLP out.",
    )
    output_bias: Literal["label_rate", "drawn"] | OutputBias = Field(
        default="label_rate",
        description='First value of the bias of the logit: "label_rate": the log-odds of the label rate in a'
        ' sample of the training rows, the same on every node; a number: that; "drawn": drawn at random, as'
        " the other weights. With several labels each logit has its own, and a number is refused. Your own"
        " model gets it by a method `set_output_bias(logit)`, and is not changed without one. A run that"
        " resumes or starts from a checkpoint keeps the bias that it loads.",
    )
    loss: Literal["log", "focal", "in_batch_softmax", "own"] = Field(
        default="log",
        description='What training minimizes: "log", the log loss; "focal", the log loss times (1 - p) to the'
        " power of `focal_gamma`, with the probability p of the true label. Focal scores are ranks: they are"
        ' not calibrated. "in_batch_softmax", that of two_tower and sequence: the log loss of the item that a'
        ' positive has, among the items of its batch. "own": what the method `loss(outputs, batch)` of your'
        " own model returns.",
    )
    scores: Literal["logits", "similarity", "own"] = Field(
        default="logits",
        description='What the model scores by: "logits", which `forward` returns; with loss = "own" also'
        ' "own", what the method `scores(outputs)` of your own model returns; "similarity", that of'
        " two_tower and sequence: the product of the vectors of query and item. Those two are no"
        " probabilities: nothing has NE, logloss or calibration.",
    )
    focal_gamma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = Field(
        default=None, description='loss = "focal": the power; 2.0 if it is left out.'
    )
    positive_weight: Rate = Field(
        default=1.0,
        description='loss = "log": factor of the loss of positives, of every label. Scores are calibrated'
        " back: log of it is taken from the logit.",
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description='loss = "log": trains on labels drawn toward 1/2, y (1 - e) + e / 2 with this e (Szegedy'
        " et al., arXiv 1512.00567, section 7). All figures are of the labels as they are; scores are drawn"
        " toward 1/2, too.",
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="Probability with which an output of a hidden layer is 0 in training (Srivastava et al.,"
        " JMLR 15, 2014); of the built-in models. Your own model has `model.options`.",
    )
    layer_norm: bool = Field(
        default=False,
        description="Whether hidden layers of the built-in models are normalized before their activation (Ba,"
        " Kiros, Hinton, arXiv 1607.06450).",
    )
    attention: dict[str, str] = Field(
        default={},
        description='din: for each column with pooling = "none", the column of one id whose vector it is'
        ' weighed by: `{ history = "item" }`. Their tables have the same dimension.',
    )
    query: list[str] = Field(
        default=[],
        description="two_tower, sequence: the columns of the query. Of sequence exactly one is a history: of"
        ' kind multi_hot, with pooling = "none", the table of the item, and `keep`.',
    )
    item: list[str] = Field(
        default=[],
        description="two_tower, sequence: the columns of the item. The first one is its id: a column of one"
        " id with a table; sequence has no others.",
    )
    negatives: str = Field(
        default="",
        description="two_tower, sequence: a column with hard negatives, items that a query is to score below"
        ' its own: of kind multi_hot, with pooling = "none" and the table of the item, whose id is its only'
        " column. Only training reads it, see docs/retrieval.md.",
    )
    options: dict[str, JsonValue] = Field(
        default={},
        description="Options of the model. dlrm: `project` (false), for tables of several dimensions. dcn_v2:"
        ' `cross_layers` (3), `rank` (0: full) and `structure` ("stacked" or "parallel"). din: `unit`'
        " ([36]), hidden layer widths of the attention unit, and `positions` (false), whether each place of"
        " a sequence has a vector that is learned. autoint: `layers` (3), `heads` (2) and `head_dim` (16)."
        " finalmlp: `heads` (1). mmoe: `experts` (8). ple: `levels` (2), `experts` (2) and `shared_experts`"
        " (2). two_tower: `dim` (32), the width of the vectors. sequence: `blocks` (2) and `heads` (1). Both:"
        " `temperature` (0.05), `normalized` (true) and `frequency_rate` (0.01), see docs/retrieval.md.",
    )

    @model_validator(mode="before")
    @classmethod
    def _kind_of_sized_tables(cls, body: Any) -> Any:
        # A size without a kind was a hashed table's before tables grew by default, also in a run's job.json.
        if isinstance(body, dict) and "table_rows" in body:
            return {"table_kind": "hashed", **body}
        return body

    @model_validator(mode="before")
    @classmethod
    def _loss_of_towers(cls, body: Any) -> Any:
        if isinstance(body, dict) and body.get("name") in TOWER_MODELS:
            return {"loss": IN_BATCH_SOFTMAX, "scores": "similarity", **body}
        return body

    @model_validator(mode="after")
    def _consistent(self) -> ModelSection:
        self._require_own()
        for key, value, needed in (
            ("loss", self.loss, IN_BATCH_SOFTMAX),
            ("scores", self.scores, "similarity"),
        ):
            if (value == needed) != self.has_towers:
                what = "has two towers" if self.has_towers else "has no towers"
                raise ValueError(f'model.{key}: "{value}" given, and {self.name} {what}: leave it out')
        if self.has_towers and not isinstance(self.output_bias, str):
            raise ValueError(
                f"model.output_bias: {self.output_bias:g} given; {self.name} has no logit: leave it out"
            )
        if self.loss != "focal" and self.focal_gamma is not None:
            raise ValueError(f'model.focal_gamma: {self.focal_gamma:g} given; it needs model.loss = "focal"')
        if self.loss != "log" and self.label_smoothing:
            raise ValueError(
                f"model.label_smoothing: {self.label_smoothing:g} given; the {self.loss} loss needs labels of"
                ' 0 and 1: leave it out, or set model.loss = "log"'
            )
        for key in ("dropout", "layer_norm"):
            if getattr(self, key) and ":" in self.name:
                raise ValueError(
                    f"model.{key}: given; it is for the built-in models: give your own by model.options"
                )
        if self.loss != "log" and self.positive_weight != 1.0:
            raise ValueError(
                f"model.positive_weight: {self.positive_weight:g} given; the {self.loss} loss has its own"
                ' weights: leave it out, or set model.loss = "log"'
            )
        return self

    def _require_own(self) -> None:
        """Raise ValueError for a loss or scores of its own of a model that cannot have them."""
        for key, value in (("loss", self.loss), ("scores", self.scores)):
            if value == "own" and ":" not in self.name:
                raise ValueError(
                    f'model.{key}: "own" given; it is a method of your own model, and {self.name!r} is'
                    " built in"
                )
        if self.scores == "own" and self.loss != "own":
            raise ValueError(
                f'model.scores: "own" given; the {self.loss} loss is one of logits: set model.loss = "own",'
                " too"
            )

    @property
    def has_own_loss(self) -> bool:
        """Whether the model's class computes the loss from its outputs."""
        return self.loss in (IN_BATCH_SOFTMAX, "own")

    @property
    def needs_negatives(self) -> bool:
        """Whether nothing is learned without rows of label 0, as where other items are no negatives."""
        return self.loss != IN_BATCH_SOFTMAX

    @property
    def has_logits(self) -> bool:
        """Whether scores are logits, so that there are probabilities."""
        return self.scores == "logits"

    @property
    def has_towers(self) -> bool:
        """Whether the model has a vector of the query and one of the item."""
        return self.name in TOWER_MODELS

    @property
    def has_history(self) -> bool:
        """Whether the query of the model has a sequence of items."""
        return self.name == "sequence"

    @property
    def gamma(self) -> float | None:
        """The power of the focal loss; None for the log loss."""
        if self.loss != "focal":
            return None
        return 2.0 if self.focal_gamma is None else self.focal_gamma

    @property
    def logit_offset(self) -> float:
        """The number that is added to a logit to undo `positive_weight`."""
        return -math.log(self.positive_weight)


def check_attention(model: ModelSection, columns: Sequence[EmbeddedColumn]) -> None:
    """Raise ValueError unless din, and din alone, has a target for each sequence.

    Args:
        model: the section [model].
        columns: the columns of the job whose ids have rows of a table.
    """
    if model.name != "din":
        if model.attention:
            raise ValueError(
                f'model.attention: given; it is for model.name = "din", this is "{model.name}": leave it out'
                " (a model of your own has model.options)"
            )
        return
    by_name = {column.name: column for column in columns}
    sequences = [column.name for column in columns if column.pooling == "none"]
    single = [column.name for column in columns if not column.pooling]
    for name, target in model.attention.items():
        if name not in sequences:
            raise ValueError(f"model.attention: {name!r} {_no_sequence(name, by_name, sequences)}")
        if target not in single:
            known = "has a list of ids" if target in by_name else "is no column with a table"
            raise ValueError(
                f"model.attention.{name}: {target!r} {known}; give a column of one id:"
                f" {suggest(target, single)}"
            )
        if by_name[name].dim != by_name[target].dim:
            raise ValueError(
                f"model.attention.{name}: the tables of {name} and {target} have {by_name[name].dim} and"
                f" {by_name[target].dim} floats in a row; give both the same dim"
                f" (tables.{by_name[name].table.name}.dim), or one table (data.columns.{name}.table)"
            )
    for name in sequences:
        if name not in model.attention:
            raise ValueError(
                f'model.attention: column {name} has pooling = "none" and no target; name one, as in'
                f' {_ATTENTION_EXAMPLE}, or set data.columns.{name}.pooling to "sum" or "mean"'
            )


def _no_sequence(name: str, known: dict[str, EmbeddedColumn], sequences: Sequence[str]) -> str:
    if name in known and known[name].pooling:
        return f'is pooled; set data.columns.{name}.pooling = "none"'
    if not sequences:
        return 'is no sequence; give a multi_hot column pooling = "none"'
    return f"is no sequence; {suggest(name, list(sequences))}"
