"""A saved model: a checkpoint's dense module and tables, for scoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from ..checkpoint.manifest import CheckpointManifest, Which, check_files, scored_files
from ..checkpoint.reader import TensorReader
from ..checkpoint.saved import Place, note_of, read_saved
from ..checkpoint.stored_files import StoredFiles
from ..config.job import Job
from ..config.model import TOWER_MODELS
from ..data.batch import Batch
from ..data.formats.parquet import IdClass
from ..embedding.storage.loaded_tables import LoadedTables
from ..embedding.storage.saved_changes import RowChanges
from ..embedding.storage.saved_tables import SavedTables
from ..errors import CheckpointError, DataError
from ..jobfile.load import validate_saved_job
from ..jobfile.named_code import code_of, require_trusted
from ..models.layers.sequences import with_lengths
from ..models.own.loss import ScoringModule, scoring
from ..models.own.metrics import OwnMetrics
from ..models.precision import DenseScorer, Precision, check_precision
from ..models.registry import build_model, find_model, takes_jagged
from ..models.training.constants import constant_tensors
from ..text.format import counted
from ..types import Float32Array, IndexArray
from .table import Table

REMEDY = "use the code of the model that it was trained with, or another checkpoint"


def load_dense(folder: Place, manifest: CheckpointManifest, job: Job) -> nn.Module:
    """Load the dense module with the saved weights and constants.

    The module is on the CPU, in evaluation mode, without gradients. Of a model that has its own scores it
    computes these. Raises CheckpointError if the
    checkpoint's parameters differ from the model's by name or shape, JobFileError if the model cannot be
    built.
    """
    module = build_model(job)
    reader = TensorReader(folder, scored_files(manifest))
    parameters, constants = dict(module.named_parameters()), dict(constant_tensors(module))
    tensors = {**parameters, **constants}
    _check_names(folder, set(reader.names), tensors.keys())
    with torch.no_grad():
        for name, parameter in tensors.items():
            if reader.shape(name) != tuple(parameter.shape):
                raise CheckpointError(
                    f"{name} has shape {list(reader.shape(name))}, but {list(parameter.shape)} in the model",
                    where=str(folder),
                    remedy=REMEDY,
                )
            parameter.copy_(torch.from_numpy(reader.read(name)))
    return scoring(job, module.eval().requires_grad_(False)).eval()


@dataclass(frozen=True, eq=False, repr=False)
class SavedModel:
    """The model that a run saved, in this process's memory.

    Any thread may use it. It changes only if an `update` is applied.

    Attributes:
        folder: folder of the checkpoint, or its place in a storage.
        manifest: the checkpoint's manifest; `manifest.model` says which model this is (a center, a mean, a
            replica).
        job: the job that trained it.
        dense: the dense module, on the CPU, in evaluation mode: `forward(dense [B, D], embeddings: list of
            [B, dim]) -> logits [B]`, or `[B, T]` of T labels. The embeddings are in the order of `tables`;
            that of a column with pooling "none" is an `EmbeddedSequence`, or a `JaggedSequence` for a model
            that takes these. Add `job.logit_offset` to calibrate
            the logits. With `model.scores = "own"` they are those scores.
        tables: for each column the table with the rows of its ids; columns that share one have the same rows
            in memory.
        id_classes: whether training read texts or integers as the ids of each column, if it read any.
    """

    folder: Place
    manifest: CheckpointManifest
    job: Job
    dense: nn.Module
    tables: Mapping[str, Table]
    id_classes: Mapping[str, IdClass]
    _scorer: DenseScorer
    _loaded: LoadedTables
    _saved: SavedTables
    _trust: bool
    _memory_bytes: int | None

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        which: Which = "auto",
        precision: Precision = "float32",
        *,
        trust: bool = False,
        memory_bytes: int | None = None,
    ) -> SavedModel:
        """Open the model in a run's or a checkpoint's folder, or in a storage.

        Args:
            path: folder of a run, for example "runs/latest", or of a checkpoint; or the URL of a storage, or
                of a checkpoint in it, whose files are fetched for as long as this takes.
            which: the "last" checkpoint of the run, or the "best" one by validation; "auto" is the best one
                if there is one, otherwise the last.
            precision: of the matrix products of all scores: "float32", or "bfloat16" as in training, which
                takes about half the time.
            trust: execute the Python code of its model, if it has its own, even though no job that this user
                started on this machine named that code.
            memory_bytes: the most memory for its tables, see `LoadedTables`.

        Raises CheckpointError for a checkpoint that is absent, truncated, altered, or of another model than
        its job; StorageError if a storage does not answer; ResourceError if its tables fit neither into
        memory nor on the disk; JobFileError if its model's code cannot be imported or is not trusted, a URL
        cannot be used, or this CPU or the model has no products in bfloat16.
        """
        check_precision(precision)
        read = partial(cls._read, precision=precision, trust=trust, memory_bytes=memory_bytes)
        return read_saved(path, read, which=which)

    def update(self, path: str | PathLike[str], which: Which = "auto") -> ModelUpdate:
        """Read a later checkpoint of this model's run.

        `ModelUpdate.apply` gives the model. Where the checkpoint says which rows changed, only those are read
        and checked, and `apply` replaces them in this model's memory. Otherwise it is opened whole, beside
        this model. Raises as `open`.
        """
        return read_saved(path, self._read_update, which=which)

    @classmethod
    def _read(
        cls,
        folder: Place,
        manifest: CheckpointManifest,
        precision: Precision,
        *,
        trust: bool,
        memory_bytes: int | None,
    ) -> SavedModel:
        check_files(folder, manifest.files, verify=True)
        job = validate_saved_job(manifest.job, where=str(folder))
        require_trusted(code_of(job, "model.name"), str(folder), trust=trust)
        dense = load_dense(folder, manifest, job)
        scorer = DenseScorer(dense, job, precision)
        saved = SavedTables(folder, manifest)
        jagged = takes_jagged(job)
        loaded = LoadedTables(saved, job.tables, job.run.seed, jagged=jagged, memory_bytes=memory_bytes)
        classes = _id_classes(manifest, job)
        _release(folder)
        tables = _tables_of(job, loaded, classes)
        return cls(folder, manifest, job, dense, tables, classes, scorer, loaded, saved, trust, memory_bytes)

    def _read_update(self, folder: Place, manifest: CheckpointManifest) -> ModelUpdate:
        check_files(folder, manifest.files)
        saved = SavedTables(folder, manifest)
        since = None
        if (manifest.job, manifest.plan) == (self.manifest.job, self.manifest.plan):
            since = saved.changes_since(self._saved)
        if since is None:
            model = self._read(
                folder, manifest, self.precision, trust=self._trust, memory_bytes=self._memory_bytes
            )
            return ModelUpdate(model, None)
        check_files(folder, [*scored_files(manifest), *since.files], verify=True)
        dense = load_dense(folder, manifest, self.job)
        model = replace(
            self,
            folder=folder,
            manifest=manifest,
            dense=dense,
            _scorer=DenseScorer(dense, self.job, self.precision),
            _saved=saved,
        )
        changes = self._loaded.read(since.changes)
        _release(folder)
        return ModelUpdate(model, changes)

    def __repr__(self) -> str:
        """Describe the model in a line; all of its manifest would fill pages."""
        tables = counted(len(self.job.tables), "table")
        return f"SavedModel({str(self.folder)!r}: {self.job.model.name}, {tables}; {self.description})"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, in the order of the logits, headline first."""
        return self.job.data.label_names

    @property
    def precision(self) -> Precision:
        """Precision of the matrix products of all scores."""
        return self._scorer.precision

    @property
    def description(self) -> str:
        """Describe which model this is: the best by validation, or the last."""
        text = f"{self.manifest.model}, after {self.manifest.examples_trained:,} examples"
        if (note := note_of(self.folder)) is not None:
            text += f", the best by validation ({note.metric} {note.value:.4f})"
        return text if self.precision == "float32" else f"{text}, with products in {self.precision}"

    def logits(self, batch: Batch, owner: IndexArray | None = None) -> Float32Array:
        """Compute the logits of a batch, float32 [B], without its labels.

        With several labels they are [B, T], in the order of `labels`. The logits are calibrated if training
        left out negatives or weighted positives. `owner`, int64 [B], says that examples of one owner have the
        same dense features; a model with `forward_shared` computes what depends on these alone once an owner.
        """
        with torch.inference_mode():
            vectors = self._loaded.embeddings(batch)
            embeddings = with_lengths(vectors.embeddings, vectors.lengths)
            if owner is None or not self._scorer.shares:
                logits = self._scorer.logits(torch.from_numpy(batch.dense), embeddings)
            else:
                _, first, owner_rows = np.unique(owner, return_index=True, return_inverse=True)
                dense = torch.from_numpy(batch.dense[first])
                logits = self._scorer.logits(dense, embeddings, torch.from_numpy(owner_rows))
        values: Float32Array = logits.numpy()
        return values + np.float32(self.job.logit_offset)

    def query_vectors(self, batch: Batch) -> Float32Array:
        """Compute the vectors of a batch's queries, float32 [B, dim]; columns of items are not read.

        Raises DataError for a model without towers.
        """
        return self._vectors("query", batch)

    def item_vectors(self, batch: Batch) -> Float32Array:
        """Compute the vectors of a batch's items, as `query_vectors`; columns of queries are not read."""
        return self._vectors("item", batch)

    @property
    def temperature(self) -> float:
        """What the product of the vectors of query and item is divided by in a score.

        Raises DataError for a model without towers.
        """
        require_towers(self)
        assert isinstance(self.dense, ScoringModule)
        return self.dense.temperature

    def _vectors(self, tower: Literal["query", "item"], batch: Batch) -> Float32Array:
        require_towers(self)
        with torch.inference_mode():
            vectors = self._loaded.embeddings(batch)
            embeddings = with_lengths(vectors.embeddings, vectors.lengths)
            values: Float32Array = self._scorer.vectors(
                tower, torch.from_numpy(batch.dense), embeddings
            ).numpy()
        return values

    def own_metrics(self) -> OwnMetrics:
        """Return new metrics of the model's own, those of `validation.own`, for one pass."""
        return OwnMetrics(self.job, find_model(self.job.model.name) if self.job.validation.own else None)

    def ids_without_row(self, batch: Batch) -> dict[str, tuple[int, int]]:
        """Count a batch's ids by growing table: all, and those without a row."""
        return self._loaded.without_row(batch)

    def predict(self, data: Any) -> Float32Array:
        """Compute probabilities, float32 [n], one for each row, in order; or own scores as they are.

        With several labels they are [n, T], in the order of `labels`. A row that cannot be read, or whose
        logit is not finite, has NaN.

        Args:
            data: a file, glob or URL in the job's format; or a dict of columns, a list of rows, each a dict,
                or a table of pandas, polars or pyarrow, with the columns of the job's files. The label is
                not needed.

        Raises DataError for data that cannot be read or lack a column, CheckpointError if rows were scored
        but no logit is finite.
        """
        from .prediction import predict_columns, predict_files

        if isinstance(data, str | PathLike):
            chunks = list(predict_files(self, [str(data)]))
            several = self.labels[1:] and (0, len(self.labels))
            return np.concatenate(chunks) if chunks else np.zeros(several or 0, np.float32)
        return predict_columns(self, data)


class ModelUpdate:
    """A later checkpoint of a model's run, in memory.

    It is whole, or has what replaces rows of the model.

    Args:
        model: the model that `apply` returns.
        changes: rows that belong in the tables, which are those of the model before; None if they are not.
    """

    def __init__(self, model: SavedModel, changes: Sequence[RowChanges] | None) -> None:
        self._model, self._changes = model, changes

    @property
    def in_place(self) -> bool:
        """Whether the tables of the model before become those of the new one."""
        return self._changes is not None

    @property
    def changed_bytes(self) -> int:
        """Bytes of the rows that are replaced in place."""
        return sum(change.bytes for change in self._changes or ())

    def apply(self) -> SavedModel:
        """Return the new model; call it once.

        If it is done in place, no thread may use the model before meanwhile, and none afterwards: its tables
        are those of the new one. It takes as long as to copy the changed rows.
        """
        self._model._loaded.apply(self._changes or ())
        return self._model


def require_towers(model: SavedModel) -> None:
    """Raise DataError unless the model has a vector of the query and one of the item."""
    if not model.job.model.has_towers:
        raise DataError(
            f"{model.job.model.name} has no vectors of queries and items",
            where=str(model.folder),
            remedy=f"give a model of {' or '.join(TOWER_MODELS)}",
        )


def load(
    path: str | PathLike[str],
    which: Which = "auto",
    precision: Precision = "float32",
    *,
    trust: bool = False,
    memory_bytes: int | None = None,
) -> SavedModel:
    """Open the model that a run saved, as `SavedModel.open`: `shadowsync.load("runs/latest")`."""
    return SavedModel.open(path, which, precision, trust=trust, memory_bytes=memory_bytes)


def _release(place: Place) -> None:
    """Give back the space of fetched files, which memory has now."""
    if isinstance(place, StoredFiles):
        place.release()


def _check_names(folder: Place, saved: Set[str], needed: Set[str]) -> None:
    for names, which in ((needed - saved, "it has no"), (saved - needed, "the model has no")):
        if names:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise CheckpointError(
                f"belongs to another model: {which} {some}", where=str(folder), remedy=REMEDY
            )


def _tables_of(job: Job, loaded: LoadedTables, classes: Mapping[str, IdClass]) -> Mapping[str, Table]:
    tables: dict[str, Table] = {}
    # A cross refers to the tables of its columns.
    columns = job.embedded_columns
    for embedded in sorted(columns, key=lambda column: _parts_of(job, column.name) != []):
        column, table = job.data.columns.get(embedded.name), embedded.table.name
        tables[embedded.name] = Table(
            embedded.name,
            loaded.grown[table] if table in loaded.grown else loaded.table(table),
            embedded.pooling,
            table=table,
            integers_as_text=classes.get(embedded.name) == "text",
            part=column.part if column else None,
            boundaries=column.boundaries if column else (),
            parts=[tables[part] for part in _parts_of(job, embedded.name)],
        )
    return MappingProxyType({column.name: tables[column.name] for column in columns})


def _parts_of(job: Job, name: str) -> list[str]:
    """Return the columns of a cross; none for another column."""
    return job.data.columns[name].columns if name in job.data.columns else []


def _id_classes(manifest: CheckpointManifest, job: Job) -> Mapping[str, IdClass]:
    """Find each column's type of ids; those of text files are texts."""
    classes: dict[str, IdClass] = {}
    for embedded in job.embedded_columns:
        column = job.data.columns.get(embedded.name)
        if column and (column.fixed_rows or not column.of_kind.in_file):
            continue
        stated = manifest.plan.get("tables", {}).get(embedded.table.name, {}).get("ids")
        if job.data.format != "parquet" or stated == "text":
            classes[embedded.name] = "text"
        elif stated == "integer":
            classes[embedded.name] = "integer"
    return MappingProxyType(classes)
