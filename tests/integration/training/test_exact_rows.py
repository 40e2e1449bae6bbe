"""Rows in flight are exact: a job that looks up far ahead learns what one that waits learns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, shared_run
from shadowsync.tests.support.jobs.resumed import check_trained_once, going_on, interrupted
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.tables.seen_rows import SeenRows

Settings = dict[str, dict[str, Any]]

# The rounding of a bfloat16 depends on placement, which depends on times if it is measured. A label rate is
# of as many rows as a machine reads in a second.
ALONE: Final[Settings] = {
    "trainer": {"count": 1, "distinct_rows": True},
    "embedding": {"nodes": 2, "placement": "rows"},
    "model": {"output_bias": -1.13},
    "sync": {"algorithm": "none"},
}
# Of NE: of sums in another order, and of rows that lack pushes.
ROUNDING, LATE = 1e-5, 5e-5


def changed(*changes: Mapping[str, Mapping[str, Any]]) -> Settings:
    """The settings of one trainer, with these."""
    settings: Settings = {name: dict(section) for name, section in ALONE.items()}
    for change in changes:
        for name, section in change.items():
            settings[name] = settings.get(name, {}) | dict(section)
    return settings


def ne_of(cluster: ClusterMaker, settings: Settings, name: str) -> float:
    """NE of a job that ends well, and in which nothing of `RowsInFlight` is left."""
    seen = SeenRows()
    run = finished(cluster, changed(settings, {"run": {"name": name}}), faults=(seen,))
    assert (seen.left, seen.broken) == (0, 0)
    return run.ne


VARIANTS: Final[dict[str, Settings]] = {
    "sgd": {"embedding": {"optimizer": "sgd"}},
    "measured placement": {"embedding": {"placement": "measured"}},
    "bfloat16": {"embedding": {"storage": "bfloat16"}},
    "growing in bfloat16": {
        "model": {"table_kind": "growing", "table_rows": 20_000},
        "embedding": {"storage": "bfloat16"},
    },
    "shared tables": {
        "data": {
            "columns": {
                "label": "label",
                "I*": "dense",
                "C1": "categorical",
                "C*": {"kind": "categorical", "table": "C1"},
            }
        }
    },
    "several threads without shared memory": {
        "embedding": {"threads": 3},
        "network": {"shared_memory": False},
    },
    "coded gradients": {"codecs": {"gradients": "bfloat16"}},
    "clipping and a schedule": {
        "trainer": {
            "clip_norm": 0.05,
            "schedule": {"kind": "cosine", "warmup_examples": 4000, "decay_examples": EXAMPLES},
        }
    },
    "several labels": {
        "data": {
            "columns": {
                "label": {"kind": "label"},
                "more": {"kind": "label", "source": "label", "threshold": 1},
                "I*": "dense",
                "C*": "categorical",
            }
        },
        "model": {"name": "mmoe", "options": {"experts": 2}, "output_bias": "drawn"},
    },
}
"""Where a job with rows in flight is equal to the bit to one without."""
NEARLY: Final[dict[str, Settings]] = {
    "adagrad": {"embedding": {"optimizer": "adagrad"}},
    "adam": {"embedding": {"optimizer": "adam", "lr": 0.01}},
    "several dims and optimizers": {
        "tables": {
            "C1": {"dim": 4, "optimizer": "sgd"},
            "C2": {"dim": 16, "optimizer": "adam", "lr": 0.01},
            "C3": {"kind": "growing", "rows": 20_000},
        },
        "model": {"name": "wide_deep"},
    },
    "bags": {
        "data": {
            "columns": {
                "label": "label",
                "I*": "dense",
                "C*": "categorical",
                "C1": {"kind": "multi_hot", "delimiter": "1"},
                "C2": {"kind": "multi_hot", "delimiter": "1", "pooling": "sum"},
            }
        },
        "tables": {"C1": {"pooled_by": "trainers"}, "C2": {"pooled_by": "trainers"}},
    },
}
"""Where an optimizer's state is not a sum, or its sums are rounded otherwise."""
# A first step of Adagrad has the size of the rate, whatever its gradient's. If that is rounded to the other
# sign, the job ends elsewhere.
PLAIN_STEPS: Final[Settings] = {"trainer": {"optimizer": "sgd", "lr": 0.1}}


def ne_at(cluster: ClusterMaker, settings: Settings, depth: int, *, exact: bool = True) -> float:
    """NE with so many lookups ahead."""
    own = changed(settings, {"trainer": {"lookups_ahead": depth, "exact_rows": exact}})
    return ne_of(cluster, own, f"depth-{depth}-{'exact' if exact else 'late'}")


@pytest.mark.parametrize("depth", [1, 16, pytest.param(4, marks=pytest.mark.matrix)])
def test_one_worker_learns_the_same_at_any_depth(cluster: ClusterMaker, unhurried: float, depth: int) -> None:
    """To the last digit; the control is rows as their nodes have them."""
    assert ne_at(cluster, {}, depth) == unhurried
    assert abs(ne_at(cluster, {}, depth, exact=False) - unhurried) > LATE


@pytest.fixture(scope="module")
def unhurried(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """NE of a job that looks up nothing ahead."""
    changes = changed({"trainer": {"lookups_ahead": 0}})
    return shared_run(tmp_path_factory.mktemp("unhurried"), click_log, changes).ne


@pytest.mark.matrix
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_does_so_with_every_kind_of_table(cluster: ClusterMaker, variant: str) -> None:
    settings = VARIANTS[variant]
    waits = ne_at(cluster, settings, 0)
    assert ne_at(cluster, settings, 16) == waits
    assert ne_at(cluster, settings, 16, exact=False) != waits


@pytest.mark.matrix
@pytest.mark.parametrize("variant", NEARLY)
def test_it_does_so_nearly_where_sums_are_rounded(cluster: ClusterMaker, variant: str) -> None:
    settings = changed(NEARLY[variant], PLAIN_STEPS)
    waits = ne_at(cluster, settings, 0)
    assert ne_at(cluster, settings, 16) == pytest.approx(waits, abs=ROUNDING)
    assert abs(ne_at(cluster, settings, 16, exact=False) - waits) > LATE


@pytest.mark.matrix
@pytest.mark.parametrize(
    "settings",
    [
        {"codecs": {"vectors": "bfloat16", "gradients": "bfloat16"}},
        {"tables": {"C3": {"kind": "growing", "admit_after": 3, "rows": 20_000}}},
        {"tables": {"C3": {"kind": "growing", "evict": "never", "rows": 60}}},
        {"trainer": {"workers": 2}},
        {"trainer": {"workers": 4}, "embedding": {"threads": 2}},
    ],
    ids=["coded vectors", "admitted late", "full", "two workers", "four workers"],
)
def test_what_a_trainer_cannot_know_is_close(
    cluster: ClusterMaker, unhurried: float, settings: Settings
) -> None:
    """A node's rows before they were coded, which key gets a row, and what other workers do meanwhile."""
    ne = ne_at(cluster, settings, 16)
    assert ne == pytest.approx(unhurried, abs=0.02)


@pytest.mark.matrix
def test_a_run_that_is_gone_on_with(cluster: ClusterMaker) -> None:
    settings = changed({"trainer": {"lookups_ahead": 16}})
    first = interrupted(cluster, changed(settings, {"run": {"name": "first"}}), 60)
    second = finished(cluster, going_on(settings, first, {"run": {"name": "second"}}))
    check_trained_once([first, second], 1, EXAMPLES)
    assert second.ne < 0.97
