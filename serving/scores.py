"""Scores of the rows of several requests, computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from ..pipeline.checkpoint.manifest import CheckpointManifest
from ..pipeline.data.formats.parquet import check_parquet
from ..pipeline.errors import DataError
from ..pipeline.saved_model.input_rows import InputSchema, input_schema, rows_of_columns
from ..pipeline.saved_model.model import SavedModel
from ..pipeline.saved_model.prediction import (
    NOT_FINITE,
    has_scores,
    logits_of,
    shown_scores,
)
from ..pipeline.types import Float32Array, IndexArray
from .body import BodyReader
from .joined import joined_columns
from .rows import BadRequest, RowColumns

MOST_ROWS: Final = 10_000
"""Limit for a request's rows."""
_WHERE: Final = "the request"


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one request's rows.

    Attributes:
        labels: names of the model's labels.
        probabilities: float32 [n], in the order of the rows, or [n, T] of T labels; NaN for a row without a
            score. Scores of a model's own as they are.
        why: the reason for each row without a score, by index.
        manifest: the manifest of the checkpoint that scored all of the rows.
    """

    labels: tuple[str, ...]
    probabilities: Float32Array
    why: dict[int, str]
    manifest: CheckpointManifest

    @property
    def name(self) -> str:
        """What a reply calls them: "probabilities", or "scores" of a model's own."""
        has_logits = self.manifest.job.get("model", {}).get("scores", "logits") == "logits"
        return "probabilities" if has_logits else "scores"


class ServedModel:
    """A saved model with the schema of its input.

    One thread at a time may call `score`.

    Args:
        model: the model.
        schema: the schema, if another model of the same job has it.

    Attributes:
        bodies: reads requests, on the thread of the server's loop.
    """

    def __init__(self, model: SavedModel, schema: InputSchema | None = None) -> None:
        self.model = model
        self.schema: InputSchema = schema or input_schema(model.job, model.id_classes)
        self.bodies = BodyReader(self.schema, MOST_ROWS)
        dense = self.schema.inputs.data.columns_as("dense")
        self._dense = frozenset(map(self.schema.inputs.source_of, dense))
        # The types of the columns that were checked last; most requests have the same ones.
        self._checked: dict[str, pa.DataType] = {}

    def score(self, requests: Sequence[RowColumns]) -> Sequence[Scores | BadRequest]:
        """Score the rows of all requests at once; return each one's scores or fault.

        If the rows cannot be read together, each request is read by itself, so that a fault is that of one
        request alone.
        """
        try:
            return self._together(requests)
        except (BadRequest, DataError) as error:
            if len(requests) == 1:
                return [BadRequest(str(error))]
            return [self.score([request])[0] for request in requests]

    def _together(self, requests: Sequence[RowColumns]) -> list[Scores]:
        arrays = joined_columns(requests)
        self._check({name: array.type for name, array in arrays.items()})
        numbers = np.arange(1, 1 + sum(request.count for request in requests))
        rows = rows_of_columns(arrays, self.schema, [], _WHERE, numbers)
        probabilities = shown_scores(self.model.job, logits_of(self.model, rows, self._owner(requests)))
        scores, start = [], 0
        for request in requests:
            part = probabilities[start : start + request.count]
            without = np.flatnonzero(~has_scores(part)).tolist()
            why = {row: rows.why.get(start + row, NOT_FINITE) for row in without}
            scores.append(Scores(self.model.labels, part, why, self.model.manifest))
            start += request.count
        return scores

    def _owner(self, requests: Sequence[RowColumns]) -> IndexArray | None:
        """Return each row's request, int64 [n], if each request's rows share all dense features."""
        if not self._dense or not all(self._dense <= request.shared.keys() for request in requests):
            return None
        return np.repeat(np.arange(len(requests)), [request.count for request in requests])

    def _check(self, types: dict[str, pa.DataType]) -> None:
        if types != self._checked:
            check_parquet(_WHERE, pa.schema(list(types.items())), self.schema.inputs)
            self._checked = types
