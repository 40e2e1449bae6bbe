"""Keys that other keys make ineffective are said, with the key to blame; those in effect are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import BaseModel
from shadowsync.pipeline.config.columns import ColumnSection
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.tables import TableSection
from shadowsync.pipeline.jobfile.ineffective import (
    RULES,
    WITH_CENTER,
    WITHOUT_CENTER,
    ineffective_keys,
    job_warnings,
)
from shadowsync.sync_algos.catalog.names import NEEDS_CENTER

Load = Callable[..., Job]

CSV = ("data.format=csv", 'data.columns={y="label", x="categorical"}')
BAGS = ("data.format=csv", 'data.columns={y="label", x="multi_hot"}')
BUCKETS = ("data.format=csv", 'data.columns={y="label", x={kind="bucket", boundaries=[1]}}')

TOPK = ("codecs.center_up=topk", "sync.algorithm=easgd")
IN_ORDER = ("run.deterministic=true", "sync.algorithm=none")
TOPIC = ('data.path="kafka://h:1/t"', "data.header=false", *CSV)
ON_DISK = "tables.x.memory_bytes=1GiB"
VALIDATED = "data.validation_path=/some"

# What is set, beside what it has no effect, and beside what it has one.
CASES: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("trainer.lookups_ahead=16", ("trainer.credit=4",), ("trainer.credit=17",)),
    ("trainer.lookups_ahead=16", ("trainer.credit=4",), ("trainer.credit=auto",)),
    ("trainer.lookups_ahead=5", ("trainer.credit=4",), ("trainer.credit=4", "data.readers=2")),
    ("trainer.lookups_ahead=2", IN_ORDER, ()),
    ("run.background_priority=normal", ("checkpoint.every_seconds=0",), ()),
    ('embedding.folder="/tmp"', (), ("embedding.memory_bytes=4GiB",)),
    ('embedding.folder="/tmp"', (ON_DISK, 'tables.x.folder="/mnt"', *CSV), (ON_DISK, *CSV)),
    ('tables.x.folder="/mnt"', CSV, (ON_DISK, *CSV)),
    ('tables.x.folder="/mnt"', CSV, ("embedding.memory_bytes=4GiB", *CSV)),
    ("embedding.memory_bytes=4GiB", (ON_DISK, *CSV), CSV),
    ("embedding.memory_bytes=4GiB", ("tables.x.memory_bytes=0", *CSV), CSV),
    ("data.header=false", (), CSV),
    ('data.delimiter=";"', (), CSV),
    ('data.quote=""', (), CSV),
    ('data.missing=["NA"]', (), CSV),
    ('data.decimal=","', (), CSV),
    ("data.strip=true", (), CSV),
    ("data.dense_features=2", CSV, ()),
    ("data.categorical_features=2", CSV, ()),
    ("data.span_bytes=65536", TOPIC, ()),
    (
        "data.sort_limit_bytes=2000000",
        (),
        ("data.order=time", 'data.columns={y="label", x="categorical", t="timestamp"}'),
    ),
    ("data.follow_seconds=1", (), ("data.follow=true",)),
    ("data.split.seed=3", (), ("data.negative_share=0.5",)),
    ("data.split.seed=3", (), ("data.split.by=fraction", "data.split.test=0.1")),
    ("data.kafka.security_protocol=ssl", (), TOPIC),
    ("model.bottom=[8]", ("model.name=wide_deep",), ()),
    ("model.bottom=[8]", ("model.name=mine:Model",), ()),
    ("model.bottom=[8]", CSV, ()),
    ("model.top=[8]", ("model.name=mine:Model",), ()),
    ("model.output_bias=1", ("start.checkpoint=/run",), ("start.dense=none", "start.checkpoint=/run")),
    ("trainer.consecutive_batches=9", (), ("trainer.workers=2",)),
    ("trainer.exact_rows=false", ("trainer.lookups_ahead=0",), ("trainer.workers=2",)),
    ("trainer.exact_rows=false", IN_ORDER, ()),
    ("trainer.distinct_rows=true", BAGS, ("trainer.exact_rows=false",)),
    ("trainer.distinct_rows=true", (), ("trainer.exact_rows=false",)),
    ("trainer.schedule.decay_examples=9", (), ("trainer.schedule.kind=linear",)),
    ("trainer.schedule.step_examples=9", (), ("trainer.schedule.kind=step",)),
    ("trainer.schedule.gamma=0.1", (), ("trainer.schedule.kind=step", "trainer.schedule.step_examples=9")),
    ("trainer.schedule.final=0.1", (), ("trainer.schedule.kind=linear", "trainer.schedule.decay_examples=9")),
    ("trainer.schedule.tables=false", (), ("trainer.schedule.warmup_examples=9",)),
    ("embedding.placement=rows", (), ("embedding.nodes=2",)),
    ("sync.gap=5", ("sync.mode=fixed",), ()),
    ("sync.duty=0.5", ("sync.algorithm=none",), ()),
    ("sync.every=5", (), ("sync.mode=fixed",)),
    ("sync.nodes=2", ("sync.algorithm=ma",), ("sync.algorithm=easgd",)),
    ("codecs.center_up=bfloat16", ("trainer.count=2",), ("sync.algorithm=easgd",)),
    ("codecs.peers_up=bfloat16", ("sync.algorithm=easgd",), ("trainer.count=2",)),
    ("codecs.int8_block=64", (), ("codecs.center_up=int8", "sync.algorithm=easgd")),
    ("codecs.topk_fraction=0.1", (), TOPK),
    ("codecs.topk_bits=4", (), TOPK),
    ("network.delay_links=all", (), ("network.delay=5ms",)),
    ("start.which=best", (), ("start.checkpoint=/run",)),
    ("validation.metric=auc", (), (VALIDATED,)),
    ("validation.every_seconds=5", (), (VALIDATED,)),
    ("validation.every_epochs=2", (VALIDATED, "data.epochs=2"), (VALIDATED, "data.epochs=3")),
    ("data.split.draw_by=name", (), ("data.negative_share=0.5",)),
    ("sync.optimizer_state=synchronized", ("trainer.optimizer=sgd", "trainer.count=2"), ("trainer.count=2",)),
    ("model.table_rows=9", ("tables.x.rows=5", *CSV), CSV),
    ("model.table_rows=9", BUCKETS, CSV),
    ("model.table_rows=9", ("tables.x.kind=growing", "tables.x.max_bytes=9999", *CSV), CSV),
    (
        'data.columns={y={kind="label", type="text"}, x="categorical"}',
        ("data.format=csv",),
        (
            'data.columns={y={kind="label", type="text", expression="y = 1"}, x="categorical"}',
            "data.format=csv",
        ),
    ),
    ("embedding.lr=0.5", ("tables.x.lr=0.1", *CSV), CSV),
    ("embedding.weight_decay=0.5", ("tables.x.weight_decay=0.0", *CSV), CSV),
]


@pytest.mark.parametrize(("given", "without", "with_effect"), CASES)
def test_a_key_without_effect_is_said_and_one_with_effect_is_not(
    load: Load, given: str, without: tuple[str, ...], with_effect: tuple[str, ...]
) -> None:
    key = given.partition("=")[0]
    key = "data.columns.y.type" if key == "data.columns" else key
    assert [found.key for found in ineffective_keys(load("", given, *without))] == [key]
    assert (
        key not in {found.key for found in ineffective_keys(load("", given, *with_effect))} or not with_effect
    )


def test_the_reason_names_the_other_key_and_what_to_do(load: Load) -> None:
    (found,) = ineffective_keys(load("", "trainer.lookups_ahead=16", "trainer.credit=4"))
    assert str(found) == (
        "trainer.lookups_ahead: 16 acts as 3: a worker has at most 4 batches of a reader (trainer.credit),"
        " with the one that it computes; set trainer.credit = 17, or this to 3"
    )
    (found,) = ineffective_keys(load("", "sync.every=5"))
    assert str(found).startswith(
        'sync.every: 5 has no effect: it is for sync.mode = "fixed"; in the background'
    )


def test_nothing_is_said_of_defaults(load: Load) -> None:
    assert ineffective_keys(load()) == []
    assert ineffective_keys(load("", "trainer.count=4")) == []
    assert ineffective_keys(load("", "sync.algorithm=none")) == []


def test_the_algorithms_are_known() -> None:
    assert {*WITHOUT_CENTER, "none"} == {name for name, needs in NEEDS_CENTER.items() if not needs}
    assert set(WITH_CENTER) == {name for name, needs in NEEDS_CENTER.items() if needs}


# What always has an effect, or is refused where it has none. A new key belongs here or in a rule.
ALWAYS = """
run: name seed deterministic directory storage keep_checkpoints node_timeout_seconds
run: start_timeout_seconds restarts rejoin_seconds coordinator_wait_seconds
data: format path validation_path eval_path prepared columns encoding negative_share order follow epochs
data: shuffle_window max_bad_rows max_bad_fraction readers retain_bytes
data.split: by column validation test validation_from test_from progressive
model: name table_kind loss scores focal_gamma positive_weight label_smoothing dropout layer_norm attention
model: query item negatives options
trainer: count workers batch optimizer lr weight_decay ema clip_norm precision device max_bad_batches
trainer: credit
trainer.schedule: kind warmup_examples
embedding: nodes warmup_iterations threads memory_fraction
sync: algorithm
codecs: vectors gradients
network: transport shared_memory bind advertise delay bandwidth
start: checkpoint resume
checkpoint: every_examples every_seconds
validation: group own items exclude_trained
watch: web tensorboard mlflow wandb metrics_port
report: pictures
tables.NAME: rows dim optimizer lr weight_decay init_scale storage memory_bytes pooled_by kind max_bytes
tables.NAME: admit_after evict evict_after_batches evict_after_seconds
data.columns.NAME: kind source table threshold positive negative expression loss_weight transform part format
data.columns.NAME: shift scale boundaries quantiles columns delimiter pooling max_ids keep weights
"""
# Their rules are about numbers, or about entries with names.
ELSEWHERE = """
trainer: lookups_ahead
model: embedding_dim table_rows
embedding: optimizer lr weight_decay init_scale storage memory_bytes
tables.NAME: folder
data.columns.NAME: type
"""


def _named(text: str) -> set[str]:
    lines = [line.split(":") for line in text.strip().splitlines()]
    return {f"{section}.{name}" for section, names in lines for name in names.split()}


def _keys_of(section: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= _keys_of(inner, f"{prefix}{name}.")
        elif prefix:
            found.add(f"{prefix}{name}")
    return found


def test_every_key_was_looked_at() -> None:
    ruled = {key for rule in RULES for key in rule.keys} | _named(ELSEWHERE)
    every = (
        _keys_of(Job) | _keys_of(TableSection, "tables.NAME.") | _keys_of(ColumnSection, "data.columns.NAME.")
    )
    assert len(every) > 120
    assert every - ruled == _named(ALWAYS)
    assert ruled <= every


def test_several_trainers_without_synchronization(load: Load) -> None:
    job = load("", "sync.algorithm=none", "trainer.count=3")
    (text,) = job_warnings(job)
    assert text.startswith('sync.algorithm: "none" leaves 3 trainers without synchronization')
    alone = load("", "sync.algorithm=none", "trainer.count=1")
    assert job_warnings(alone) == []
    assert job_warnings(load("", "trainer.count=3")) == []
