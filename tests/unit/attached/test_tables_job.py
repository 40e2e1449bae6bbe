"""The job of the tables that modules want, and what differs from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.attached.errors import AttachError
from shadowsync.attached.hub.tables import covered
from shadowsync.attached.job import loop_job
from shadowsync.attached.tables_job import MAX_TABLES, require_tables, settings_of, tables_job
from shadowsync.pipeline.errors import JobFileError

WANTED: dict[str, Any] = {"user": {"rows": 10, "dim": 4, "lr": 0.5}, "label": {"rows": 3, "dim": 2}}


def test_what_a_module_does_not_say_is_the_hub_s() -> None:
    hub = loop_job({"embedding.nodes": 2, "embedding.optimizer": "adam"}, ["codecs.gradients=bfloat16"])
    job = tables_job(hub, WANTED)
    user, label = job.tables
    assert (user.name, user.rows, user.dim, user.lr, user.optimizer) == ("user", 10, 4, 0.5, "adam")
    assert (label.name, label.rows, label.lr, label.poolings) == ("label", 3, job.embedding.lr, "none")
    assert job.embedding.nodes == 2
    assert job.codecs.gradients == "bfloat16"
    require_tables(job, {"user": {"rows": 10}, "label": {"rows": 3, "optimizer": "adam"}}, "tables-0")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({}, f"0 tables given; give 1 to {MAX_TABLES}"),
        ({f"t{at}": {"rows": 1} for at in range(MAX_TABLES + 1)}, f"{MAX_TABLES + 1} tables given"),
        ({"": {"rows": 1}}, "'' cannot be the name"),
        ({"a?": {"rows": 1}}, r"'a\?' cannot be the name"),
        ({"a": {"dim": 1}}, r"tables\.a: .* give the number of rows"),
        ({"a": {"rows": 1, "kind": "growing"}}, r"tables\.a: "),
        ({"a": 3}, r"tables\.a: the settings are 3"),
        ({"a": {"rows": 1, "dim": 0}}, r"tables\.a\.dim"),
        ({"a": {"rows": 1, "lr": -1.0}}, r"tables\.a\.lr"),
        ({"a": {"rows": 1.5}}, r"tables\.a\.rows"),
        ({"a": {"rows": 1, "storage": "int4"}}, r"tables\.a\.storage"),
    ],
)
def test_tables_that_cannot_be(wanted: dict[str, Any], text: str) -> None:
    with pytest.raises(JobFileError, match=text):
        tables_job(loop_job({}), wanted)


def test_a_checkpoint_of_the_same_modules_goes_on(tmp_path: Path) -> None:
    hub = loop_job({})
    others, own = (tables_job(hub, WANTED, tmp_path, goes_on=goes_on) for goes_on in (False, True))
    assert (others.start.checkpoint, others.start.resume) == (str(tmp_path), False)
    assert own.start.resume
    assert settings_of(own)["user"] == WANTED["user"] | {
        "weight_decay": 0.0,
        "optimizer": hub.embedding.optimizer,
        "init_scale": hub.embedding.init_scale,
        "storage": "float32",
    }
    require_tables(own, settings_of(own), "tables-0")


@pytest.mark.parametrize(
    ("ranges", "count"), [([], 0), ([(3, 5)], 2), ([(3, 5), (4, 9), (4, 6)], 6), ([(8, 9), (0, 2)], 3)]
)
def test_what_not_all_nodes_have_is_counted_once(ranges: list[tuple[int, int]], count: int) -> None:
    assert covered(ranges) == count


def test_other_tables_are_named() -> None:
    job = tables_job(loop_job({}), WANTED)
    for wanted, text in (
        (WANTED | {"user": {"rows": 11}}, r"tables\.user\.rows: the module wants 11, .* of tables-0 has 10"),
        (WANTED | {"shop": {"rows": 3}}, "wants a table 'shop', and those of tables-0 are user, label"),
        ({"user": {"rows": 10}}, "has no table 'label', and tables-0 has"),
    ):
        with pytest.raises(AttachError, match=text):
            require_tables(job, wanted, "tables-0")
