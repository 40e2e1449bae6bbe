"""Keys of a job that other keys make ineffective, each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from ..config.job import Job
from ..config.model import TOWER_MODELS
from ..config.sections import rows_that_count
from ..config.tables import TableSettings
from ..config.trainer import MOST_LOOKUPS_AHEAD
from ..types import TOPIC_PREFIX

WITHOUT_CENTER: Final = ("bmuf", "ds_sync", "gaia", "ma", "tree")
WITH_CENTER: Final = ("decoupled", "easgd")
"""The built-in algorithms with rounds, by whether they use sync nodes or the links between trainers.

A test compares these with the algorithms themselves, which this package cannot import."""
_USES_BOTTOM: Final = ("dlrm", "finalmlp", "mmoe", "ple", "shared_bottom")
_USES_TOP: Final = (*_USES_BOTTOM, *TOWER_MODELS, "autoint", "dcn_v2", "deepfm", "din", "wide_deep")


@dataclass(frozen=True)
class Ineffective:
    """A key that was given and does nothing, or less than it says.

    Attributes:
        key: its dotted name in the job file.
        value: what it has; another than its default.
        reason: what it does instead, which other key is to blame, and what to do.
    """

    key: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.value)} {self.reason}"


@dataclass(frozen=True)
class _Rule:
    """Keys, whether they have no effect in a job, and why.

    `why` may name fields of the job, as a format string with `job`.
    """

    keys: tuple[str, ...]
    when: Callable[[Job], bool]
    why: str


def ineffective_keys(job: Job) -> list[Ineffective]:
    """Return the keys of a job that another one makes ineffective.

    They are in the order of the rules. A key that has its default is not among them: nobody asked for it.
    Any thread may call.
    """
    by_key: dict[str, Ineffective] = {}
    for rule in RULES:
        if not rule.when(job):
            continue
        for key in rule.keys:
            value, default = _value_and_default(job, key)
            if value != default and key not in by_key:
                by_key[key] = Ineffective(key, value, f"has no effect: {rule.why.format(job=job)}")
    for other in (*_lookups(job), *_types(job), *_overridden(job), *_folders(job)):
        by_key.setdefault(other.key, other)
    return list(by_key.values())


def unsynchronized(job: Job) -> str:
    """Say that several trainers never synchronize; "" for any other job.

    The user may want it, to compare, so it is no error.
    """
    count = job.trainer.count
    if job.sync.algorithm != "none" or count == 1:
        return ""
    return (
        f'sync.algorithm: "none" leaves {count} trainers without synchronization: each trains a model'
        " of its own on its share of the examples, and the mean of these is scored. Leave the key out for the"
        ' default, or give "bmuf"; "none" is for comparison'
    )


def job_warnings(job: Job) -> list[str]:
    """Return what a job's start and its report say of its keys."""
    texts = (unsynchronized(job), *map(str, ineffective_keys(job)))
    return [text for text in texts if text]


def _keys(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


def _is_text(job: Job) -> bool:
    return job.data.format in ("csv", "tsv")


def _has_topics(job: Job) -> bool:
    return any(path.startswith(TOPIC_PREFIX) for path in job.data.paths)


def _only_topics(job: Job) -> bool:
    return all(path.startswith(TOPIC_PREFIX) for path in job.data.paths)


def _has_validation_data(job: Job) -> bool:
    split = job.data.split
    return bool(job.data.validation_path or split.has_validation)


def _writes_beside_training(job: Job) -> bool:
    checkpoint = job.checkpoint
    return bool(checkpoint.every_examples or checkpoint.every_seconds or job.validation.enabled)


def _link_codecs(job: Job) -> set[str]:
    codecs = job.codecs
    synchronized = {codecs.center_up, codecs.center_down, codecs.peers_up, codecs.peers_down}
    return synchronized | {codecs.vectors, codecs.gradients}


def _keeps_loaded_model(job: Job) -> bool:
    return bool(job.start.checkpoint) and (job.start.resume or job.start.dense != "none")


def _most_lookups_ahead(job: Job) -> int:
    """Return how many batches a worker can have besides the one that it computes."""
    return job.trainer.credit * job.data.readers - 1 if job.trainer.credit != "auto" else MOST_LOOKUPS_AHEAD


_EVERY_SYNC = _keys(
    "sync",
    "mode every duty gap start_iterations start_duty optimizer_state chunk_bytes"
    " link_bytes_per_second timeout_seconds options",
)
_SHADOW_ONLY = _keys("sync", "duty gap start_iterations start_duty link_bytes_per_second")
_CENTER_CODECS, _PEER_CODECS = (
    _keys("codecs", "center_up center_down"),
    _keys("codecs", "peers_up peers_down"),
)

_NO_VALIDATION = "there is no validation data: give data.validation_path or data.split.validation"

RULES: Final[tuple[_Rule, ...]] = (
    _Rule(
        ("run.background_priority",),
        lambda job: not _writes_beside_training(job),
        "no checkpoint or validation is beside training: set every_seconds of [checkpoint], or leave it out",
    ),
    _Rule(
        ("embedding.folder",),
        lambda job: (
            not any(
                _may_be_on_disk(job, table) and not _states(job, table.name, "folder") for table in job.tables
            )
        ),
        "all rows of tables without a folder of their own are in memory: give embedding.memory_bytes, or"
        " leave it out",
    ),
    _Rule(
        _keys("data", "header delimiter quote"),
        lambda job: not _is_text(job),
        'it is for "csv" and "tsv", and data.format is "{job.data.format}"',
    ),
    _Rule(
        _keys("data", "missing decimal strip"),
        lambda job: not job.data.columns,
        "it is for jobs with [data.columns], and this one has Criteo's",
    ),
    _Rule(
        _keys("data", "dense_features categorical_features"),
        lambda job: bool(job.data.columns),
        "the columns are those of [data.columns]",
    ),
    _Rule(("data.span_bytes",), lambda job: bool(job.data.prepared), "data.prepared is read in whole parts"),
    _Rule(("data.span_bytes",), _only_topics, "messages of a topic are read by their number"),
    _Rule(
        ("data.sort_limit_bytes",),
        lambda job: job.data.order != "time",
        'rows are sorted only with data.order = "time"',
    ),
    _Rule(("data.follow_seconds",), lambda job: not job.data.follow, "data.follow is false"),
    _Rule(
        _keys("data.split", "draw_by"),
        lambda job: not job.data.draws_rows,
        'no row is drawn: neither data.split.by = "fraction" nor data.negative_share is given',
    ),
    _Rule(
        _keys("data.split", "seed"),
        lambda job: job.data.split.by != "column" and not job.data.draws_rows,
        'nothing is drawn: neither data.split.by = "fraction" or "column" nor data.negative_share is given',
    ),
    _Rule(
        _keys(
            "data.kafka",
            "security_protocol ssl_ca_location ssl_certificate_location ssl_key_location sasl_mechanism"
            " sasl_username sasl_password_env sasl_password_file",
        ),
        lambda job: not _has_topics(job),
        "no path of [data] is a topic (kafka://)",
    ),
    _Rule(
        ("model.bottom",),
        lambda job: job.model.name not in _USES_BOTTOM,
        "model.name = {job.model.name!r} has no such layers; what your own model takes is in model.options",
    ),
    _Rule(
        ("model.bottom",),
        lambda job: job.model.name == "dlrm" and job.data.dense_width == 0,
        "dlrm's bottom MLP is over dense features, and there are none",
    ),
    _Rule(
        ("model.top",),
        lambda job: job.model.name not in _USES_TOP,
        "model.name = {job.model.name!r} has no such layers; what your own model takes is in model.options",
    ),
    _Rule(
        ("model.top",),
        lambda job: job.model.has_history and len(job.model.query) == 1,
        "its MLP is over the columns of model.query beside the history, and there are none",
    ),
    _Rule(
        ("model.output_bias",),
        _keeps_loaded_model,
        "the bias is loaded from start.checkpoint",
    ),
    _Rule(
        ("trainer.lookups_ahead",),
        lambda job: job.run.deterministic,
        "with run.deterministic = true a worker waits for each lookup",
    ),
    _Rule(
        ("trainer.consecutive_batches",),
        lambda job: job.trainer.count * job.trainer.workers == 1 and job.data.readers == 1,
        "one worker trains every batch: trainer.count and trainer.workers are 1",
    ),
    _Rule(
        ("trainer.exact_rows",),
        lambda job: job.run.deterministic or (job.trainer.workers == 1 and job.trainer.lookups_ahead == 0),
        "each batch is looked up after the one before it, so its rows are exact",
    ),
    _Rule(
        ("trainer.distinct_rows",),
        lambda job: job.exact_rows,
        "with trainer.exact_rows = true each row of a batch is requested once",
    ),
    _Rule(
        ("trainer.distinct_rows",),
        lambda job: all(column.pooling in ("sum", "mean") for column in job.embedded_columns),
        "every table has bags without weights, which it does not affect",
    ),
    _Rule(
        _keys("trainer.schedule", "decay_examples"),
        lambda job: job.trainer.schedule.kind not in ("linear", "cosine"),
        'it is for "linear" and "cosine", and trainer.schedule.kind is "{job.trainer.schedule.kind}"',
    ),
    _Rule(
        _keys("trainer.schedule", "step_examples"),
        lambda job: job.trainer.schedule.kind not in ("step", "cosine_restarts", "cyclic"),
        'it is for "step", "cosine_restarts" and "cyclic", and trainer.schedule.kind is'
        ' "{job.trainer.schedule.kind}"',
    ),
    _Rule(
        _keys("trainer.schedule", "gamma"),
        lambda job: job.trainer.schedule.kind != "step",
        'it is for "step", and trainer.schedule.kind is "{job.trainer.schedule.kind}"',
    ),
    _Rule(
        ("trainer.schedule.final",),
        lambda job: job.trainer.schedule.kind == "constant",
        'with trainer.schedule.kind = "constant" the factor stays 1',
    ),
    _Rule(
        ("trainer.schedule.tables",),
        lambda job: job.trainer.schedule.kind == "constant" and not job.trainer.schedule.warmup_examples,
        "[trainer.schedule] changes no rate",
    ),
    _Rule(("embedding.placement",), lambda job: job.embedding.nodes == 1, "embedding.nodes is 1"),
    _Rule(
        _EVERY_SYNC,
        lambda job: job.sync.algorithm == "none",
        'sync.algorithm = "none" has no rounds',
    ),
    _Rule(
        (*_CENTER_CODECS, *_PEER_CODECS),
        lambda job: job.sync.algorithm == "none",
        'sync.algorithm = "none" has no rounds',
    ),
    _Rule(
        ("sync.optimizer_state",),
        lambda job: job.trainer.optimizer == "sgd",
        'trainer.optimizer = "sgd" has no state',
    ),
    _Rule(
        _SHADOW_ONLY,
        lambda job: job.sync.mode == "fixed",
        'sync.mode = "fixed" has a round after every sync.every iterations',
    ),
    _Rule(
        ("sync.every",),
        lambda job: job.sync.mode == "shadow",
        'it is for sync.mode = "fixed"; in the background sync.gap and sync.duty say when rounds are',
    ),
    _Rule(
        _CENTER_CODECS,
        lambda job: job.sync.algorithm in WITHOUT_CENTER,
        'sync.algorithm = "{job.sync.algorithm}" has no sync nodes: give codecs.peers_up and peers_down',
    ),
    _Rule(
        _PEER_CODECS,
        lambda job: job.sync.algorithm in WITH_CENTER,
        'trainers send nothing to each other with sync.algorithm = "{job.sync.algorithm}": give'
        " codecs.center_up and center_down",
    ),
    _Rule(
        ("sync.nodes",),
        # 0 is what a resolved job has.
        lambda job: job.sync.algorithm in (*WITHOUT_CENTER, "none") and job.sync.nodes != 0,
        'sync.algorithm = "{job.sync.algorithm}" has no sync nodes',
    ),
    _Rule(
        ("codecs.int8_block",),
        lambda job: "int8" not in _link_codecs(job),
        'no link of [codecs] is "int8"',
    ),
    _Rule(
        _keys("codecs", "topk_fraction topk_bits"),
        lambda job: "topk" not in _link_codecs(job),
        'no link of [codecs] is "topk"',
    ),
    _Rule(
        ("network.delay_links",),
        lambda job: job.network.slow is None,
        "neither network.delay nor network.bandwidth is given",
    ),
    _Rule(_keys("start", "which dense"), lambda job: not job.start.checkpoint, "start.checkpoint is empty"),
    _Rule(
        _keys("validation", "every_examples every_seconds every_epochs patience min_delta wait"),
        lambda job: not _has_validation_data(job),
        _NO_VALIDATION,
    ),
    _Rule(
        ("validation.metric",),
        # What held-out files have of groups follows from it, too, and own scores choose one themselves.
        lambda job: (
            not (
                _has_validation_data(job)
                or rows_that_count(job.validation.metric)
                or not job.model.has_logits
            )
        ),
        _NO_VALIDATION,
    ),
    _Rule(
        ("validation.every_epochs",),
        lambda job: job.validation.every_epochs >= job.data.epochs,
        "data.epochs is {job.data.epochs}, and the end is validated in any case",
    ),
)
"""Rules by key, in the order of the job file. A key that two rules name has the reason of the first."""


def _lookups(job: Job) -> Iterator[Ineffective]:
    """Yield the lookups ahead, if there are fewer batches than that."""
    most, ahead = _most_lookups_ahead(job), job.trainer.lookups_ahead
    if ahead != "auto" and ahead > max(most, 1):
        needed = -(-(ahead + 1) // job.data.readers)
        yield Ineffective(
            "trainer.lookups_ahead",
            ahead,
            f"acts as {most}: a worker has at most {job.trainer.credit} batches of a reader (trainer.credit),"
            f" with the one that it computes; set trainer.credit = {needed}, or this to {most}",
        )


def _types(job: Job) -> Iterator[Ineffective]:
    for name, column in job.data.columns.items():
        if column.type != "number" and not column.expression:
            reason = "has no effect: it is for a label with an expression"
            yield Ineffective(f"data.columns.{name}.type", column.type, reason)


def _folders(job: Job) -> Iterator[Ineffective]:
    """Yield the folders of tables that have no file."""
    for table in job.tables:
        if _states(job, table.name, "folder") and not _may_be_on_disk(job, table):
            why = "all rows of the table are in memory: give its memory_bytes, or leave it out"
            yield Ineffective(f"tables.{table.name}.folder", table.folder, f"has no effect: {why}")


def _may_be_on_disk(job: Job, table: TableSettings) -> bool:
    """Return whether the bytes that a table's rows have in memory are limited."""
    return bool(job.embedding.memory_bytes if table.memory_bytes is None else table.memory_bytes)


_OF_TABLES: Final[Mapping[str, str]] = {
    "model.embedding_dim": "dim",
    "model.table_rows": "rows",
    "embedding.optimizer": "optimizer",
    "embedding.lr": "lr",
    "embedding.weight_decay": "weight_decay",
    "embedding.init_scale": "init_scale",
    "embedding.storage": "storage",
    "embedding.memory_bytes": "memory_bytes",
}


def _overridden(job: Job) -> Iterator[Ineffective]:
    """Yield the keys of all tables that each table has of its own."""
    names = [table.name for table in job.tables]
    for key, of_table in _OF_TABLES.items():
        value, default = _value_and_default(job, key)
        if value != default and all(_states(job, name, of_table) for name in names):
            yield Ineffective(
                key, value, f"has no effect: each table has its own {of_table} in [tables.NAME]"
            )


def _states(job: Job, name: str, option: str) -> bool:
    """Return whether a table or its columns state an option."""
    fixed = any(column.fixed_rows is not None for column in job.data.table_columns if column.table == name)
    if option == "rows" and fixed:
        return True
    options = ("rows", "max_bytes") if option == "rows" else (option,)
    section = job.table_sections.get(name)
    return any(getattr(section, option, None) is not None for option in options)


def _value_and_default(job: Job, key: str) -> tuple[Any, Any]:
    *sections, name = key.split(".")
    section: BaseModel = job
    for part in sections:
        section = getattr(section, part)
    default = type(section).model_fields[name].get_default(call_default_factory=True)
    return getattr(section, name), default


def _short(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else f"{text[:57]}..."
