"""Input of an emulated job: batches in the order of its readers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import islice

from ...nodes.reader.deliveries import delivery_of
from ...pipeline.config.job import Job
from ...pipeline.data.bad_rows import BadRows
from ...pipeline.data.batch import Batch
from ...pipeline.data.batches.negatives import NegativeSampler
from ...pipeline.data.batches.span_plan import span_order
from ...pipeline.data.span import Span
from ...pipeline.errors import JobFileError
from ...pipeline.input.job_input import JobInput
from ...pipeline.input.plan import InputPlan, plan_input
from ...pipeline.wire.messages import Delivery


class BatchSource:
    """The batches of a job, the same ones that its readers would cut.

    Spans are dealt to the readers in turn, and readers send one batch each, in turn. A trainer takes
    `trainer.consecutive_batches` at once.

    Attributes:
        plan: the spans to train and to score.

    Args:
        own_files: each of n trainers has a reader of its own, with every n-th file.
    """

    def __init__(self, job: Job, *, own_files: bool = False) -> None:
        self._job = job
        self.plan: InputPlan = plan_input(job)
        self._bad_rows = BadRows(job.data.max_bad_rows)
        self._sequence = 0
        self._turns: defaultdict[int, deque[Batch]] = defaultdict(deque)
        self._streams = [self._training(self.plan.train, job.data.readers)]
        if own_files:
            self._streams = [self._training(spans, 1) for spans in self._by_files(job.trainer.count)]

    def next(self, trainer: int = 0) -> Delivery | None:
        """Return a trainer's next batch; None after the last one."""
        turn = self._turns[trainer]
        if not turn:
            stream = self._streams[trainer % len(self._streams)]
            turn.extend(islice(stream, self._job.trainer.consecutive_batches))
        return self._delivery(turn.popleft(), 0) if turn else None

    def scored(self, spans: Sequence[Span]) -> Iterator[Delivery]:
        """Yield the batches of spans to score, unshuffled."""
        source, bad_rows = JobInput(self._job), BadRows(self._job.data.max_bad_rows)
        for span in spans:
            for batch in self._cut(source, span, 0, 0, bad_rows):
                yield self._delivery(batch, 1)

    def _by_files(self, trainers: int) -> list[list[Span]]:
        """Return each trainer's spans; raises JobFileError if one would have none."""
        train = self.plan.train
        paths = list(dict.fromkeys(span.path for span in train))
        if len(paths) < trainers:
            raise JobFileError(
                f"own_files: {trainers} trainers have {len(paths)} files of training data to share",
                remedy="give data.path as many files as there are trainers, or leave own_files out",
            )
        owners = {path: number % trainers for number, path in enumerate(paths)}
        return [[span for span in train if owners[span.path] == trainer] for trainer in range(trainers)]

    def _training(self, plan: Sequence[Span], readers: int) -> Iterator[Batch]:
        for epoch in range(self._job.data.epochs):
            data = self._job.data
            order = span_order(len(plan), epoch, self._job.run.seed, data.shuffle_window > 0)
            spans = [plan[number] for number in order]
            streams = [self._reader(spans[reader::readers], epoch) for reader in range(readers)]
            while streams:
                for stream in tuple(streams):
                    batch = next(stream, None)
                    if batch is None:
                        streams.remove(stream)
                    else:
                        yield batch

    def _reader(self, spans: Sequence[Span], epoch: int) -> Iterator[Batch]:
        source = JobInput(self._job)
        data = self._job.data
        negatives = NegativeSampler(data.negative_share, data.split.seed)
        self._bad_rows.passes = max(self._bad_rows.passes, epoch + 1)
        for span in spans:
            yield from self._cut(source, span, epoch, data.shuffle_window, self._bad_rows, negatives)

    def _cut(
        self,
        source: JobInput,
        span: Span,
        epoch: int,
        window: int,
        bad_rows: BadRows,
        negatives: NegativeSampler | None = None,
    ) -> Iterator[Batch]:
        return source.batches(
            span,
            epoch=epoch,
            seed=self._job.run.seed,
            batch=self._job.trainer.batch,
            shuffle_window=window,
            bad_rows=bad_rows,
            negatives=negatives,
        )

    def _delivery(self, batch: Batch, pass_number: int) -> Delivery:
        self._sequence += 1
        return delivery_of(self._sequence, pass_number, batch)
