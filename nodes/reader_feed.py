"""The reader's parsing thread: from spans to batches, as far ahead as its queue is long."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

from ..pipeline.config.job import Job
from ..pipeline.data.bad_rows import BadRows
from ..pipeline.data.batch import Batch
from ..pipeline.data.cutter import FeatureShape, cut_batches
from ..pipeline.data.spans import Span
from .service import Service

AHEAD_BATCHES = 8
WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Work for the parser: one span, for training (`pass_number` 0) or for an evaluation pass."""

    pass_number: int
    epoch: int
    span: Span


@dataclass(frozen=True, slots=True)
class SpanTotals:
    """What a whole span held; it follows the span's last batch."""

    work: ReadSpan
    batches: int
    examples: int
    bad_rows: int


Fed = tuple[int, Batch] | SpanTotals


class Feed(Service):
    """Parses spans in the order in which they are given; `out` is bounded, so it never runs far ahead.

    `give` may be called by any thread; `out` is read by the sender thread.
    """

    def __init__(self, job: Job, fed: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        super().__init__("feed", failed)
        self.out: queue.Queue[Fed] = queue.Queue(AHEAD_BATCHES)
        self._job = job
        self._fed = fed
        self._work: queue.Queue[ReadSpan] = queue.Queue()
        self._shape = FeatureShape(job.data.dense_features, job.data.categorical_features, job.table_rows)
        self._train_bad_rows = BadRows(job.data.max_bad_rows)
        self._dropping = False

    @property
    def bad_rows(self) -> BadRows:
        """The malformed rows of training so far."""
        return self._train_bad_rows

    def give(self, work: ReadSpan) -> None:
        """Queues a span."""
        self._work.put(work)

    def drop_training(self) -> None:
        """From now on training spans are left where they are: the job stops."""
        self._dropping = True

    def body(self) -> None:
        """Takes spans until told to stop."""
        while not self.stopping:
            try:
                work = self._work.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                continue
            self._read(work)

    def _read(self, work: ReadSpan) -> None:
        data = self._job.data
        training = work.pass_number == 0
        bad_rows = self._train_bad_rows if training else BadRows(data.max_bad_rows)
        bad_before = bad_rows.count
        batches = examples = 0
        for batch in cut_batches(
            work.span,
            epoch=work.epoch,
            seed=self._job.run.seed,
            data_format=data.format,
            shape=self._shape,
            batch=self._job.trainer.batch,
            shuffle_window=data.shuffle_window if training else 0,
            bad_rows=bad_rows,
        ):
            if self.stopping or (training and self._dropping):
                return
            batches += 1
            examples += len(batch)
            self._put((work.pass_number, batch))
        self._put(SpanTotals(work, batches, examples, bad_rows.count - bad_before))

    def _put(self, item: Fed) -> None:
        while not self.stopping:
            try:
                self.out.put(item, timeout=WAIT_SECONDS)
            except queue.Full:
                if self._dropping and isinstance(item, tuple) and item[0] == 0:
                    return
                continue
            self._fed()
            return
