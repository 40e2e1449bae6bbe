"""Runs that name code: what one trained here is opened, what came from elsewhere is asked about."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import shadowsync
from click.testing import CliRunner
from shadowsync.attached.hub.folder import make_hub_folder
from shadowsync.cli import main
from shadowsync.lab.comparison.plan import make_plan
from shadowsync.lab.comparison.record import write_record
from shadowsync.lab.comparison.variants import parse_variants
from shadowsync.lab.virtual.plan import make_virtual_plan, write_plan
from shadowsync.lab.virtual.timing import Timing
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.checkpoint.manifest import manifest_content, parse_manifest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode, JobFileError, ShadowSyncError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.jobs.processes import Starter, Starting
from shadowsync.tests.support.jobs.runs import JobMaker, Settings, small_job, write_job
from shadowsync.tests.support.loops.attached_loops import hub, sgd, small_model

MODEL = """
import torch
from pathlib import Path
from torch import nn

(Path(__file__).parent / "executed").touch()


class Net(nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.out = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense, embeddings):
        return self.out(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
"""
ALGORITHM = """
from pathlib import Path
from shadowsync.sync_algos.ma import MA

(Path(__file__).parent / "executed").touch()


class Own(MA):
    name = "own"
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a model and an algorithm, which say that they were executed."""
    return with_code(tmp_path)


def with_code(folder: Path) -> Path:
    """Its folder with a model and an algorithm."""
    code = folder / "code"
    code.mkdir()
    (code / "net.py").write_text(MODEL, encoding="utf-8")
    (code / "own.py").write_text(ALGORITHM, encoding="utf-8")
    return code


@pytest.fixture(scope="module")
def trained(starting: Starting, click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, and a run with them, trained here, which is not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    files = with_code(folder)
    changes: Settings = {
        "model": {"name": f"{files}/net.py:Net", "bottom": None, "top": None},
        "sync": {"algorithm": f"{files}/own.py:Own", "nodes": None},
        "trainer": {"batch": 512},
    }
    job = write_job(folder / "job.toml", small_job(click_log, folder / "runs"), changes)
    with starting(folder) as starter:
        starter.ended("run", str(job), "--quiet")
    return folder


@pytest.fixture
def own_run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, of which further runs are beside it, and whose code nobody has executed since."""
    (trained / "code" / "executed").unlink(missing_ok=True)
    run = Path(shutil.copytree(trained / "runs" / "small", tmp_path / "runs" / "small"))
    job = (run / "job.json").read_text("utf-8")
    (run / "job.json").write_text(job.replace(f"{trained}/runs", f"{tmp_path}/runs"), encoding="utf-8")
    return run


@pytest.fixture
def code(trained: Path) -> Path:
    """The folder of the code that the run names."""
    return trained / "code"


def commands(run: Path, data: str, out: Path) -> dict[str, list[str]]:
    """Commands that open the run."""
    return {
        "eval": ["eval", str(run), "--data", data],
        "predict": ["predict", str(run), "--data", data, "--out", str(out / "scores.csv")],
        "export": ["export", str(run), "--out", str(out / "export")],
        "resume": ["resume", str(run), "--set", "data.epochs=2", "--quiet"],
        "run": ["run", str(run / "job.json"), "--quiet"],
    }


@pytest.mark.matrix
def test_what_one_trained_here_goes_on_without_a_flag(
    own_run: Path, code: Path, starter: Starter, click_log: Path, tmp_path: Path
) -> None:
    for command in commands(own_run, str(click_log / "eval-*.parquet"), tmp_path).values():
        starter.ended(*command)
        (code / "executed").unlink()
    assert shadowsync.load(own_run).job.model.name.endswith("net.py:Net")


def test_what_came_from_elsewhere_says_what_it_wants_to_execute(
    own_run: Path, code: Path, starter: Starter, click_log: Path, tmp_path: Path
) -> None:
    """Elsewhere: the same user with another state folder, as on another machine."""
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    data = str(click_log / "eval-*.parquet")
    for name, command in commands(own_run, data, tmp_path).items():
        text = starter.ended(*command, environment=elsewhere, code=2)
        assert f"executes the file {code}/net.py (Net)" in text, name
        assert "--trust" in text, name
    assert not (code / "executed").exists()
    for command in commands(own_run, data, tmp_path).values():
        starter.ended(*command, "--trust", environment=elsewhere)
    # What was trained there, once trusted, is that machine's own.
    starter.ended(*commands(own_run.parent / "latest", data, tmp_path)["eval"], environment=elsewhere)


def test_a_checkpoint_that_names_another_file_is_not_opened(
    own_run: Path, code: Path, tmp_path: Path
) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    shutil.copy(code / "net.py", evil / "net.py")
    (manifest,) = own_run.rglob("manifest.json")
    found = parse_manifest(manifest.read_bytes(), "")
    found.job["model"]["name"] = f"{evil}/net.py:Net"
    manifest.write_bytes(manifest_content(found))
    with pytest.raises(JobFileError, match=f"executes the file {evil}/net.py"):
        shadowsync.load(own_run)
    assert not (evil / "executed").exists()
    assert shadowsync.load(own_run, trust=True).job.model.name == f"{evil}/net.py:Net"
    assert (evil / "executed").exists()


@pytest.mark.matrix
def test_resume_asks_about_the_algorithm_but_not_about_one_that_is_named_now(
    own_run: Path, code: Path, starter: Starter, tmp_path: Path
) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    shutil.copy(code / "own.py", evil / "own.py")
    saved = own_run / "job.json"
    saved.write_text(saved.read_text("utf-8").replace(f"{code}/own.py", f"{evil}/own.py"), encoding="utf-8")
    command = ["resume", str(own_run), "--set", "data.epochs=2", "--quiet"]
    assert f"its sync.algorithm executes the file {evil}/own.py (Own)" in starter.ended(*command, code=2)
    assert not (evil / "executed").exists()
    starter.ended(*command, "--set", f"sync.algorithm={evil}/own.py:Own")


@pytest.fixture
def evil_job(job_file: JobMaker, files: Path) -> Job:
    """A job of somebody else with an algorithm in a file."""
    return load_job(job_file({"trainer": {"count": 1}}), [f"sync.algorithm={files}/own.py:Own"])


def refused(files: Path, *arguments: str) -> bool:
    """Whether a command says what it was to execute, and did not."""
    result = CliRunner().invoke(main, list(arguments))
    said = f"its sync.algorithm executes the file {files}/own.py (Own)" in result.stderr
    return said and result.exit_code == ExitCode.USAGE and not (files / "executed").exists()


def test_a_rendered_run_of_somebody_else(job_file: JobMaker, files: Path, tmp_path: Path) -> None:
    """The memory of its pods follows from the model, which is made for that."""
    model = [f"model.name={files}/net.py:Net", "model.bottom=[]", "model.top=[]"]
    job = load_job(job_file({"data": {"path": "https://example.org/data.parquet", "eval_path": None}}), model)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "job.json").write_text(job.model_dump_json(), encoding="utf-8")
    command = ["render", "kubernetes", str(tmp_path / "job.json"), "--image", "image", "--runs-claim", "runs"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert f"its model.name executes the file {files}/net.py (Net)" in result.stderr
    assert not (files / "executed").exists()
    CliRunner().invoke(main, [*command, "--trust"])
    assert (files / "executed").exists()


@pytest.mark.parametrize("virtual", [False, True])
def test_a_comparison_of_somebody_else(evil_job: Job, files: Path, tmp_path: Path, *, virtual: bool) -> None:
    job = evil_job.model_copy(update={"sync": evil_job.sync.model_copy(update={"algorithm": "ma"})})
    folder = tmp_path / "comparison"
    folder.mkdir()
    if virtual:
        write_plan(folder, *make_virtual_plan(job, "ma", [1], 1, Timing()))
    else:
        write_record(folder, make_plan(job, parse_variants("ma"), 1, folder))
    for one in (folder / "jobs").iterdir():
        one.write_text(one.read_text("utf-8").replace('"ma"', f'"{files}/own.py:Own"'), encoding="utf-8")
    assert refused(files, "compare", "--resume", str(folder))


def test_a_hub_of_somebody_else(evil_job: Job, files: Path, tmp_path: Path) -> None:
    make_hub_folder(NodeSettings(evil_job), tmp_path / "hub")
    assert refused(files, "hub", "--recover", str(tmp_path / "hub"))


def test_a_loop_executes_no_code_that_only_its_hub_names(files: Path) -> None:
    """The control: a loop that names the algorithm itself, as the hub does."""
    algorithm = f"{files}/own.py:Own"
    model = small_model()
    with hub(sync__algorithm=algorithm) as own:
        (files / "executed").unlink()
        said = f"the hub's settings: its sync.algorithm executes the file {files}/own.py"
        with pytest.raises(ShadowSyncError, match=said):
            shadowsync.attach(model, sgd(model), join=own.endpoint)
        with shadowsync.attach(model, sgd(model), join=own.endpoint, algorithm=algorithm) as sync:
            assert sync is not None
