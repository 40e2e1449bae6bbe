"""The initial state of a trainer.

The state comes from the trainer's part of a checkpoint, or from another trainer, since an optimizer without a
history would take far too large steps. If no other trainer lives, a late one takes the center's weights.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray

from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.checkpoint.manifest import AVERAGE, DENSE, CheckpointManifest, scored_files
from ...pipeline.checkpoint.reader import TensorReader
from ...pipeline.checkpoint.saved import Place, open_saved, own_checkpoint
from ...pipeline.config.job import Job
from ...pipeline.errors import CheckpointError, ShadowSyncError
from ...pipeline.jobfile.load import validate_saved_job
from ...pipeline.models.input_axes import canonical_name, copy_matching, input_axes
from ...pipeline.models.registry import MODELS
from ...pipeline.models.training.optimizers import EMA, EMA_UPDATES, MISSED
from ...sync_algos.base import AlgorithmState
from ..replica.buffer import write_elements
from ..replica.replica import TrainerContext
from .checkpoint import ITEMS_PREFIX, OPTIMIZER_PREFIX

CONSTANTS = "constants"
"""The name by which a trainer that joins late asks another for its constants."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """The part of a checkpoint that a trainer took over.

    Attributes:
        model: the checkpoint's model, float32 [numel], with which a center begins.
        state: the algorithm's state, if the run is resumed.
        digest: digest of the checkpoint.
        taken, fresh: names of the dense parameters that were taken over, and of the others.
    """

    model: torch.Tensor
    digest: str
    state: AlgorithmState | None = None
    taken: tuple[str, ...] = ()
    fresh: tuple[str, ...] = field(default=())


def restore_trainer(context: TrainerContext, index: int) -> Restored | None:
    """Copy what `job.start` names into a trainer's replica and optimizer.

    Call it before training; any thread may. Returns None if the trainer starts from first weights. Raises
    CheckpointError.

    In a resumed run, trainer `index` gets its own replica, optimizer state and items' frequency back. If the
    checkpoint has none of this index, or is of another algorithm, the replica starts as the saved model, with
    the optimizer state and frequency of one of the saved trainers. A run that starts from another run's
    checkpoint takes only the parameters.
    """
    job = context.job
    if not job.start.checkpoint:
        return None
    folder, manifest = open_saved(job.start.checkpoint, which=job.start.which)
    if not job.start.resume:
        return _warm_start(context, SavedTrainers(folder, manifest, scored_files(manifest)))
    saved = SavedTrainers(folder, manifest)
    model, fresh = saved.dense(context)
    if fresh:
        raise saved.error(f"it has no {', '.join(fresh[:3])} of this shape, so it belongs to another model")
    saved.copy_constants(context)
    same_algorithm = saved.algorithm == job.sync.algorithm
    replica = saved.replica(index) if same_algorithm else None
    _copy(context.replica.flat, model if replica is None else replica, "replica", saved)
    _copy_optimizer(context, saved, index)
    if context.item_frequency is not None and not context.item_frequency.restore(saved.items(index)):
        log.warning("the frequencies of items are estimated anew: the checkpoint has none of this size")
    state = saved.state() if same_algorithm else None
    for name, values in state.tensors.items() if state is not None else ():
        if values.shape != (context.replica.numel,):
            raise saved.error(
                f"the state {name!r} of {saved.algorithm} has the shape {list(values.shape)}, the job's has "
                f"[{context.replica.numel}]; sync.optimizer_state may differ"
            )
    return Restored(model, saved.digest, state, taken=tuple(saved.parameters))


def saved_average(context: TrainerContext, run_folder: str) -> torch.Tensor | None:
    """Return the moving average that the run's last checkpoint has, float32 [numel]; None without any.

    Raises CheckpointError.
    """
    location = own_checkpoint(context.job.run.storage, run_folder)
    if location is None:
        return None
    folder, manifest = open_saved(location)
    files = [entry for entry in manifest.files if entry.role == AVERAGE]
    if not files:
        return None
    model, fresh = SavedTrainers(folder, manifest, files).dense(context)
    return None if fresh else model


def restore_optimizer(context: TrainerContext, index: int, run_folder: str) -> str:
    """Copy the newest optimizer state that this run has saved.

    If it has saved none, a resumed run takes the state that it started with. For a trainer that joins when no
    other one lives to give it its own. Call it before training; any thread may. Returns in words which state
    it is, "" for an optimizer without any. A checkpoint that cannot be read is logged and left out.
    """
    if not context.optimizer.state:
        return ""
    start = context.job.start
    try:
        run_checkpoint = own_checkpoint(context.job.run.storage, run_folder)
        if run_checkpoint is None and not start.resume:
            return _new_optimizer(context)
        which = start.which if run_checkpoint is None else "last"
        folder, manifest = open_saved(
            start.checkpoint if run_checkpoint is None else run_checkpoint, which=which
        )
        _copy_optimizer(context, SavedTrainers(folder, manifest), index)
    except ShadowSyncError as error:
        log.warning("the optimizer starts anew: %s", error)
        return _new_optimizer(context)
    return f"the optimizer of the checkpoint after {manifest.examples_trained:,} examples"


def _new_optimizer(context: TrainerContext) -> str:
    # A trainer that died meanwhile may have given it a part of its own.
    for values in context.optimizer.state.values():
        values.zero_()
    return "a new optimizer"


def _warm_start(context: TrainerContext, saved: SavedTrainers) -> Restored:
    job = context.job
    if job.start.dense == "none":
        names = tuple(span.name for span in context.layout.spans)
        return Restored(context.replica.flat.cpu().clone(), saved.digest, fresh=names)
    model, shares = saved.matching(context)
    spans = context.layout.spans
    taken = tuple(span.name for span in spans if shares[span.name] == 1.0)
    part = [span.name for span in spans if 0.0 < shares[span.name] < 1.0]
    fresh = [span.name for span in spans if not shares[span.name]]
    unused = saved.unused - set(context.constants.named())
    if job.start.dense == "all" and (fresh or part or unused):
        some = ", ".join((*fresh, *part, *sorted(unused))[:3])
        raise saved.error(f"it belongs to another model: {some} cannot be taken over")
    # A bias fits any layer of the same width, so biases alone do not count as something in common.
    weights = any(len(span.shape) > 1 and shares[span.name] for span in spans)
    if not weights and not saved.shares_tables(job):
        raise saved.error("it belongs to another model: none of its weights and tables are in this job")
    context.replica.flat.copy_(model)
    # Not buffers, which are part of the model's code.
    constants = context.constants.named()
    for span, view in context.layout.views(model):
        if span.frozen:
            constants[span.name].copy_(view)
    partly = [f"{name} ({1.0 - shares[name]:.1%} of it)" for name in part]
    return Restored(model, saved.digest, taken=taken, fresh=(*fresh, *partly))


def _copy_optimizer(context: TrainerContext, saved: SavedTrainers, index: int) -> None:
    state = saved.optimizer(index)
    for name, values in state.items():
        if name in (EMA, EMA_UPDATES) and context.job.trainer.ema is None:
            continue
        if name not in context.optimizer.state:
            raise saved.error(f"its optimizer has the state {name!r}, which trainer.optimizer does not have")
        _copy(context.optimizer.state[name], values, name, saved)
    context.optimizer.restored()


def _copy(target: torch.Tensor, values: torch.Tensor, name: str, saved: SavedTrainers) -> None:
    if target.shape != values.shape:
        raise saved.error(f"{name} has the shape {list(values.shape)}, the job's has {list(target.shape)}")
    target.copy_(values)


class SavedTrainers:
    """The dense part of a checkpoint: model, trainers' files, algorithm's state.

    Args:
        model: the files of the model; by default those that a resumed run goes on with.

    Attributes:
        unused: names of its parameters that no model has taken whole.
    """

    def __init__(
        self, folder: Place, manifest: CheckpointManifest, model: Sequence[FileEntry] | None = None
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._roles = {entry.role for entry in manifest.files}
        self._model = self._reader(DENSE) if model is None else TensorReader(folder, model)
        self.digest = manifest.digest
        self.parameters = self._model.names
        self.unused = set(self.parameters)
        self.algorithm = str(manifest.job.get("sync", {}).get("algorithm", ""))

    def error(self, what: str) -> CheckpointError:
        """Make the error for a checkpoint that does not fit."""
        return CheckpointError(
            what, where=str(self._folder), remedy="use the checkpoint of a job with this model"
        )

    def dense(self, context: TrainerContext) -> tuple[torch.Tensor, list[str]]:
        """Return the saved model, flat on the CPU, and the parameters it lacks.

        A parameter of another shape counts as lacking. Lacking ones keep the replica's values.
        """
        flat, fresh = context.replica.flat.detach().cpu().clone(), []
        known = set(self.parameters)
        for span, view in context.layout.views(flat):
            if span.name in known and self._model.shape(span.name) == span.shape:
                view.copy_(torch.from_numpy(self._model.read(span.name)))
            else:
                fresh.append(span.name)
        return flat, fresh

    def matching(self, context: TrainerContext) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the saved model as far as it fits, and each parameter's share.

        The model is flat, on the CPU. Of parameters whose elements belong to columns those of columns that
        are still there are taken, wherever they are now; the others by name and shape. What is not taken
        keeps the replica's values. `unused` has the names of the saved ones that were not taken whole.
        """
        flat, shares = context.replica.flat.detach().cpu().clone(), {}
        job = context.job
        before = validate_saved_job(self._manifest.job, where=str(self._folder))
        # By the code of this job's model: a checkpoint's own may be anybody's.
        if before.model.name not in MODELS or job.model.name not in MODELS:
            before = before.model_copy(update={"model": job.model})
        saved_names = {canonical_name(before, name): name for name in self.parameters}
        saved_axes = input_axes(before, self.parameters)
        axes = input_axes(job, [span.name for span in context.layout.spans])
        for span, view in context.layout.views(flat):
            name = saved_names.get(canonical_name(job, span.name))
            copied, whole = 0, False
            if name is not None:
                saved = self._model.read(name)
                copied, whole = copy_matching(view, saved, axes.get(span.name), saved_axes.get(name))
            if whole and name is not None:
                self.unused.discard(name)
            shares[span.name] = copied / max(1, span.numel)
        return flat, shares

    def copy_constants(self, context: TrainerContext) -> None:
        """Copy the saved constants of the same name and shape."""
        for name, view in context.constants.named().items():
            if name in self.parameters and self._model.shape(name) == tuple(view.shape):
                view.copy_(torch.from_numpy(self._model.read(name)))

    def replica(self, index: int) -> torch.Tensor | None:
        """Return trainer `index`'s replica; None if the checkpoint has none."""
        name = f"trainer-{index}"
        return torch.from_numpy(self._reader(name).read("replica")) if name in self._roles else None

    def optimizer(self, index: int) -> dict[str, torch.Tensor]:
        """Return the optimizer state for trainer `index`, by name.

        If its own is missing, it gets another trainer's, since Adagrad without a history would take far too
        large steps.
        """
        state = self._state(index, OPTIMIZER_PREFIX)
        return {name: torch.from_numpy(values) for name, values in state.items()}

    def items(self, index: int) -> dict[str, NDArray[Any]]:
        """Return the state of the items' frequency for trainer `index`, likewise; {} if there is none."""
        return self._state(index, ITEMS_PREFIX)

    def state(self) -> AlgorithmState | None:
        """Return the algorithm's state; None if it had none."""
        if "algorithm" not in self._roles:
            return None
        reader = self._reader("algorithm")
        rounds = {metadata["completed_rounds"] for metadata in reader.metadata.values()}
        tensors = {name: torch.from_numpy(reader.read(name)) for name in reader.names}
        return AlgorithmState(int(rounds.pop()), tensors)

    def shares_tables(self, job: Job) -> bool:
        """Return whether the checkpoint has a table of this job."""
        saved = self._manifest.plan.get("tables", {})
        return any(table.name in saved for table in job.tables)

    def _state(self, index: int, prefix: str) -> dict[str, NDArray[Any]]:
        saved = sorted(
            int(role.removeprefix("trainer-")) for role in self._roles if role.startswith("trainer-")
        )
        if not saved:
            raise self.error("it has no trainer's state")
        reader = self._reader(f"trainer-{index if index in saved else saved[index % len(saved)]}")
        names = [name for name in reader.names if name.startswith(prefix)]
        return {name.removeprefix(prefix): reader.read(name) for name in names}

    def _reader(self, role: str) -> TensorReader:
        return TensorReader(self._folder, [entry for entry in self._manifest.files if entry.role == role])


def optimizer_sizes(context: TrainerContext) -> tuple[tuple[str, int], ...]:
    """Return the names and sizes of the optimizer's state, and of the model's constants."""
    state = tuple((name, values.numel()) for name, values in context.optimizer.state.items())
    constants = context.constants.flat.numel()
    return (*state, (CONSTANTS, constants)) if constants else state


def read_state(context: TrainerContext, name: str, start: int, stop: int) -> bytes:
    """Read elements of an optimizer state, or of the weights.

    Workers may write meanwhile. Any thread may call. Raises ValueError for an unknown name.
    """
    if not name:
        return context.replica.read(start, stop).numpy().tobytes()
    return _state(context, name)[start:stop].cpu().numpy().tobytes()


def write_state(context: TrainerContext, name: str, start: int, values: bytes) -> None:
    """Write elements from `read_state` of another trainer, before training begins.

    Raises ValueError for elements that do not fit.
    """
    target = _state(context, name) if name else context.replica.flat
    write_elements(target, start, values, name or "replica")
    if name == MISSED:
        context.optimizer.restored()


def _state(context: TrainerContext, name: str) -> torch.Tensor:
    if name == CONSTANTS:
        return context.constants.flat
    if name not in context.optimizer.state:
        raise ValueError(f"the optimizer has no state {name!r}")
    return context.optimizer.state[name].view(-1)
