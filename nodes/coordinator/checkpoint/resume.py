"""The run that a resumed job continues.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Any

from ....pipeline.checkpoint.manifest import CheckpointManifest
from ....pipeline.checkpoint.saved import Place, open_saved
from ....pipeline.checkpoint.saved_ledger import SavedLedger
from ....pipeline.config.data import DataSection
from ....pipeline.config.job import Job
from ....pipeline.data.files.kafka_client import is_topic
from ....pipeline.data.files.paths import match_files
from ....pipeline.data.files.row_names import RowNames
from ....pipeline.data.files.topic import moved_topics
from ....pipeline.data.span import Span
from ....pipeline.embedding.placement.plan import TablePlan
from ....pipeline.embedding.placement.ranges import Range, find_split_fault
from ....pipeline.embedding.storage.saved_tables import SavedTables
from ....pipeline.errors import CheckpointError, DataError, JobFileError
from ....pipeline.input.plan import KnownInput
from ....pipeline.jobfile.load import validate_saved_job
from ....pipeline.types import BatchId
from ....pipeline.wire.field_checks import record_of
from ...control.progress import Origin
from .running import changed_files, describe_input, input_differences

# Batches and the restored state are functions of these sections. Everything else may change.
FIXED_SECTIONS = ("data", "model", "tables")
FIXED_KEYS = ("run.seed", "trainer.batch", "trainer.optimizer", "embedding.optimizer")
FREE_KEYS = {
    "data.epochs", "data.readers", "data.max_bad_rows", "data.max_bad_fraction", "data.retain_bytes",
    "data.follow", "data.follow_seconds",
    "data.path", "data.eval_path", "data.validation_path", "data.sort_limit_bytes", "data.prepared",
}  # fmt: skip
SHOWN = 5


@dataclass(frozen=True)
class RestoredRun:
    """A checkpoint that a resumed run continues from.

    Attributes:
        applied_before: by embedding node, the batches that its shard had applied but `ledger` lacks: they
            were in flight when the checkpoint was taken. Empty if the tables are split anew, since the shards
            then take over the ledger's set.
        plan: the plan of its tables if the job has as many nodes; None if they are split anew.
        applied_again: if tables are split anew, number of batches that will be applied a second time to rows
            whose shard had them before.
        moved: of partitions of topics that are at other brokers now, where they were and where they are.
    """

    folder: Place
    manifest: CheckpointManifest
    ledger: SavedLedger
    applied_before: dict[str, frozenset[BatchId]]
    applied_again: int
    plan: TablePlan | None
    moved: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, job: Job, spans: Sequence[Span] | None) -> RestoredRun | None:
        """Read the checkpoint that `job.start` names, and check it against job and input.

        `spans` are the plan of the input; None if it was compared before. Returns None if the job resumes no
        run. Raises CheckpointError for a truncated or altered file, JobFileError for a job that cannot
        continue from it, DataError for another input.
        """
        if not job.start.checkpoint:
            return None
        folder, manifest = open_saved(job.start.checkpoint, verify=True, which=job.start.which)
        saved = validate_saved_job(manifest.job, where=str(folder))
        if not job.start.resume:
            require_rows_of_one_table(job, saved)
            return None
        require_same_job(job, saved)
        if spans is not None:
            _require_same_input(manifest, spans, job.data)
            require_same_draws(job.data, saved.data, spans)
        ledger = SavedLedger.read(folder, manifest.files)
        early, moved = _applied_early(folder, manifest, ledger), _moved(job, manifest)
        if (plan := _saved_plan(job, SavedTables(folder, manifest))) is not None:
            return cls(folder, manifest, ledger, early, 0, plan, moved)
        return cls(folder, manifest, ledger, {}, _trained_again(early, ledger), None, moved)

    def origin(self) -> Origin:
        """Return what the job's state keeps of it."""
        known = "known" in self.manifest.ledger["input"]
        return Origin(self.manifest.run, self.manifest.digest, self.applied_before, known)

    def event(self) -> str:
        """Describe what was taken over."""
        early = _trained_again(self.applied_before, self.ledger)
        text = (
            f"resumes {self.manifest.run} after {self.ledger.examples:,} examples in "
            f"{self.ledger.batches:,} batches ({self.manifest.model})"
        )
        if early:
            text += (
                f"; batches that only some shards had applied are trained again, and applied once: {early:,}"
            )
        if self.applied_again:
            text += (
                "; the tables are split differently, so some rows get batches a second time:"
                f" {self.applied_again:,}"
            )
        if self.manifest.job.get("trainer", {}).get("worker_kind") == "process":
            text += "; its workers were processes and are threads now; more trainers use more cores"
        topics = {old.rpartition("/")[0]: new.rpartition("/")[0] for old, new in self.moved.items()}
        return text + "".join(f"; {new} goes on where {old} was read to" for old, new in topics.items())


def _trained_again(early: Mapping[str, frozenset[BatchId]], ledger: SavedLedger) -> int:
    """Count the batches, applied by some shards, that are trained again.

    Batches that the resumed run left out are not trained again.
    """
    batches = frozenset[BatchId]().union(*early.values())
    return sum(batch.number not in ledger.left_out.get((batch.epoch, batch.span), ()) for batch in batches)


def _saved_plan(job: Job, saved: SavedTables) -> TablePlan | None:
    """Return the checkpoint's table plan; None if it does not fit.

    With this plan, the batches that each shard had applied are known.
    """
    if saved.nodes != job.embedding.nodes or set(saved.names) != {table.name for table in job.tables}:
        return None
    numbers = {table.name: number for number, table in enumerate(job.tables)}
    ranges = [Range(numbers[name], *place) for name in saved.names for place in saved.places(name)]
    if find_split_fault(job.tables, saved.nodes, ranges):
        return None
    plan = TablePlan.of_ranges(job.tables, saved.nodes, ranges)
    return plan if plan.placement_digest == saved.placement_digest else None


def require_rows_of_one_table(job: Job, saved: Job) -> None:
    """Raise JobFileError if a table would begin with the rows of one of its columns alone.

    In the run that it starts from each had a table of its own.
    """
    table_of = {column.name: column.table.name for column in saved.embedded_columns}
    for table in job.tables:
        before = {column.name: table_of[column.name] for column in table.columns if column.name in table_of}
        others = [column for column, name in before.items() if name != table.name]
        if others and table.name in table_of.values():
            had = ", ".join(f"{column} had table {name}" for column, name in before.items())
            raise JobFileError(
                f"the columns {', '.join(before)} share a table here, and in {saved.run.name} {had}: two rows"
                " of an id cannot become one",
                where=f"tables.{table.name}",
                remedy=f"give the table a name that the run has not (data.columns.{others[0]}.table), and it"
                " starts anew while the rest is taken over; or leave table out, as the run did",
            )


def require_same_job(job: Job, saved: Job) -> None:
    """Raise JobFileError if another job continues a run."""
    now, then = _flat(job.model_dump(mode="json")), _flat(saved.model_dump(mode="json"))
    differing = [
        f"{key} is {_short(now.get(key))} instead of {_short(then.get(key))}"
        for key in sorted(now.keys() | then.keys())
        if _must_stay(key, job.data) and now.get(key) != then.get(key)
    ]
    if differing:
        more = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise JobFileError(
            f"a resumed run must keep its data and its model: {'; '.join(differing[:SHOWN])}{more}",
            remedy="set these back, or start a new run from it, with start.checkpoint",
        )


def _must_stay(key: str, data: DataSection) -> bool:
    if key in FREE_KEYS or key.startswith("data.kafka."):
        return False
    if key == "data.split.draw_by" and not data.draws_rows:
        return False
    return key in FIXED_KEYS or key.partition(".")[0] in FIXED_SECTIONS


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def known_input(job: Job) -> KnownInput | None:
    """Return what the resumed run had planned, if it followed its input or read a topic.

    Raises CheckpointError.
    """
    if not (job.start.resume and job.start.checkpoint):
        return None
    folder, manifest = open_saved(job.start.checkpoint, which=job.start.which)
    known = manifest.ledger["input"].get("known")
    if known is None:
        # The same files give the same spans.
        return None
    try:
        spans = [record_of(Span, values) for values in known]
    except ValueError as error:
        raise CheckpointError(
            f"its input cannot be read: {error}", where=str(folder), remedy="use another checkpoint"
        ) from error
    tables = manifest.plan["tables"]
    moved = _moved(job, manifest)
    return KnownInput(
        [replace(span, path=moved.get(span.path, span.path), part="") for span in spans],
        {
            column.name: tables[column.table.name]["ids"]
            for column in job.embedded_columns
            if tables.get(column.table.name, {}).get("ids")
        },
        # A job that follows finds them itself, once they are complete; a fixed input stays as it was.
        others=manifest.job["data"]["follow"] and not job.data.follow,
    )


def _moved(job: Job, manifest: CheckpointManifest) -> dict[str, str]:
    """Return the present paths of partitions that the run read at other brokers."""
    return moved_topics(manifest.ledger["input"]["files"], job.data.path)


def _require_same_input(manifest: CheckpointManifest, spans: Sequence[Span], data: DataSection) -> None:
    saved = manifest.ledger["input"]
    # If it followed its input, files may have come since then, and those of complete spans may be gone; and
    # the spans of a topic are those of then.
    compare = changed_files if "known" in saved else input_differences
    differences = compare(saved, describe_input(spans))
    if "known" in saved and not manifest.job["data"]["follow"] and not data.follow:
        files = filterfalse(is_topic, match_files(data.path, data.kafka, may_be_none=True))
        differences += [f"{path} was not there" for path in files if path not in saved["files"]]
    if differences:
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise DataError(
            f"the input differs from that of {manifest.run}: {'; '.join(differences[:SHOWN])}{more}",
            where="data.path",
            remedy="give the same files, or start a new run from it, with start.checkpoint",
        )


def require_same_draws(now: DataSection, then: DataSection, spans: Sequence[Span]) -> None:
    """Raise DataError if rows of the same files would be drawn anew."""
    if not now.draws_rows:
        return
    mine, theirs = (RowNames(data.path, data.split.draw_by) for data in (now, then))
    for path in dict.fromkeys(span.path for span in spans):
        if mine.of(path) != theirs.of(path):
            raise DataError(
                f"rows would be drawn by {mine.of(path)!r}, and the resumed run drew them by"
                f" {theirs.of(path)!r}",
                where=path,
                remedy=f"give data.path as it was: {', '.join(then.path[:SHOWN])}",
            )


def _applied_early(
    folder: Place, manifest: CheckpointManifest, ledger: SavedLedger
) -> dict[str, frozenset[BatchId]]:
    """Return, by embedding node, the batches that it had applied but the ledger lacks."""
    saved = SavedTables(folder, manifest)
    early = {}
    for node in range(saved.nodes):
        ranges = saved.applied(node).to_array()
        early[f"embedding-{node}"] = frozenset(
            BatchId(epoch, span, number, seed)
            for epoch, span, seed, start, stop in ranges.tolist()
            if (epoch, span) not in ledger.complete or (epoch, span) in ledger.left_out
            for number in range(start, stop)
            if not ledger.has(epoch, span, number)
        )
    return early
