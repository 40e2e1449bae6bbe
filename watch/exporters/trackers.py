"""Scalars for experiment trackers, on a thread: MLflow, and offline runs of Weights & Biases."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ...pipeline.config.job import Job
from ...pipeline.jobfile.extras import missing_modules
from ...pipeline.report.run_folders.runs_table import flat_settings
from ...pipeline.text.wall_clock import unix_seconds
from .scalars import Scalars, ScalarWriter

QUEUED_STEPS: Final = 64
CLOSE_SECONDS: Final = 10.0
FOLDER_TAG: Final = "shadowsync.folder"
# Limits of MLflow: parameters in one request, characters of a value, what names may have.
_PARAMETERS_AT_ONCE: Final = 100
_LONGEST_VALUE: Final = 6_000
_NOT_IN_NAMES: Final = re.compile(r"[^\w\-. /]")

log = logging.getLogger(__name__)


class MlflowRun:
    """A run of MLflow: scalars as its metrics, settings as its parameters.

    Its experiment has the name of the job, and the run that of its folder. A coordinator that takes over
    writes into the run that its folder has already. Raises what MLflow raises.

    Args:
        uri: tracking URI: a server, or "sqlite:///FILE".
        settings: by "section.key".
    """

    def __init__(self, uri: str, experiment: str, folder: Path, settings: Mapping[str, Any]) -> None:
        # MLflow would print what it does to its database.
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        mlflow, self._entities = importlib.import_module("mlflow"), importlib.import_module("mlflow.entities")
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(experiment)
        place = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        # A filter of MLflow cannot quote an apostrophe.
        tag = str(folder.absolute()).replace("'", "_")
        runs = self._client.search_runs([place], f"tags.`{FOLDER_TAG}` = '{tag}'")
        if runs:
            self._run = runs[0].info.run_id
            return
        self._run = self._client.create_run(place, run_name=folder.name, tags={FOLDER_TAG: tag}).info.run_id
        parameters = [
            self._entities.Param(_NOT_IN_NAMES.sub("_", name), json.dumps(value)[:_LONGEST_VALUE])
            for name, value in settings.items()
        ]
        for begin in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=parameters[begin : begin + _PARAMETERS_AT_ONCE])

    def add(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * unix_seconds())
        metrics = [
            self._entities.Metric(_NOT_IN_NAMES.sub("_", tag), value, now, step)
            for tag, value in values.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandbRun:
    """An offline run of Weights & Biases in the run's folder, which `wandb sync` uploads.

    Scalars are over "examples", since validations are of steps before. A coordinator that takes over gives
    its run the same id, and the upload joins them. Raises what wandb raises.

    Args:
        settings: by "section.key".
    """

    def __init__(self, project: str, folder: Path, settings: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        same = f"{folder.absolute()}:{folder.stat().st_ino}"
        self._run = wandb.init(
            project=project,
            name=folder.name,
            dir=str(folder),
            config=dict(settings),
            id=hashlib.sha256(same.encode()).hexdigest()[:12],
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="examples")

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "examples": step})

    def close(self) -> None:
        self._run.finish()


class TrackerThread:
    """A writer on a thread of its own, so that a slow tracker delays nothing.

    With QUEUED_STEPS waiting, further steps are left out. If the tracker fails, that is logged once, and
    nothing more is written. One thread may call.

    Args:
        name: the tracker's, in the log.
        open_writer: begins the run, on the thread; it may raise anything.
    """

    def __init__(self, name: str, open_writer: Callable[[], ScalarWriter]) -> None:
        self._name, self._open = name, open_writer
        self._steps: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(QUEUED_STEPS)
        self._left_out = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the values of one step."""
        if self._ended.is_set():
            return
        try:
            self._steps.put_nowait((step, dict(values)))
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Wait until all is written or the tracker fails, CLOSE_SECONDS at most."""
        latest = time.monotonic() + CLOSE_SECONDS
        with contextlib.suppress(queue.Full):
            self._steps.put(None, timeout=CLOSE_SECONDS)
            self._thread.join(max(0.0, latest - time.monotonic()))
        if self._thread.is_alive():
            log.error("%s: does not answer; its last figures are missing", self._name)
        if self._left_out:
            log.warning("%s: was too slow, and lacks %d steps", self._name, self._left_out)

    def _run(self) -> None:
        try:
            writer = self._open()
            while (step := self._steps.get()) is not None:
                writer.add(*step)
            writer.close()
        except Exception as error:  # noqa: BLE001 - of another package, and training continues
            log.error(
                "%s: cannot be written (%s: %s); no more is written", self._name, type(error).__name__, error
            )
        finally:
            self._ended.set()
            # Nobody writes them, and without room `close` would wait.
            with contextlib.suppress(queue.Empty):
                while True:
                    self._steps.get_nowait()


def open_scalars(job: Job, folder: Path) -> list[Scalars]:
    """Begin what the job's [watch] configures, as far as its extras are installed.

    Raises ResourceError if TensorBoard's folder cannot be written; trackers begin on their threads.
    """
    watch, writers = job.watch, list[ScalarWriter]()
    if watch.tensorboard and not missing_modules("tensorboard"):
        from .event_file import FOLDER, EventFile

        writers.append(EventFile(folder / FOLDER))
    settings = dict(flat_settings(job.model_dump(mode="json")))
    name = job.run.name
    if watch.mlflow and not missing_modules("mlflow"):
        writers.append(TrackerThread("MLflow", lambda: MlflowRun(watch.mlflow, name, folder, settings)))
    if watch.wandb and not missing_modules("wandb"):
        writers.append(TrackerThread("Weights & Biases", lambda: WandbRun(name, folder, settings)))
    return [Scalars(writer) for writer in writers]
