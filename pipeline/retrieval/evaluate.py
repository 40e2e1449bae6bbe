"""Retrieval quality of a saved model: held-out items ranked among a whole catalogue."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from ..config.job import Job
from ..data.formats.parquet import IdClass
from ..data.schema import Examples
from ..data.span import Span
from ..errors import DataError
from ..input.plan import InputPlan, plan_input
from ..metrics.retrieval import RetrievalQuality, RetrievalSums
from ..saved_model.evaluate import result_of, spans_of
from ..saved_model.model import SavedModel, require_towers
from ..types import TRAINING_ITEMS, RetrievalSettings, Uint64Array
from .catalogue import VECTOR_BATCH, Catalogue, tower_vectors
from .items import ItemReader, Items, examples_of, items_of_files, items_of_rows
from .ranks import ItemNumbers, ItemsOfGroups, groups_of, ranks_of


def retrieval_settings(job: Job, items: str = "", k: int | None = None) -> RetrievalSettings | None:
    """Return what to rank: as the job says, but for `items` and `k` if given; None without a catalogue.

    `items` are a file, glob or URL, or "training", and `k` says how many count. Raises DataError for items of
    a model without towers.
    """
    if items and not job.model.has_towers:
        raise DataError(
            f"{items!r} given, but {job.model.name} has no vectors of queries and items",
            where="--items",
            remedy="leave it out",
        )
    validation = job.validation
    settings = job.model_copy(
        update={"validation": validation.model_copy(update={"items": items or validation.items})}
    ).retrieval
    return settings if settings is None or k is None else settings._replace(k=k)


def evaluate_retrieval(
    model: SavedModel, patterns: list[str], settings: RetrievalSettings
) -> RetrievalQuality:
    """Rank the items of all positive rows of files; raises as `spans_of` and `RetrievalScorer`."""
    plan = plan_input(model.job) if settings.needs_training_part else InputPlan([])
    scorer = RetrievalScorer(model.job, settings, plan.train, plan.validation)
    return scorer.score(model, spans_of(model, patterns))


class RetrievalScorer:
    """Score models of one job by the ranks of held-out items. Used by one thread.

    The items, and what groups have already, are read once, and kept for the next model.

    Args:
        job: the job of all models.
        settings: what is ranked.
        trained: spans of the training part; needed if `settings.needs_training_part`.
        validated: spans of the validation part; what groups have there is excluded, too, unless they are what
            is scored.
    """

    def __init__(
        self, job: Job, settings: RetrievalSettings, trained: Sequence[Span], validated: Sequence[Span] = ()
    ) -> None:
        self._job, self._settings = job, settings
        self._trained, self._validated = list(trained), list(validated)
        self._identity = ItemReader(job)
        self._items: Items | None = None
        self._excluded: ItemsOfGroups | None = None
        self._excluded_for: list[Span] = []

    def score(self, model: SavedModel, spans: Sequence[Span]) -> RetrievalQuality:
        """Rank the items of all positive rows of the spans; as `score_in_pieces`."""
        return result_of(self.score_in_pieces(model, spans))

    def score_in_pieces(
        self, model: SavedModel, spans: Sequence[Span]
    ) -> Generator[None, None, RetrievalQuality]:
        """Rank the items of all positive rows of the spans, and yield after each part of them.

        Sample weights do not count, and malformed rows are skipped. Raises DataError for files that cannot be
        used, and for a vector that is not finite; ResourceError if there are more items to exclude than fit.
        """
        require_towers(model)
        items = self._items_of(model.id_classes)
        yield
        catalogue, numbers = Catalogue.of(items, model), ItemNumbers(items.identities)
        yield
        excluded = self._excluded_from(spans, numbers, len(items))
        sums = RetrievalSums(self._settings.k, len(items))
        for examples in self._positives(spans):
            identities, groups = self._identity(examples), self._groups(examples)
            ranks, targets = np.zeros(len(examples), np.int64), numbers.of(identities)
            known = np.flatnonzero(targets >= 0)
            if len(known):
                queries = tower_vectors(model, "query", examples.take(known))
                pairs = None if excluded is None or groups is None else excluded.of(groups[known])
                ranks[known] = ranks_of(queries, targets[known], catalogue.vectors, pairs)
            sums.add(ranks, identities, groups)
            yield
        return sums.result()

    def _items_of(self, id_classes: Mapping[str, IdClass]) -> Items:
        if self._items is None:
            if self._settings.items == TRAINING_ITEMS:
                self._items = items_of_rows(self._job, self._trained)
            else:
                self._items = items_of_files(self._job, id_classes, [self._settings.items])
        return self._items

    def _excluded_from(self, spans: Sequence[Span], numbers: ItemNumbers, items: int) -> ItemsOfGroups | None:
        """Return the items that each group of the spans has already; None if these count, too."""
        if not self._settings.exclude_trained:
            return None
        if self._excluded is None or self._excluded_for != list(spans):
            groups = groups_of(self._required_groups(examples) for examples in self._positives(spans))
            before = [] if self._validated == list(spans) else self._validated
            excluded, relevant = (
                self._items_of_groups(ItemsOfGroups(groups, items), of, numbers)
                for of in ([*self._trained, *before], spans)
            )
            # What a query is to find is never left out for another of its rows.
            excluded.leave_out(relevant)
            self._excluded, self._excluded_for = excluded, list(spans)
        return self._excluded

    def _items_of_groups(
        self, items: ItemsOfGroups, spans: Sequence[Span], numbers: ItemNumbers
    ) -> ItemsOfGroups:
        for examples in self._positives(spans):
            items.add(self._required_groups(examples), numbers.of(self._identity(examples)))
        return items

    def _positives(self, spans: Sequence[Span]) -> Iterator[Examples]:
        """Yield the rows with a positive label, at most VECTOR_BATCH at once."""
        for examples in examples_of(self._job, spans):
            positive = np.flatnonzero(examples.labels == 1.0)
            for start in range(0, len(positive), VECTOR_BATCH):
                yield examples.take(positive[start : start + VECTOR_BATCH])

    def _groups(self, examples: Examples) -> Uint64Array | None:
        """Return the hashes of the groups of rows, uint64 [n]; None if each row is a query."""
        return None if self._settings.group is None else examples.groups[self._settings.group]

    def _required_groups(self, examples: Examples) -> Uint64Array:
        groups = self._groups(examples)
        assert groups is not None
        return groups
