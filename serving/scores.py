"""Scores of the rows of several requests, computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..pipeline.checkpoint.manifest import CheckpointManifest
from ..pipeline.saved_model.input_rows import InputSchema, input_schema
from ..pipeline.saved_model.model import SavedModel
from ..pipeline.saved_model.prediction import (
    NOT_FINITE,
    has_scores,
    logits_of,
    shown_scores,
)
from ..pipeline.types import Float32Array, IndexArray
from .body import BodyReader
from .joined import RequestRows, all_or_each
from .rows import BadRequest, RowColumns

MOST_ROWS: Final = 10_000
"""Limit for a request's rows."""


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
        self._rows = RequestRows(self.schema)

    def score(self, requests: Sequence[RowColumns]) -> Sequence[Scores | BadRequest]:
        """Score the rows of all requests at once; return each one's scores or fault."""
        return all_or_each(self._together, requests)

    def _together(self, requests: Sequence[RowColumns]) -> list[Scores]:
        rows = self._rows.of(requests)
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
