"""Jobs on real data, scored, and a plain loop with their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shadowsync.benchmarks.job_runs import run_job_file
from shadowsync.benchmarks.quality.data_sets.plain_loop import Scored, logistic_loop, plain_loop
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.metrics.quality import QualitySums

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GALLERY = EXAMPLES / "gallery"
# The files of the examples' jobs, in SHADOWSYNC_DATA.
MOVIELENS = {"data.path": "ml-100k.inter.gz"}
ADULT = {"data.path": "adult.data.gz", "data.eval_path": "adult.test.gz"}
# What examples/gallery/fetch.py writes.
FETCHED = {"data.path": "train.parquet", "data.eval_path": "test.parquet"}


@dataclass(frozen=True)
class Score:
    """NE and AUC of the same rows; None where they are undefined."""

    ne: float | None
    auc: float | None


@dataclass(frozen=True)
class Task:
    """A job file, the settings that name its files, and whether scoring is progressive."""

    job: Path
    files: tuple[str, ...]
    progressive: bool = False

    def load(self, seed: int) -> Job:
        """Return the job with this seed."""
        return load_job(str(self.job), self._settings(seed))

    def plain(self, seed: int) -> Score:
        """Return the plain loop's score."""
        return score_of(self._part(plain_loop(self.load(seed))))

    def floor(self, lr: float) -> Score:
        """Return the score of one pass of logistic regression."""
        return score_of(self._part(logistic_loop(self.load(1), lr)))

    def run(self, seed: int, settings: Sequence[str] = ()) -> Score:
        """Return the score of a job: that of its best checkpoint, if it validates."""
        report = run_job_file(self.job, (*self._settings(seed), *settings))
        score = report.train.progressive if self.progressive else report.headline
        return Score(None, None) if score is None else Score(score.ne, score.auc)

    def _part(self, scored: Scored) -> QualitySums:
        return scored.progressive if self.progressive else scored.test

    def _settings(self, seed: int) -> tuple[str, ...]:
        return (*self.files, f"run.seed={seed}", 'trainer.precision="float32"')


def score_of(sums: QualitySums) -> Score:
    """Return the score of scored examples."""
    return Score(sums.ne, sums.auc)


def movielens(data: Path) -> Task:
    """Return the task on MovieLens; `data` has the examples' files."""
    return Task(EXAMPLES / "movielens.toml", _in(data, MOVIELENS), progressive=True)


def adult(data: Path) -> Task:
    """Return the task on Adult; `data` has the examples' files."""
    return Task(EXAMPLES / "adult.toml", _in(data, ADULT))


def fetched(name: str, folder: Path) -> Task:
    """Return the task on a set that `fetch.py` has written to the folder."""
    return Task(GALLERY / f"{name}.toml", _in(folder, FETCHED))


def _in(folder: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key}={folder / name}" for key, name in files.items())
