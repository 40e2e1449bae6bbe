"""What a job says about itself: its nodes, its digest, and what determinism asks for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.config.job import Job

from .conftest import DATA

Load = Callable[..., Job]

DETERMINISTIC = ("run.deterministic=true", "sync.mode=fixed")

# Another value for each setting that is no flag, nor a number that has one near it.
OTHER: dict[str, Any] = {
    "run.name": "other",
    "run.directory": "elsewhere",
    "run.storage": "s3://bucket/other",
    "run.coordinator_wait_seconds": 31.0,
    "run.background_priority": "normal",
    "data.format": "criteo_tsv",
    "data.path": ["/other"],
    "data.validation_path": ["/other"],
    "data.eval_path": ["/other"],
    "data.prepared": "/other",
    "data.columns": {"y": "label", "x": "categorical"},
    "data.delimiter": ";",
    "data.encoding": "cp1252",
    "data.quote": "",
    "data.missing": ["?"],
    "data.decimal": ",",
    "data.split": {"by": "fraction", "test": 0.1},
    "data.kafka": {"security_protocol": "ssl"},
    "data.order": "time",
    "model.name": "other",
    "model.table_kind": "hashed",
    "model.table_rows": 99,
    "model.output_bias": -3.0,
    "model.loss": "focal",
    "model.scores": "own",
    "model.focal_gamma": 1.5,
    "model.label_smoothing": 0.1,
    "model.dropout": 0.5,
    "model.bottom": [8],
    "model.top": [8],
    "model.attention": {"history": "shop"},
    "model.query": ["shop", "user"],
    "model.item": ["item", "brand"],
    "model.negatives": "skipped",
    "model.options": {"x": 1},
    "trainer.optimizer": "sgd",
    "trainer.ema": 0.999,
    "trainer.clip_norm": 1.0,
    "trainer.precision": "bfloat16",
    "trainer.device": "cuda:1",
    "trainer.schedule": {"kind": "linear", "decay_examples": 9},
    "trainer.credit": 5,
    "trainer.lookups_ahead": 3,
    "tables.C1": {"rows": 7},
    "embedding.optimizer": "sgd",
    "embedding.storage": "bfloat16",
    "embedding.placement": "rows",
    "embedding.memory_bytes": 2**32,
    "embedding.folder": "/tmp",
    "sync.algorithm": "none",
    "sync.mode": "fixed",
    "sync.gap": 5,
    "sync.start_duty": 0.2,
    "sync.optimizer_state": "synchronized",
    "sync.link_bytes_per_second": 1e6,
    "sync.options": {"elastic_rate": 0.1},
    "codecs.center_up": "int8",
    "codecs.center_down": "int8",
    "codecs.peers_up": "topk",
    "codecs.peers_down": "bfloat16",
    "codecs.vectors": "bfloat16",
    "codecs.gradients": "bfloat16",
    "codecs.topk_bits": 4,
    "network.transport": "tcp",
    "network.bind": "0.0.0.0",
    "network.advertise": "host",
    "network.delay": "50ms",
    "network.bandwidth": "100mbit",
    "network.delay_links": "all",
    "start.checkpoint": "/other",
    "start.which": "best",
    "start.dense": "all",
    "validation.metric": "auc",
    "validation.group": "user",
    "validation.items": "/items.csv",
    "validation.own": ["pairs"],
    "watch.web": "8080",
    "watch.mlflow": "sqlite:///ml.db",
}
# What another value of a setting needs beside it.
_TOWERS = (
    "data.format=csv",
    'data.columns={y="label", item="categorical", brand="categorical", shop="categorical", '
    'user="categorical"}',
    "model.name=two_tower",
)
_CATALOGUE = (
    'data.columns={y="label", user="categorical", item="categorical", of={kind="group", source="user"}}',
    "model.name=two_tower",
    'model.query=["user"]',
    'model.item=["item"]',
)
NEEDED = {
    "model.query": (*_TOWERS, 'model.query=["user", "shop"]', 'model.item=["item", "brand"]'),
    "model.item": (*_TOWERS, 'model.query=["user", "shop"]', 'model.item=["brand", "item"]'),
    "model.focal_gamma": ("model.loss=focal",),
    "model.attention": (
        "data.format=csv",
        'data.columns={y="label", item="categorical", shop="categorical", history={kind="multi_hot", '
        'pooling="none"}}',
        "model.name=din",
        'model.attention={history="item"}',
    ),
    "run.deterministic": ("sync.mode=fixed",),
    "data.order": ('data.columns={y="label", x="categorical", t="timestamp"}', "data.shuffle_window=0"),
    "data.encoding": ("data.format=csv", 'data.columns={y="label", x="categorical"}'),
    "start.resume": ("start.checkpoint=/run",),
    "validation.patience": ("validation.every_seconds=60",),
    "validation.group": ('data.columns={y="label", item="categorical", user="group"}',),
    "validation.items": _CATALOGUE,
    "validation.exclude_trained": (*_CATALOGUE, "validation.items=training", "validation.group=of"),
    "validation.own": ("model.name=./own.py:Own",),
    "model.scores": ("model.name=./own.py:Own", "model.loss=own", "validation.metric=auc"),
    "validation.wait": ("validation.every_seconds=60",),
    "sync.start_iterations": ("sync.gap=9",),
    "sync.start_duty": ("sync.gap=9", "sync.start_iterations=9"),
}
# No job is valid both with and without it, its other settings being the same.
ALONE = {"model.negatives"}
LOCAL = ("run.directory", "trainer.device", "data.kafka", "network.", "watch.", "report.")


def _settings() -> set[str]:
    keys = set()
    for section, field in Job.model_fields.items():
        if section == "table_sections":
            # What a section of one table may say has tests of its own.
            keys.add("tables.C1")
            continue
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        keys |= {f"{section}.{key}" for key in field.annotation.model_fields}
    return keys


def _changed(job: Job, setting: str) -> Job:
    """The job with another value of a setting: of OTHER, or a flag turned, or a number near it."""
    section, key = setting.split(".")
    tree = job.model_dump()
    value = tree[section].get(key)
    if setting in OTHER or not isinstance(value, int | float):
        tree[section][key] = OTHER[setting]
    elif isinstance(value, bool):
        tree[section][key] = not value
    else:
        tree[section][key] = value + 1
        with suppress(ValidationError):
            return Job.model_validate(tree)
        tree[section][key] = value / 2
    return Job.model_validate(tree)


def test_other_values_are_of_settings() -> None:
    assert OTHER.keys() <= _settings()


@pytest.mark.parametrize("setting", sorted(_settings() - ALONE))
def test_digest_is_of_all_that_the_nodes_must_agree_on(load: Load, setting: str) -> None:
    job = load("", *NEEDED.get(setting, ()))
    other = _changed(job, setting)
    assert other != job
    assert (other.digest == job.digest) == setting.startswith(LOCAL)


def test_digest_is_of_the_hard_negatives(load: Load) -> None:
    lists = '={kind="multi_hot", table="item", pooling="none"}'
    job = load(
        "",
        f'data.columns={{y="label", user="categorical", item="categorical", skipped{lists}}}',
        "model.name=two_tower",
        'model.query=["user"]',
        'model.item=["item"]',
        "model.negatives=skipped",
    )
    without = job.model_copy(update={"model": job.model.model_copy(update={"negatives": ""})})
    assert without.digest != job.digest


def test_digest_is_the_same_in_another_process(load: Load, tmp_path: Path) -> None:
    """It is a hash of the values, not of Python's order or memory."""
    job = load("", "model.options={b=1, a=2}")
    file = tmp_path / "job.json"
    file.write_text(job.model_dump_json(), encoding="utf-8")
    script = "import sys; from shadowsync.pipeline.jobfile import load\n"
    script += "print(load.load_resolved(sys.argv[1]).digest)"
    done = subprocess.run([sys.executable, "-c", script, file], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == job.digest
    assert len(job.digest) == 64


def test_a_job_cannot_be_changed(load: Load) -> None:
    job = load()
    with pytest.raises(ValidationError):
        job.trainer.workers = 3
    assert job.trainer.workers == 1


def test_expected_nodes(load: Load) -> None:
    counts = ("data.readers=2", "trainer.count=3", "embedding.nodes=4", "sync.nodes=5")
    assert load("", *counts).expected == {"reader": 2, "trainer": 3, "embedding": 4, "sync": 5}
    alone = load("", *counts, "sync.algorithm=none")
    assert alone.expected == {"reader": 2, "trainer": 3, "embedding": 4, "sync": 0}
    assert alone.sync_nodes == 0


def test_one_trainer_has_a_center_unless_another_algorithm_is_given(load: Load) -> None:
    """A center has the model if the only trainer dies; among several, a living one has it."""
    alone, several = "trainer.count=1", "trainer.count=2"
    assert [load("", given).sync.algorithm for given in (alone, several)] == ["easgd", "bmuf"]
    whole = ("sync.algorithm=easgd", "sync.options={elastic_rate=1.0}")
    assert load("", alone, "sync.gap=4").sync == load("", alone, "sync.gap=4", *whole).sync
    own = load("", alone, "sync.options={elastic_rate=0.5}").sync
    assert (own.algorithm, own.options) == ("easgd", {"elastic_rate": 0.5})
    assert load("", alone, "sync.algorithm=easgd").sync.options == {}
    assert load("", alone, "sync.algorithm=bmuf").sync.algorithm == "bmuf"
    assert load("", several, "sync.algorithm=easgd").sync.algorithm == "easgd"


def test_depth_is_exact_if_nobody_else_changes_a_row(load: Load) -> None:
    bags = ("data.format=csv", 'data.columns={y="label", x="multi_hot"}')
    assert load("", "trainer.workers=4").depth_is_exact
    for control in (("trainer.count=2",), ("trainer.exact_rows=false",), bags):
        assert not load("", *control).depth_is_exact


@pytest.mark.parametrize("key", ["trainer.count", "trainer.workers", "data.readers"])
def test_deterministic_needs_one_of_each(refusal: Callable[..., str], load: Load, key: str) -> None:
    assert refusal(DATA, *DETERMINISTIC, f"{key}=2") == f"{key}: 2 given; run.deterministic = true needs 1"
    assert load("", *DETERMINISTIC).run.deterministic
    assert not load("", f"{key}=2").run.deterministic


def test_deterministic_needs_an_input_that_is_there(refusal: Callable[..., str], load: Load) -> None:
    assert refusal(DATA, *DETERMINISTIC, "data.follow=true") == (
        "data.follow: true given; when files come is not the same in each run, so"
        " run.deterministic = true needs false"
    )
    assert load("", "data.follow=true").data.follow


def test_a_followed_input_has_no_epochs_to_validate_by(refusal: Callable[..., str], load: Load) -> None:
    assert refusal(DATA, "data.follow=true", "validation.every_epochs=1") == (
        "validation.every_epochs: 1 given; with data.follow no epoch ends, so set every_examples or "
        "every_seconds"
    )
    assert load("", "data.follow=true", "validation.every_examples=1").validation.every_examples == 1
    assert load("", "validation.every_epochs=1").validation.every_epochs == 1


def test_deterministic_needs_a_fixed_rate(refusal: Callable[..., str], load: Load) -> None:
    assert refusal(DATA, "run.deterministic=true") == (
        'sync.mode: "shadow" given; run.deterministic = true needs "fixed", or sync.algorithm = "none"'
    )
    assert load("", "run.deterministic=true", "sync.algorithm=none").sync.mode == "shadow"
    assert load("", *DETERMINISTIC).sync.mode == "fixed"


def test_deterministic_trains_as_much_each_time(refusal: Callable[..., str], load: Load) -> None:
    assert refusal(DATA, *DETERMINISTIC, "validation.every_examples=9", "validation.patience=2") == (
        "validation.patience: 2 given; how much is trained when a validation is due is not the same in each"
        " run, so run.deterministic = true needs 0"
    )
    assert load("", *DETERMINISTIC, "validation.every_examples=9").validation.every_examples == 9
    assert load("", "validation.every_examples=9", "validation.patience=2").validation.patience == 2


def test_codecs_of_each_link_with_their_options(load: Load) -> None:
    def names(pair: LinkCodecs) -> tuple[str, str]:
        return pair.up.name, pair.down.name

    assert names(load().codecs.center()) == names(load().codecs.peers()) == ("float32", "float32")
    settings = ("codecs.center_up=int8", "codecs.peers_up=topk", "codecs.peers_down=bfloat16")
    codecs = load(
        "", *settings, "codecs.int8_block=256", "codecs.topk_fraction=0.25", "codecs.topk_bits=8"
    ).codecs
    assert names(codecs.center()) == ("int8", "float32")
    assert names(codecs.peers()) == ("topk", "bfloat16")
    values = np.ones(1024, np.float32)
    center = codecs.center()
    assert center.up.encode(values).nbytes == 1024 + 4 * 4
    assert codecs.peers().up.encode(values).nbytes == 4 + 256 + 1024 // 8
    rows = load("", "codecs.vectors=bfloat16", "codecs.gradients=float32").codecs.embedding()
    assert names(rows) == ("float32", "bfloat16")
