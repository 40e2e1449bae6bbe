"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import ResourceError
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.watch.exporters.event_file import FOLDER, EventFile
from shadowsync.watch.exporters.scalars import STEPS_PER_PERIOD, Scalars
from shadowsync.watch.status import Progress, ValidationStatus

Series = dict[str, list[tuple[int, float]]]


def read_back(folder: Path) -> Series:
    """(step, value) by tag, as TensorBoard has them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    series = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    for tag in found.Tags()["tensors"]:
        events = found.Tensors(tag)
        series[tag] = [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in events]
    return series


@pytest.mark.filterwarnings("default")
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    steps = [1, 200, 70_000, 2**40]
    for step in steps:
        file.add(step, {"ne/all": step / 3.0, "sync/gap": -1.5})
    file.close()
    series = read_back(tmp_path)
    assert set(series) == {"ne/all", "sync/gap"}
    assert [step for step, _ in series["ne/all"]] == steps
    values = [value for _, value in series["ne/all"]]
    assert values == pytest.approx([step / 3.0 for step in steps], rel=1e-6)
    assert {value for _, value in series["sync/gap"]} == {-1.5}


@pytest.mark.filterwarnings("default")
def test_a_record_that_was_altered_is_noticed(tmp_path: Path) -> None:
    """The control of the test above: TensorBoard checks the checksums."""
    file = EventFile(tmp_path)
    file.add(1, {"ne/all": 0.5})
    file.add(2, {"ne/all": 0.25})
    file.close()
    data = bytearray(file.path.read_bytes())
    data[-6] ^= 1
    file.path.write_bytes(data)
    assert [step for step, _ in read_back(tmp_path).get("ne/all", [])] == [1]


@pytest.mark.filterwarnings("default")
def test_a_run_s_scalars(tmp_path: Path) -> None:
    scalars = Scalars(EventFile(tmp_path / FOLDER))
    scalars.publish(a_status(seconds=1.0, progress=Progress(trained=0, distinct=0)))
    for number in (1, 2, 3):
        progress = Progress(trained=1000 * number, distinct=1000 * number)
        points = [
            ValidationStatus(examples=500 * at, value=1.0 / at, metrics={"ne": 1.0 / at, "pr_auc": 0.25})
            for at in range(1, number)
        ]
        scalars.publish(a_status(seconds=float(number), progress=progress, validation=points))
    scalars.publish(a_status(seconds=3.1, progress=Progress(trained=3001, distinct=3001)))
    scalars.close()
    series = read_back(tmp_path / FOLDER)
    assert [step for step, _ in series["ne/all"]] == [1000, 2000, 3000], "nothing early, nothing too soon"
    assert series["ne/validation"] == [(500, 1.0), (1000, 0.5)]
    assert series["pr_auc/validation"] == [(500, 0.25), (1000, 0.25)]
    assert {"examples_per_second/trainer-0", "examples_per_second/trainer-1", "sync/divergence"} <= set(
        series
    )
    assert "embedding/staleness_mean" not in series, "it was not measured"


def test_a_long_run_writes_less_and_less(tmp_path: Path) -> None:
    scalars = Scalars(EventFile(tmp_path / FOLDER))
    (path,) = (tmp_path / FOLDER).iterdir()
    sizes = [path.stat().st_size]
    for second in range(4 * STEPS_PER_PERIOD):
        scalars.publish(a_status(seconds=float(second)))
        if (second + 1) % STEPS_PER_PERIOD == 0:
            sizes.append(path.stat().st_size)
    scalars.close()
    grown = [after - before for before, after in itertools.pairwise(sizes)]
    assert grown[2] < 0.6 * grown[0]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file", encoding="utf-8")
    with pytest.raises(ResourceError, match=FOLDER):
        Scalars(EventFile(tmp_path / FOLDER))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_ends_the_file_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = EventFile(tmp_path / FOLDER)
    file.close()
    file._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115 - closed by what is tested
    scalars = Scalars(file)
    for second in (1.0, 2.0, 3.0):
        scalars.publish(a_status(seconds=second))
    assert caplog.text.count(f"{file.path}: cannot be written (No space left on device)") == 1
    scalars.close()


@pytest.mark.filterwarnings("default")
def test_what_a_float_cannot_hold_is_its_largest(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.add(1, {"ne/all": 1e39, "sync/divergence": -1e300, "sync/gap": float("inf")})
    file.close()
    series = {tag: [value for _, value in values] for tag, values in read_back(tmp_path).items()}
    largest = pytest.approx(3.4028235e38)
    assert series == {
        "ne/all": [largest],
        "sync/divergence": [pytest.approx(-3.4028235e38)],
        "sync/gap": [math.inf],
    }
