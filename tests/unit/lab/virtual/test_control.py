"""The control of the synchronization on emulated machines: on mixed data, on skewed ones, on a slow link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.adaptation import Control
from shadowsync.tests.support.jobs.runs import JobMaker

TRAINERS = 4
EPOCHS = 2


@pytest.fixture(scope="module")
def files(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The click log's examples in four files: mixed, and by their label."""
    folder = tmp_path_factory.mktemp("skew")
    table = pa.concat_tables([pq.read_table(path) for path in sorted(click_log.glob("train-*.parquet"))])
    orders = {
        "mixed": np.random.default_rng(1).permutation(len(table)),
        "skewed": np.argsort(table["label"].to_numpy(), kind="stable"),
    }
    for kind, order in orders.items():
        (folder / kind).mkdir()
        for number, part in enumerate(np.array_split(order, TRAINERS)):
            pq.write_table(table.take(pa.array(part)), folder / kind / f"part-{number}.parquet")
    return folder


def trained(
    job_file: JobMaker, data: Path, timing: Timing | None = None, epochs: int = EPOCHS, **sections: Any
) -> VirtualResult:
    changes = {
        "data": {"path": str(data / "part-*.parquet"), "epochs": epochs},
        "trainer": {"count": TRAINERS, "batch": 64},
        **sections,
    }
    return run_virtual(load_job(str(job_file(changes))), timing or Timing(own_files=True))


def controlled(job_file: JobMaker, data: Path, **sync: Any) -> Control:
    """What the first window of the control led to, and the end of the run: one epoch has no more."""
    result = trained(job_file, data, epochs=1, sync={"duty": 1.0, "control": "auto", **sync})
    assert result.control is not None
    return result.control


@pytest.mark.matrix
def test_only_trainers_that_are_fed_skewed_data_are_given_a_smaller_gap(
    job_file: JobMaker, files: Path
) -> None:
    # The gap of the first windows is bounded by where it begins.
    sync = {"duty": 1.0, "control": "auto", "gap": 16}
    skewed = trained(job_file, files / "skewed", epochs=5, sync=sync).control
    mixed = trained(job_file, files / "mixed", epochs=5, sync=sync).control
    # The same files as the skewed ones, which all readers deal to all trainers.
    dealt = trained(job_file, files / "skewed", Timing(), epochs=5, sync=sync).control
    assert skewed is not None
    assert mixed is not None
    assert dealt is not None
    assert skewed.gap < min(mixed.gap, dealt.gap)


@pytest.mark.matrix
def test_the_same_bytes_every_time(job_file: JobMaker, files: Path) -> None:
    sync = {"duty": 1.0, "control": "auto"}
    first, second = (trained(job_file, files / "mixed", epochs=1, sync=sync) for _ in range(2))
    assert first == second
    assert first.control is not None
    assert first.control.windows > 0


def test_rounds_come_as_the_control_says(job_file: JobMaker, files: Path) -> None:
    sync = {"duty": 1.0, "control": "auto"}
    result = trained(job_file, files / "mixed", sync=sync | {"control_bound": 1000.0})
    assert result.control is not None
    assert result.control.gap > 2
    assert result.gap_mean is not None
    assert 1.2 < result.gap_mean < result.control.gap


@pytest.mark.matrix
def test_a_slow_link_loosens_and_tells(job_file: JobMaker, files: Path) -> None:
    """The duty cycle allows a round every 20 iterations; the bound wants one after each."""
    control = controlled(job_file, files / "mixed", duty=0.005, control_bound=0.01)
    assert 15 <= control.gap <= 25
    assert "limited by the duty cycle or the link" in control.decisions[0].why
    assert not control.kept
    # The control of it: with room, the same bound leaves the gap at 1.
    assert controlled(job_file, files / "mixed", control_bound=0.01).gap == 1


@pytest.mark.matrix
def test_the_rate_follows_where_the_gap_cannot(job_file: JobMaker, files: Path) -> None:
    given = {"control_bound": 0.01, "options": {"elastic_rate": 0.1}}
    control = controlled(job_file, files / "mixed", **given)
    assert control.first_elastic_rate == 0.1
    assert control.elastic_rate is not None
    assert control.elastic_rate > 0.1
    assert control.gap == 1
    # Without a rate that may change there is none.
    assert (
        controlled(job_file, files / "mixed", algorithm="decoupled", control_bound=0.01).elastic_rate is None
    )


def test_each_trainer_needs_a_file_of_its_own(job_file: JobMaker) -> None:
    with pytest.raises(JobFileError, match=r"own_files: 4 trainers have 2 files .*; give data\.path as many"):
        run_virtual(load_job(str(job_file({"trainer": {"count": 4}}))), Timing(own_files=True))
