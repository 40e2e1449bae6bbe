"""Reading a job file, and what `--set` changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.files.paths import absolute_path, match_files
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import (
    REMOVED_KEYS,
    job_of_tree,
    load_job,
    load_resolved,
    without_one_trainer_sync,
)

Load = Callable[..., Job]
Resolved = Callable[[Any], Job]
Write = Callable[[str], Path]

MINIMAL = '[data]\nformat = "parquet"\npath = "train-*.parquet"\n'


def test_name_is_that_of_the_file_unless_given(load: Load) -> None:
    assert load().run.name == "nightly"
    assert load('[run]\nname = "mine"').run.name == "mine"
    assert load('[run]\nname = "mine"', "run.name=yours").run.name == "yours"


def test_globs_lie_beside_the_job_file(write_job: Write) -> None:
    file = write_job(
        '[data]\nformat = "parquet"\npath = ["a-*.parquet", "../b/*.parquet", "/abs/c.parquet"]\n'
        'eval_path = "held-*.parquet"\n'
    )
    folder = file.parent
    job = load_job(file)
    assert job.data.path == [f"{folder}/a-*.parquet", f"{folder}/../b/*.parquet", "/abs/c.parquet"]
    assert job.data.eval_path == [f"{folder}/held-*.parquet"]
    assert job == load_job(Path("../jobs/nightly.toml")), "a relative path to the job file"


def test_folders_of_rows_lie_beside_the_job_file(load: Load, tmp_path: Path) -> None:
    """Nodes and later commands have other working directories."""
    job = load('[embedding]\nfolder = "rows"\n[tables.C1]\nfolder = "/fast"', "tables.C2.folder=mine")
    assert job.embedding.folder == str(tmp_path / "jobs" / "rows")
    folders = {table.name: table.folder for table in job.tables}
    assert (folders["C1"], folders["C2"]) == ("/fast", str(tmp_path / "work" / "mine"))
    assert load().embedding.folder == ""


def test_a_checkpoint_lies_beside_the_job_file_or_where_the_shell_is(load: Load, tmp_path: Path) -> None:
    text = '[start]\ncheckpoint = "runs/old"\n'
    assert load(text).start.checkpoint == str(tmp_path / "jobs" / "runs" / "old")
    assert load(text, "start.checkpoint=old").start.checkpoint == str(tmp_path / "work" / "old")
    assert load(text, "start.checkpoint=").start.checkpoint == ""


def test_a_resumed_run_has_the_default_algorithm_of_its_new_number_of_trainers(load: Load) -> None:
    def resumed(*settings: str) -> Job:
        tree = json.loads(load("", "sync.gap=4", *settings).model_dump_json())
        return job_of_tree(without_one_trainer_sync(tree), ["trainer.count=2"])

    assert resumed("trainer.count=1").sync == load("", "trainer.count=2", "sync.gap=4").sync
    named = resumed("trainer.count=1", "sync.algorithm=easgd").sync
    assert (named.algorithm, named.options) == ("easgd", {})
    several = resumed("trainer.count=3", "sync.algorithm=easgd", "sync.options={elastic_rate=1.0}").sync
    assert (several.algorithm, several.options) == ("easgd", {"elastic_rate": 1.0})


def test_globs_of_an_override_lie_in_the_working_directory(load: Load, tmp_path: Path) -> None:
    job = load("", "data.eval_path=held.parquet")
    assert job.data.eval_path == [str(tmp_path / "work" / "held.parquet")]
    assert job.data.path == [str(tmp_path / "jobs" / "train-*.parquet")], "not overridden"
    assert load("", "data.path=/abs/x.parquet").data.path == ["/abs/x.parquet"]


def test_the_folder_of_the_job_file_is_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, sibling = tmp_path / "run[1]*", tmp_path / "run1*"
    for folder in (here, sibling):
        folder.mkdir()
        for name in ("a.parquet", "b[1].parquet", "held.parquet", "items.parquet"):
            (folder / name).touch()
    file = here / "job.toml"
    towers = '[model]\nname = "two_tower"\nquery = ["user"]\nitem = ["item"]\n'
    columns = '[data.columns]\ny = "label"\nuser = "categorical"\nitem = "categorical"\n'
    paths = 'path = ["[ab]*.parquet", "b[1].parquet"]\neval_path = "../run[[]1]*/held.parquet"\n'
    file.write_text(
        f'[data]\nformat = "parquet"\n{paths}{columns}{towers}[validation]\nitems = "item?.parquet"\n'
    )
    # A shell in a folder of such a name gives patterns, too.
    monkeypatch.chdir(here)
    job = load_job(file, ["data.validation_path=[h]eld.parquet"])
    data, items = job.data, job.validation.items
    found = [match_files(patterns) for patterns in (data.path, data.validation_path, [items])]
    assert found == [
        [str(here / "a.parquet"), str(here / "b[1].parquet")],
        [str(here / "held.parquet")],
        [str(here / "items.parquet")],
    ]
    assert data.path[1] == str(here / "b[1].parquet"), "a file, under its own name"
    assert load_job(file, ["data.path=a.parquet"]).data.path == [str(here / "a.parquet")], "no pattern at all"
    assert match_files([absolute_path("*.parquet")])[0] == str(here / "a.parquet"), "as eval --data"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.parquet", ["a.parquet"]),
        ('"a.parquet"', ["a.parquet"]),
        ('["a.parquet", "b c.parquet"]', ["a.parquet", "b c.parquet"]),
        ("day=1/x-[0-9].parquet", ["day=1/x-[0-9].parquet"]),
        ("2024-01-01", ["2024-01-01"]),
        ("7", ["7"]),
        ("a#1.parquet", ["a#1.parquet"]),
    ],
)
def test_file_names_in_an_override(load: Load, tmp_path: Path, text: str, names: list[str]) -> None:
    assert load("", f"data.path={text}").data.path == [str(tmp_path / "work" / name) for name in names]


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("trainer.workers=2", "trainer", "workers", 2),
        ("trainer.batch=1_024", "trainer", "batch", 1024),
        (" trainer.lr = 0.5 ", "trainer", "lr", 0.5),
        ("trainer.lr=1", "trainer", "lr", 1.0),
        ("trainer.optimizer=adam", "trainer", "optimizer", "adam"),
        ('trainer.optimizer="adam"', "trainer", "optimizer", "adam"),
        ("run.name='7'", "run", "name", "7"),
        ("run.name=2024-01-01", "run", "name", "2024-01-01"),
        ("sync.options.at=07:30:00", "sync", "options", {"at": "07:30:00"}),
        ("sync.options.since=2024-01-01T07:30:00Z", "sync", "options", {"since": "2024-01-01T07:30:00Z"}),
        ("run.deterministic=false", "run", "deterministic", False),
        ("model.bottom=[32, 16]", "model", "bottom", [32, 16]),
        ("model.top=[]", "model", "top", []),
        ("data.eval_path=[]", "data", "eval_path", []),
        ("model.table_rows=77", "model", "table_rows", 77),
        ("sync.link_bytes_per_second=1e6", "sync", "link_bytes_per_second", 1e6),
        ("sync.options.elastic_rate=0.25", "sync", "options", {"elastic_rate": 0.25}),
        ("sync.options={elastic_rate=0.25}", "sync", "options", {"elastic_rate": 0.25}),
        ("model.options.kind=wide", "model", "options", {"kind": "wide"}),
        ("model.name=my.models:Wide", "model", "name", "my.models:Wide"),
    ],
)
def test_override(load: Load, override: str, section: str, key: str, value: Any) -> None:
    plain = getattr(getattr(load(), section), key)
    changed = load("", override)
    found = getattr(getattr(changed, section), key)
    assert found == value
    assert type(found) is type(value)
    assert found != plain or override in ("run.deterministic=false", "data.eval_path=[]")


def test_the_last_override_wins_and_leaves_its_neighbours(load: Load) -> None:
    job = load("[trainer]\nworkers = 3\nbatch = 64\n", "trainer.workers=4", "trainer.workers=5")
    assert (job.trainer.workers, job.trainer.batch) == (5, 64)
    job = load("[model.options]\na = 1\nb = 2\n", "model.options.b=3")
    assert job.model.options == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    "override", ["trainer.workers", "trainer=3", "trainer..workers=1", ".workers=1", "=1", "", "trainer.=1"]
)
def test_no_override(refusal: Callable[..., str], override: str) -> None:
    said = refusal(MINIMAL, override)
    assert (
        said == f"--set {override!r} cannot be used; write section.key=value, for example trainer.workers=2"
    )


def test_override_below_a_value(refusal: Callable[..., str]) -> None:
    assert refusal(MINIMAL, "model.options.x=2", "model.options.x.y=1") == (
        "--set 'model.options.x.y=1' cannot be used; another --set gives model.options.x a value; "
        "give one of the two"
    )


def test_an_override_is_one_value(load: Load) -> None:
    """TOML would read two lines as two keys, and the second would be lost."""
    assert load("", "model.options.x=1\ny = 2").model.options == {"x": "1\ny = 2"}


def test_errors_of_overridden_jobs_say_so(write_job: Write) -> None:
    file = write_job(MINIMAL)
    with pytest.raises(JobFileError) as caught:
        load_job(file, ["trainer.workers=two"])
    said = "trainer.workers: 'two' given; input should be a valid integer"
    assert str(caught.value) == f"{file} and --set: {said}"


def test_resolved_job_is_the_same_job(load: Load, resolved: Resolved) -> None:
    job = load(
        '[model]\nname = "m:M"\ntable_rows = 5\n[model.options]\nlow = -inf\nn = 2\nx = 2.0\nflag = true\n'
        'list = [1, "a"]\n[sync.options]\nelastic_rate = 0.25\n'
    )
    again = resolved(job)
    assert again == job
    assert again.digest == job.digest
    assert again.model.options == {"low": -float("inf"), "n": 2, "x": 2.0, "flag": True, "list": [1, "a"]}
    assert isinstance(again.model.options["x"], float)


@pytest.mark.parametrize("key", [*REMOVED_KEYS, "trainer.planted"])
def test_a_key_that_is_gone_is_refused_and_a_saved_job_read_without_it(
    load: Load, write_job: Write, resolved: Resolved, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setitem(REMOVED_KEYS, "trainer.planted", "was only planted: delete the key")
    section, _, name = key.partition(".")
    refused = f"{key}: {REMOVED_KEYS[key]}"
    with pytest.raises(JobFileError) as caught:
        load_job(write_job(f"{MINIMAL}[{section}]\n{name} = 0\n"))
    assert refused in str(caught.value)
    with pytest.raises(JobFileError) as caught:
        load("", f"{key}=5")
    assert refused in str(caught.value)
    job = load()
    tree = json.loads(job.model_dump_json())
    tree[section][name] = 5
    assert resolved(tree) == job
    # The control: other unknown keys are refused there too.
    tree[section][f"{name}_2"] = 5
    with pytest.raises(JobFileError, match=f"{name}_2: unknown key"):
        resolved(tree)


def test_resolved_job_moves_no_path(
    load: Load, resolved: Resolved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load()
    monkeypatch.chdir(tmp_path)
    assert resolved(job).data.path == job.data.path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON (Expecting property name"),
        ("[1]", "is not a JSON object; give a run's job.json"),
        ("3", "is not a JSON object; give a run's job.json"),
        ("{}", "[data]: is missing; add it"),
        (
            json.dumps({"data": {"format": "parquet", "path": ["x"]}, "trainers": {}}),
            "did you mean 'trainer'?",
        ),
    ],
)
def test_resolved_job_that_is_none(resolved: Resolved, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        resolved(text)
    assert str(caught.value).startswith(f"{tmp_path}/job.json: ")
    assert said in str(caught.value)


def test_resolved_job_that_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    with pytest.raises(JobFileError) as caught:
        load_resolved(file)
    assert str(caught.value) == f"{file}: cannot be read (No such file or directory); give a run's job.json"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("./mine.py:Mine", "{jobs}/mine.py:Mine"),
        ("../more/mine.py:Mine", "{top}/more/mine.py:Mine"),
        ("mine.py:Mine", "{jobs}/mine.py:Mine"),
        ("/else/mine.py:Mine", "/else/mine.py:Mine"),
        ("mine:Mine", "mine:Mine"),
        ("my.mine:Mine", "my.mine:Mine"),
        ("ma", "ma"),
    ],
)
def test_the_file_of_an_algorithm_is_made_absolute(write_job: Write, given: str, expected: str) -> None:
    """Against the job file's folder, and by an override against the working directory."""
    file = write_job(MINIMAL + f'[sync]\nalgorithm = "{given}"\n')
    places = {"jobs": file.parent, "top": file.parent.parent}
    job = load_job(file)
    assert job.sync.algorithm == expected.format(**places)
    work = load_job(file, [f"sync.algorithm={given}"]).sync.algorithm
    assert work == expected.format(jobs=Path.cwd(), top=Path.cwd().parent)


def test_a_saved_job_whose_codecs_are_gone_is_read_without_them(load: Load, resolved: Resolved) -> None:
    job = load("", "codecs.vectors=bfloat16")
    tree = json.loads(job.model_dump_json())
    tree["codecs"] |= {"center_up": "auto", "center_down": "auto", "gradients": "float16"}
    assert resolved(tree) == job
