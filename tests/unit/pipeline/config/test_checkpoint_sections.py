"""[start], [checkpoint] and [validation]: what they mean, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import load_job

JOB = '[data]\nformat = "parquet"\npath = "x"\n'


def load(folder: Path, text: str, *overrides: str) -> Job:
    file = folder / "job.toml"
    file.write_text(JOB + text)
    return load_job(file, overrides)


def test_a_checkpoint_a_minute_by_default(tmp_path: Path) -> None:
    job = load(tmp_path, "")
    assert job.start.checkpoint == ""
    assert not job.validation.enabled
    assert (job.checkpoint.every_examples, job.checkpoint.every_seconds) == (0, 60.0)


def test_a_checkpoint_is_beside_the_job_file_or_where_the_shell_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    text = '[start]\ncheckpoint = "runs/old"\n'
    assert load(tmp_path, text).start.checkpoint == str(tmp_path / "runs/old")
    assert load(tmp_path, text, "start.checkpoint=old").start.checkpoint == str(elsewhere / "old")
    assert load(tmp_path, text, "start.checkpoint=").start.checkpoint == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[start]\nresume = true\n", "start.resume: true given; it needs start.checkpoint"),
        (
            '[start]\nresume = true\ncheckpoint = "x"\ndense = "none"\n',
            'start.dense: "none" given; a resumed run takes its whole model',
        ),
        ("[validation]\npatience = 3\n", "validation.patience: 3 given; set validation.every_examples"),
        ("[validation]\npatience = 3\n", "or leave patience out: the end is validated in any case"),
        ("[validation]\nwait = true\n", "validation.wait: true given; set validation.every_examples"),
        ("[validation]\nevery_examples = -1\n", "validation.every_examples: -1 given"),
        (
            "[checkpoint]\nevery_example = 5\n",
            "checkpoint.every_example: unknown key; did you mean 'every_examples'",
        ),
    ],
)
def test_what_cannot_be_used_is_told_with_what_would(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        load(tmp_path, text)
    assert said in str(caught.value)
