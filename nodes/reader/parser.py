"""The reader's parsing thread: turns spans into batches ahead of the sender."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...pipeline.config.job import Job
from ...pipeline.data.bad_rows import BadRow, BadRows
from ...pipeline.data.batch import Batch
from ...pipeline.data.batches.negatives import NegativeSampler
from ...pipeline.data.batches.shared_rows import SharedRowsMeter
from ...pipeline.data.span import Span
from ...pipeline.input.job_input import JobInput
from ..runtime.process import tune_malloc
from ..runtime.threads import Service
from ..runtime.tracing import Activity

AHEAD_BATCHES = 8
WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Work for the parser: one span, to train (`pass_number` 0) or to evaluate.

    Batches whose numbers are in `skip` are cut but not sent: they were trained or left out before, by the
    run that this one resumes, or by this run if the span's reader died. With `replay` the other batches were
    trained before too, but a replacement embedding node lacks them. Each batch gets the `proof`.
    """

    pass_number: int
    epoch: int
    span: Span
    skip: frozenset[int] = frozenset()
    replay: bool = False
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class SpanTotals:
    """Totals of a whole span; they follow its last batch.

    `examples` does not count the negatives that were dropped. `first_bad_rows` are some of the malformed rows
    of a span that is evaluated.
    """

    work: ReadSpan
    batches: int
    examples: int
    bad_rows: int
    dropped_negatives: int = 0
    first_bad_rows: tuple[BadRow, ...] = ()


Parsed = tuple[int, Batch] | SpanTotals


class Parser(Service):
    """Parser of spans, in the order of submission.

    `out` is bounded, so the parser never runs far ahead. Any thread may call `submit`; the sender reads
    `out`.

    Args:
        on_output: called on this thread when `out` is no longer empty.
        failed: called on this thread with the exception that ends it.
    """

    def __init__(
        self, job: Job, on_output: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__("parser", failed)
        self.out: queue.Queue[Parsed] = queue.Queue(AHEAD_BATCHES)
        self._job = job
        self._on_output = on_output
        self._work: queue.Queue[ReadSpan] = queue.Queue()
        lists = frozenset(column.name for column in job.data.table_columns if column.pooling)
        columns = {table.name: [column.name for column in table.columns] for table in job.tables}
        self._shared_rows = SharedRowsMeter(job.hashed_tables, lists, columns)
        self._input = JobInput(job, self._shared_rows)
        self._train_bad_rows = BadRows(job.data.max_bad_rows)
        self._dropping = False
        self.parsing = Activity("parse", cpu=True)
        self.waiting = Activity("wait for credit")

    @property
    def bad_rows(self) -> BadRows:
        """The malformed rows of training so far."""
        return self._train_bad_rows

    def metrics(self) -> dict[str, float]:
        """Return seconds of parsing and of waiting, and shares of ids.

        They are the seconds of parsing, of its CPU, and of waiting for trainers' credit, and the shares of
        `SharedRowsMeter.counts`. Any thread may call.
        """
        return {
            "parse_seconds": self.parsing.seconds,
            "parse_cpu_seconds": self.parsing.cpu_seconds,
            "wait_for_credit_seconds": self.waiting.seconds,
            **self._shared_rows.counts(),
        }

    def submit(self, work: ReadSpan) -> None:
        self._work.put(work)

    def drop_training(self) -> None:
        """Drop training spans from now on, since the job stops."""
        self._dropping = True

    def body(self) -> None:
        """Parse spans until told to stop."""
        # Each batch is a separate allocation, and a chunk of a file's columns takes several MB.
        tune_malloc()
        while not self.stopping:
            try:
                work = self._work.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                continue
            self._read(work)

    def _read(self, work: ReadSpan) -> None:
        data = self._job.data
        training = work.pass_number == 0
        # Batches of a replay were counted before.
        counted = training and not work.replay
        bad_rows = self._train_bad_rows if counted else BadRows(data.max_bad_rows)
        bad_rows.passes = max(bad_rows.passes, work.epoch + 1)
        bad_before = bad_rows.count
        # The chunks of a span are read one after the other on this thread.
        self._shared_rows.counting = counted
        batches = examples = 0
        negatives = NegativeSampler(data.negative_share, data.split.seed) if training else None
        batches_of_span = self._input.batches(
            work.span,
            epoch=work.epoch,
            seed=self._job.run.seed,
            batch=self._job.trainer.batch,
            shuffle_window=data.shuffle_window if training else 0,
            bad_rows=bad_rows,
            negatives=negatives,
        )
        for batch in self._timed(batches_of_span):
            if self.stopping or (training and self._dropping):
                return
            batches += 1
            examples += len(batch)
            if batch.id.number not in work.skip:
                self._put((work.pass_number, replace(batch, replay=work.replay, proof=work.proof)))
        dropped = negatives.dropped if negatives is not None else 0
        # In a drawn part, malformed rows are those of the whole file, and training reports them.
        first = () if training or work.span.part else tuple(bad_rows.first)
        self._put(SpanTotals(work, batches, examples, bad_rows.count - bad_before, dropped, first))

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            with self.parsing:
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _put(self, item: Parsed) -> None:
        while not self.stopping:
            try:
                with self.waiting:
                    self.out.put(item, timeout=WAIT_SECONDS)
            except queue.Full:
                if self._dropping and isinstance(item, tuple) and item[0] == 0:
                    return
                continue
            # With more in it, the sender was already woken for the first, and takes all that it has room for.
            if self.out.qsize() <= 1:
                self._on_output()
            return
