"""What a job has trained, beside its ledger: data and transitions, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ....pipeline.config.job import Job
from ....pipeline.data.formats.parquet import IdClass
from ....pipeline.wire.control.messages import LeftOutBatch, TrainedBatch
from ....pipeline.wire.field_checks import Counts
from ...control.membership import Member
from ...control.progress import InputFacts, TrainingMetrics
from ..ledger.ledger import LedgerState
from ..ledger.records import Acknowledged, LeftOut
from .bad_batches import BadBatchCounter


class TrainingState:
    """Metrics, input, bad batches and lost updates of a job. Owned by the coordinator's loop.

    Attributes:
        bad_rows_of_failed_reader: malformed rows of a failed reader, which may be why it failed.
        left_counts: counts of trainers that left, by name.
        synced_iterations: iterations of each trainer that are synchronized, by token.
        lost_dense_updates: updates of trainers that died or left before they were synchronized.
    """

    def __init__(self, job: Job, ledger: LedgerState, input_facts: InputFacts) -> None:
        self.input = input_facts
        self.metrics = TrainingMetrics(job.data.label_names, of_logits=job.model.has_logits)
        self.bad_batches = BadBatchCounter(job.trainer.max_bad_batches)
        self.bad_rows_of_failed_reader = 0
        self.left_counts: dict[str, Counts] = {}
        self.synced_iterations: dict[str, int] = {}
        self.lost_dense_updates = 0
        self._ledger = ledger
        self._labels = len(job.data.label_names)
        self._weighted = bool(job.data.columns_as("weight"))

    def learn_id_classes(self, id_classes: Mapping[str, IdClass]) -> None:
        """Record the id classes of all files so far."""
        self.input = replace(self.input, id_classes=id_classes)

    def reader_failed(self, bad_rows: int) -> None:
        """Record a failed reader's malformed rows."""
        self.bad_rows_of_failed_reader = max(self.bad_rows_of_failed_reader, bad_rows)

    def lose_reader(self, reader: str) -> None:
        """Record that a reader died or left, so that its unfinished spans are unread."""
        for span in self._ledger.lose_reader(reader):
            self.input.size.span_unread(span.number, span.examples)

    def acknowledge(
        self, member: Member, batches: Iterable[TrainedBatch], synced_iterations: int, now: float
    ) -> list[Acknowledged]:
        """Record batches that a trainer trained; return their rows for the ledger's file.

        Raises ValueError, with nothing recorded, for sums of another number of labels, and for a weight that
        examples without weights do not have.
        """
        name, rows, batches = member.info.name, list[Acknowledged](), tuple(batches)
        if any(len(batch.others) != self._labels - 1 for batch in batches):
            raise ValueError(f"{name} has sums of another number of labels than the job's {self._labels}")
        heavy = next((batch for batch in batches if batch.weight != batch.examples), None)
        if heavy is not None and not self._weighted:
            what = f"{heavy.examples} examples with a weight of {heavy.weight:g}"
            raise ValueError(f"batch {tuple(heavy.id)} has {what}, and the job has no sample weights")
        for batch in batches:
            row = self._ledger.acknowledge(name, batch.id, batch.examples, batch.delivery)
            rows.append(row)
            # The loss of a batch that the model has seen before says nothing new.
            if not row.repeated:
                sums = batch.loss_sum, batch.positives, batch.weight, batch.others
                self.metrics.trained(name, max(0.0, now - batch.age_seconds), batch.examples, *sums)
        self.synced_iterations[member.info.token] = synced_iterations
        return rows

    def leave_out(self, trainer: str, batches: Iterable[LeftOutBatch]) -> list[LeftOut]:
        """Record batches that a trainer left out; return their rows for the ledger's file."""
        rows = []
        for batch in batches:
            row = self._ledger.leave_out(trainer, batch.id, batch.examples, batch.why, batch.delivery)
            rows.append(row)
            self.bad_batches.add(row, self._ledger.queue.path_of)
        return rows

    def lose_trainer(self, member: Member) -> None:
        self._lose_updates(member.info.name, self.synced_iterations.get(member.info.token, 0))

    def trainer_left(self, trainer: str, counts: Counts) -> None:
        """Record the last counts of a trainer that leaves."""
        self.left_counts[trainer] = counts
        self._lose_updates(trainer, int(counts.get("synced_iterations", 0)))

    def restore_updates(self, synced_iterations: dict[str, int], *, lost: int) -> None:
        """Take over what a snapshot says of `synced_iterations` and `lost_dense_updates`."""
        self.synced_iterations, self.lost_dense_updates = synced_iterations, lost

    def _lose_updates(self, trainer: str, synced: int) -> None:
        trained = self._ledger.trained_batches_of.get(trainer, 0)
        self.lost_dense_updates += max(0, trained - synced)
