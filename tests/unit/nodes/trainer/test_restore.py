"""What a trainer takes over from a checkpoint: its own part, or the model that came out.

One that joins late takes over all of another one's weights and of its optimizer.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.trainer.checkpoint import (
    TrainerSnapshot,
    compose_model,
    write_algorithm,
    write_dense,
    write_trainer,
)
from shadowsync.nodes.trainer.restore import (
    optimizer_sizes,
    read_state,
    restore_optimizer,
    restore_trainer,
    write_state,
)
from shadowsync.pipeline.checkpoint.files import FileEntry, write_tensors
from shadowsync.pipeline.checkpoint.manifest import (
    AVERAGE,
    CheckpointManifest,
    begin,
    commit,
    open_checkpoint,
)
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.model import ModelSection
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.sync_algos.contract.model_origin import ModelOrigin
from shadowsync.tests.support.data.plain_job import plain_job
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.tables.saved_shards import manifest_of_files
from shadowsync.tests.support.tables.shared import build_shared

MODEL = 7.0


def make_job(algorithm: str = "bmuf", top: int = 8, **start: object) -> Job:
    model = {"embedding_dim": 4, "table_rows": 10, "bottom": [4], "top": [top]}
    sync = {"algorithm": algorithm, "nodes": 0}
    return plain_job(2, 2, model=model, trainer={"count": 2}, sync=sync, start=start)


def filled(job: Job, value: float) -> TrainerSnapshot:
    """A trainer whose replica is full of `value`, with an optimizer's sums of ten times that."""
    shared = build_shared(job)
    algorithm = make_algorithm(job.sync.algorithm, {})
    shared.replica.flat.fill_(value)
    shared.optimizer.state["sum"].fill_(10 * value)
    shared.optimizer.state["step"].fill_(3.0)
    algorithm.start(shared.replica)
    return TrainerSnapshot.take(shared, algorithm)


def manifest_of(job: Job, files: list[FileEntry]) -> CheckpointManifest:
    given = {"job": job.model_dump(mode="json"), "examples_trained": 1}
    return manifest_of_files(files).model_copy(update=given)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two trainers under BMUF: replicas full of 1 and 2, and a model full of MODEL."""
    job = make_job()
    partial = begin(tmp_path / "run")
    files: list[FileEntry] = []
    for index in range(2):
        files += write_trainer(partial, index, filled(job, index + 1.0))
    state = filled(job, 5.0).state
    state.completed_rounds = 9
    files += write_algorithm(partial, state)
    layout = build_shared(job).layout
    files += write_dense(partial, layout, torch.full((layout.numel,), MODEL), "global")
    commit(partial, manifest_of(job, files))
    return tmp_path / "run"


def taken(shared: TrainerContext) -> tuple[float, float, float]:
    """The values of the first parameter, of its optimizer's sums, and the step count."""
    state = shared.optimizer.state
    return float(shared.replica.flat[0]), float(state["sum"][0]), float(state["step"])


def test_each_trainer_gets_its_own_and_a_new_one_the_model(run: Path) -> None:
    wanted = {0: (1.0, 10.0, 3.0), 1: (2.0, 20.0, 3.0), 2: (MODEL, 10.0, 3.0), 3: (MODEL, 20.0, 3.0)}
    for index, values in wanted.items():
        shared = build_shared(make_job(checkpoint=str(run), resume=True))
        restored = restore_trainer(shared, index)
        assert taken(shared) == values
        assert restored is not None
        assert restored.fresh == ()
        assert restored.digest == open_checkpoint(run)[1].digest
        assert float(restored.model[0]) == MODEL
        assert restored.state is not None
        assert restored.state.completed_rounds == 9
        assert float(restored.state.tensors["global"][0]) == 5.0


def test_a_moving_average_is_taken_over_where_it_is_wanted(run: Path) -> None:
    """A resumed run has it beside its weights; a new run begins with it, as with what was scored."""
    averaging = {"trainer": {"count": 2, "ema": 0.5}}
    job = Job.model_validate({**make_job().model_dump(), **averaging})
    source = build_shared(job)
    source.replica.flat.fill_(3.0)
    source.optimizer.average()
    source.replica.flat.fill_(4.0)
    algorithm = make_algorithm("bmuf", {})
    algorithm.start(source.replica)
    partial = begin(run)
    files = write_trainer(partial, 0, TrainerSnapshot.take(source, algorithm))
    files += write_dense(partial, source.layout, source.replica.flat, "global")
    average = compose_model(partial, files, AVERAGE, source.layout.numel)
    files += write_dense(partial, source.layout, average, "mean", role=AVERAGE)
    manifest = open_checkpoint(run)[1].model_copy(update={"files": files})
    commit(partial, manifest)

    def begun(trainer: dict[str, object], *, resume: bool = False) -> TrainerContext:
        body = make_job(checkpoint=str(run), resume=resume).model_dump() | {"trainer": trainer}
        shared = build_shared(Job.model_validate(body))
        restore_trainer(shared, 0)
        return shared

    resumed = begun({"count": 2, "ema": 0.5}, resume=True)
    assert float(resumed.replica.flat[0]) == 4.0
    assert float(resumed.optimizer.averaged()[0]) == 3.0
    without = begun({"count": 2}, resume=True)
    assert float(without.replica.flat[0]) == 4.0
    assert "ema" not in without.optimizer.state
    new = begun({"count": 2, "ema": 0.5})
    assert float(new.replica.flat[0]) == float(new.optimizer.averaged()[0]) == 3.0


def test_a_center_that_lacks_a_slice_is_no_model(tmp_path: Path) -> None:
    """A sync node that was just replaced has nothing to save."""
    files: list[FileEntry] = []
    for index, start in enumerate((0, 3)):
        with pytest.raises(CheckpointError, match=f"sync nodes saved {start} of the model's 6 elements"):
            compose_model(tmp_path, files, ModelOrigin.CENTER, 6)
        values = np.full(3, index, np.float32)
        metadata = {"role": f"sync-{index}", "start": str(start), "stop": str(start + 3)}
        files += write_tensors(tmp_path, f"sync-{index}", {"center": values}, metadata)
    assert compose_model(tmp_path, files, ModelOrigin.CENTER, 6).tolist() == [0, 0, 0, 1, 1, 1]


def test_under_another_algorithm_all_start_from_the_model(run: Path) -> None:
    """Else each trainer would begin another global model."""
    shared = build_shared(make_job("ma", checkpoint=str(run), resume=True))
    restored = restore_trainer(shared, 1)
    assert taken(shared) == (MODEL, 20.0, 3.0)
    assert restored is not None
    assert restored.state is None


def test_a_new_run_takes_parameters_alone_by_name_and_shape(run: Path) -> None:
    shared = build_shared(make_job(top=16, checkpoint=str(run)))
    before = shared.replica.flat.clone()
    restored = present(restore_trainer(shared, 0))
    assert restored.taken
    assert restored.fresh
    first = {span.name: view.clone() for span, view in shared.layout.views(before)}
    for span, view in shared.layout.views(shared.replica.flat):
        if span.name in restored.fresh:
            torch.testing.assert_close(view, first[span.name], rtol=0, atol=0)
            assert span.name.startswith("top")
        else:
            assert (view == MODEL).all()
    assert (shared.optimizer.state["sum"] == 0).all()


def test_nothing_or_all(run: Path) -> None:
    shared = build_shared(make_job(checkpoint=str(run), dense="none"))
    before = shared.replica.flat.clone()
    restored = present(restore_trainer(shared, 0))
    assert torch.equal(shared.replica.flat, before)
    assert torch.equal(restored.model, before)
    shared = build_shared(make_job(checkpoint=str(run), dense="all"))
    assert restore_trainer(shared, 0) is not None
    assert (shared.replica.flat[:4] == MODEL).all()
    with pytest.raises(CheckpointError, match="another model"):
        restore_trainer(build_shared(make_job(top=16, checkpoint=str(run), dense="all")), 0)
    with pytest.raises(CheckpointError, match="so it belongs to another model"):
        restore_trainer(build_shared(make_job(top=16, checkpoint=str(run), resume=True)), 0)
    assert restore_trainer(build_shared(make_job()), 0) is None


CHUNK = 7


def _trainer(optimizer: str = "adagrad", **sync: str) -> TrainerContext:
    changes = {"trainer": {"optimizer": optimizer}, "sync": sync}
    return build_shared(Job.model_validate(make_job().model_dump() | changes))


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "sgd"])
@pytest.mark.parametrize("state", ["own", "synchronized"])
def test_all_of_it_in_chunks(optimizer: str, state: str) -> None:
    source, late = (_trainer(optimizer, optimizer_state=state) for _ in range(2))
    torch.manual_seed(1)
    source.replica.flat.uniform_()
    for values in source.optimizer.state.values():
        values.fill_(3.0)
    for name, elements in (("", source.layout.numel), *optimizer_sizes(source)):
        for start in range(0, elements, CHUNK):
            write_state(late, name, start, read_state(source, name, start, start + CHUNK))
    assert torch.equal(late.replica.flat, source.replica.flat)
    assert torch.equal(
        late.replica.snapshot(late.replica.whole), source.replica.snapshot(source.replica.whole)
    )
    assert set(late.optimizer.state) == set(source.optimizer.state)
    for name, values in late.optimizer.state.items():
        assert torch.equal(values, source.optimizer.state[name]), name


class Frozen(torch.nn.Module):
    """A frozen layer, and a buffer."""

    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        self.fixed = torch.nn.Linear(dense_features + sum(embedding_dims), 3).requires_grad_(False)
        self.register_buffer("table", torch.ones(3))
        self.head = torch.nn.Linear(3, 1)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        fixed = self.fixed(torch.cat([dense, *embeddings], dim=1)) * self.get_buffer("table")
        logits: torch.Tensor = self.head(fixed).squeeze(1)
        return logits


def test_constants_go_to_a_late_one_too() -> None:
    job = make_job().model_copy(
        update={"model": ModelSection(name=f"{__name__}:Frozen", embedding_dim=4, table_rows=10)}
    )
    source, late = build_shared(job), build_shared(job)
    assert set(source.constants.named()) == {"fixed.weight", "fixed.bias", "table"}
    for value, view in enumerate(source.constants.named().values()):
        view.fill_(value + 2.0)
    for name, elements in optimizer_sizes(source):
        for start in range(0, elements, CHUNK):
            write_state(late, name, start, read_state(source, name, start, start + CHUNK))
    for name, view in late.constants.named().items():
        assert view.equal(source.constants.named()[name])
    module = copy.deepcopy(late.template)
    late.constants.attach(module)
    assert (module.get_parameter("fixed.bias") == 3.0).all()
    assert (module.get_buffer("table") == 4.0).all()
    assert (late.template.get_buffer("table") == 1.0).all(), "the control: as it was made"


def test_steps_that_a_parameter_missed(tmp_path: Path) -> None:
    job = make_job().model_dump(mode="json") | {"trainer": {"count": 1, "optimizer": "adam"}}
    source = build_shared(Job.model_validate(job, strict=False))
    algorithm = make_algorithm(source.job.sync.algorithm, {})
    algorithm.start(source.replica)
    source.optimizer.state["missed"][1] = 5.0
    snapshot = TrainerSnapshot.take(source, algorithm)
    partial = begin(tmp_path / "run")
    files = write_trainer(partial, 0, snapshot)
    files += write_dense(partial, source.layout, snapshot.replica, "global")
    commit(partial, manifest_of(source.job, files))
    job |= {"start": {"checkpoint": str(tmp_path / "run"), "resume": True}}
    resumed = build_shared(Job.model_validate(job, strict=False))
    resumed.optimizer.state["missed"].fill_(7.0)
    restore_trainer(resumed, 0)
    assert resumed.optimizer.is_uneven
    assert resumed.optimizer.state["missed"].equal(source.optimizer.state["missed"])


def test_what_does_not_fit_is_refused() -> None:
    late = _trainer()
    with pytest.raises(ValueError, match="the optimizer has no state 'exp_avg'"):
        read_state(late, "exp_avg", 0, 1)
    with pytest.raises(ValueError, match="the optimizer has no state 'exp_avg'"):
        write_state(late, "exp_avg", 0, b"")
    numel = late.layout.numel
    with pytest.raises(ValueError, match=f"replica: 2 elements from {numel - 1} given; it has {numel}"):
        write_state(late, "", numel - 1, bytes(8))


def test_the_last_ones_successor_takes_the_newest_optimizer_that_was_saved(run: Path, tmp_path: Path) -> None:
    before, folder = MODEL + 1.0, str(tmp_path / "nothing")

    def part_of_another(job: Job) -> TrainerContext:
        shared = build_shared(job)
        shared.replica.flat.fill_(before)
        shared.optimizer.state["sum"].fill_(1.5)
        return shared

    saved = "the optimizer of the checkpoint after 1 examples"
    own = part_of_another(make_job())
    assert restore_optimizer(own, 2, str(run)) == saved
    assert taken(own) == (before, 10.0, 3.0)
    started_with = part_of_another(make_job(checkpoint=str(run), resume=True))
    assert restore_optimizer(started_with, 3, folder) == saved
    assert taken(started_with) == (before, 20.0, 3.0)
    # Of another run only the parameters were taken over.
    for job in (make_job(), make_job(checkpoint=str(run))):
        new = part_of_another(job)
        assert restore_optimizer(new, 2, folder) == "a new optimizer"
        assert taken(new) == (before, 0.0, 0.0)


def test_a_damaged_checkpoint_is_no_reason_to_stop(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "checkpoint" / "manifest.json").write_text("{}", encoding="utf-8")
    shared = build_shared(make_job())
    assert restore_optimizer(shared, 0, str(run)) == "a new optimizer"
    assert "the optimizer starts anew" in caplog.text
