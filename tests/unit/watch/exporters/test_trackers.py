"""Experiment trackers: what is written, and that none of them delays or ends a job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.watch.exporters import trackers
from shadowsync.watch.exporters.trackers import (
    QUEUED_STEPS,
    MlflowRun,
    TrackerThread,
    WandbRun,
    open_scalars,
)

ENOUGH_SECONDS = 60.0


class Held:
    """A writer that waits until it is let go, and then keeps what it gets."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def add(self, step: int, values: Mapping[str, float]) -> None:
        assert self.let_go.wait(ENOUGH_SECONDS)
        self.steps.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


def test_all_steps_reach_the_tracker_before_the_end() -> None:
    held = Held()
    held.let_go.set()
    thread = TrackerThread("held", lambda: held)
    for step in range(QUEUED_STEPS // 2):
        thread.add(step, {"ne/all": 0.5})
    thread.close()
    assert held.steps == [(step, {"ne/all": 0.5}) for step in range(QUEUED_STEPS // 2)]
    assert held.closed


def test_a_slow_tracker_delays_nothing_and_the_log_says_what_it_lacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = Held()
    thread = TrackerThread("held", lambda: held)
    for step in range(3 * QUEUED_STEPS):
        thread.add(step, {"ne/all": 0.5})
    held.let_go.set()
    thread.close()
    # One step is with the writer, if it has begun.
    assert len(held.steps) in (QUEUED_STEPS, QUEUED_STEPS + 1)
    assert f"held: was too slow, and lacks {3 * QUEUED_STEPS - len(held.steps)} steps" in caplog.text


def test_one_that_does_not_answer_is_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.05)
    held = Held()
    thread = TrackerThread("held", lambda: held)
    for step in range(2 * QUEUED_STEPS):
        thread.add(step, {})
    thread.close()
    assert "held: does not answer" in caplog.text
    held.let_go.set()


@pytest.mark.parametrize("before", [True, False])
def test_the_end_does_not_wait_for_one_that_has_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """It fails before the end, or while that waits, with as many steps queued as there is room for."""
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 1_000 * ENOUGH_SECONDS)
    may_fail, writing = threading.Event(), threading.Event()

    class Failing(Held):
        def add(self, step: int, values: Mapping[str, float]) -> None:  # noqa: ARG002
            writing.set()
            assert may_fail.wait(ENOUGH_SECONDS)
            raise RuntimeError("no")

    thread = TrackerThread("failing", Failing)
    thread.add(0, {})
    assert writing.wait(ENOUGH_SECONDS)
    for step in range(QUEUED_STEPS):
        thread.add(step, {})
    end = threading.Thread(target=thread.close, daemon=True)
    if before:
        may_fail.set()
        wait_until(lambda: "no more is written" in caplog.text, "the failure")
    end.start()
    may_fail.set()
    end.join(ENOUGH_SECONDS)
    assert not end.is_alive()
    assert "does not answer" not in caplog.text


@pytest.mark.parametrize("where", ["open", "add", "close"])
def test_a_failure_is_logged_once(caplog: pytest.LogCaptureFixture, where: str) -> None:
    class Broken(Held):
        def add(self, step: int, values: Mapping[str, float]) -> None:  # noqa: ARG002
            if where == "add":
                raise RuntimeError(f"no {where}")

        def close(self) -> None:
            raise RuntimeError(f"no {where}")

    def opened() -> Held:
        if where == "open":
            raise RuntimeError(f"no {where}")
        return Broken()

    thread = TrackerThread("broken", opened)
    for step in range(3):
        thread.add(step, {"ne/all": 0.5})
    thread.close()
    for step in range(2 * QUEUED_STEPS):
        thread.add(step, {"ne/all": 0.5})
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        f"broken: cannot be written (RuntimeError: no {where}); no more is written"
    ]


SETTINGS = {"trainer.lr": 0.1, "data.columns.a b,c.kind": "categorical", "data.path": ["x" * 9_000]} | {
    f"tables.t{k}.dim": k for k in range(250)
}


@pytest.mark.filterwarnings("default")
def test_mlflow_has_settings_and_scalars_and_goes_on_with_a_folder_s_run(tmp_path: Path) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    uri, folder = f"sqlite:///{tmp_path}/ml.db", tmp_path / "it's-2"
    run = MlflowRun(uri, "demo", folder, SETTINGS)
    run.add(100, {"ne/all": 0.5, "ne/a,b": 0.25})
    run.close()
    # As a coordinator that takes over.
    again = MlflowRun(uri, "demo", folder, SETTINGS)
    again.add(200, {"ne/all": 0.25})
    again.close()
    other = MlflowRun(uri, "demo", tmp_path / "other", {})
    other.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("demo")
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(found.info.run_name for found in runs) == ["it's-2", "other"]
    (found,) = [found for found in runs if found.info.run_name == "it's-2"]
    assert found.info.status == "FINISHED"
    assert len(found.data.params) == len(SETTINGS)
    assert found.data.params["trainer.lr"] == "0.1"
    assert found.data.params["data.columns.a b_c.kind"] == '"categorical"'
    history = client.get_metric_history(found.info.run_id, "ne/all")
    assert [(point.step, point.value) for point in history] == [(100, 0.5), (200, 0.25)]
    assert found.data.metrics["ne/a_b"] == 0.25


@pytest.mark.filterwarnings("default")
def test_wandb_writes_an_offline_run_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = WandbRun("demo", tmp_path, {"trainer.lr": 0.1})
    run.add(100, {"ne/all": 0.5})
    # A validation is of an earlier step.
    run.add(50, {"ne/validation": 0.625})
    run.close()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    # Its server writes the file.
    texts = (b"trainer.lr", b"ne/all", b"0.5", b"ne/validation", b"0.625", b"examples", b"100")
    wait_until(lambda: all(text in file.read_bytes() for text in texts), "the offline run")
    assert b"0.375" not in file.read_bytes()


def test_only_what_is_installed_and_configured_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Noted(Held):
        def __init__(self, name: str, _open_writer: object) -> None:
            super().__init__()
            opened.append(name)
            self.let_go.set()

    monkeypatch.setattr(trackers, "TrackerThread", Noted)
    monkeypatch.setattr(trackers, "missing_modules", lambda extra: [extra] if extra == "wandb" else [])
    data = {"format": "parquet", "path": "x"}
    watch = {"mlflow": "http://nowhere:1", "wandb": True, "tensorboard": True}
    scalars = open_scalars(job_of_tree({"data": data, "watch": watch}), tmp_path)
    assert opened == ["MLflow"]
    assert len(scalars) == 2
    for each in scalars:
        each.publish(a_status(seconds=1.0))
        each.close()
    assert open_scalars(job_of_tree({"data": data}), tmp_path) == []
