"""Which commands yield to training: those that read the checkpoint of a run that has not ended."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main as cli
from shadowsync.commands.models.beside_training import yield_to_training
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.performance import priority
from shadowsync.pipeline.saved_model.model import SavedModel

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that the process lowers its priority."""
    found: list[bool] = []
    monkeypatch.setattr(priority, "lower_process", lambda: found.append(True))
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has begun."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "coordinator.json").write_text("{}")
    (tmp_path / "job.json").write_text(json.dumps({"run": {"background_priority": "low"}}))
    return tmp_path


@pytest.mark.parametrize("place", ["", "checkpoint"])
def test_one_that_trains(
    run: Path, place: str, lowered: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    yield_to_training(str(run / place))
    assert lowered == [True]
    assert capsys.readouterr().err == f"{run} has not ended: this command yields to its training (nice 10)\n"


def test_of_an_earlier_version(run: Path, lowered: list[bool]) -> None:
    (run / "job.json").write_text(json.dumps({"run": {}}))
    yield_to_training(str(run))
    assert lowered == [True]


@pytest.mark.parametrize("change", ["it has ended", "it does not want it", "no run", "a URL", "no job"])
def test_others_do_not(
    run: Path, change: str, lowered: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(run)
    if change == "it has ended":
        (run / "report.json").write_text("{}")
    elif change == "it does not want it":
        (run / "job.json").write_text(json.dumps({"run": {"background_priority": "normal"}}))
    elif change == "no run":
        (run / "coordinator.json").unlink()
    elif change == "no job":
        (run / "job.json").unlink()
    else:
        place = "s3://bucket/run"
    yield_to_training(place)
    assert (lowered, capsys.readouterr().err) == ([], "")


@pytest.mark.parametrize(
    ("command", "more", "yields"),
    [
        ("export", ["--out", "served"], False),
        ("eval", ["--data", "a.csv"], True),
        ("predict", ["--data", "a.csv", "--out", "b.csv"], True),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_an_export_keeps_its_priority_and_takes_one_core(
    run: Path,
    lowered: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    more: list[str],
    yields: bool,
    trains: bool,
) -> None:
    """Somebody waits for it, and the model bounds its work; the others score as much as they are given."""
    if not trains:
        (run / "report.json").write_text("{}")
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(THREADS[-1], "3")
    found: list[list[str | None]] = []

    def opened(*_: object, **__: object) -> None:
        found.append([os.environ.get(name) for name in THREADS])
        raise JobFileError("far enough", remedy="look at what it found")

    monkeypatch.setattr(SavedModel, "open", opened)
    monkeypatch.chdir(run)
    done = CliRunner().invoke(cli, [command, str(run), *more])
    assert "far enough" in done.output
    assert lowered == ([True] if yields and trains else [])
    one_core = trains and not yields
    assert found == [["1", "1", "3"] if one_core else [None, None, "3"]], "what a user set stays"
