"""Settings of two towers on MovieLens 100k, chosen on validation as those of ALS are: see retrieval.py.

    OMP_NUM_THREADS=1 python benchmarks/quality/retrieval/towers.py --out OUT.json [--jobs 2]

Each of `SETTINGS` is one run with the first seed; of those without and of those with a history the one with
the best recall@10 on validation is then run with the others. A run's epoch is chosen on validation, too.
Needs SHADOWSYNC_DATA, as retrieval.py does. Runs that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.pipeline.report.run_folders.write import read_report

SEEDS: Final = (1, 2, 3)
JOB: Final = Path(__file__).with_name("retrieval.toml")
LONGEST: Final = 50
TEMPERATURE: Final = "model.options.temperature"
HISTORY: Final = (
    'data.columns.history={kind="multi_hot",source="history:token_seq",table="film",pooling="mean",'
    f'max_ids={LONGEST},keep="last"}}'
)
WITH_HISTORY: Final = [HISTORY, 'model.query=["user","history"]']
HISTORY_ALONE: Final = [HISTORY, 'model.query=["history"]', "data.columns.user.kind=ignored"]
FAST: Final = ["trainer.lr=0.01", "embedding.lr=0.01"]
DECAY: Final = ["embedding.weight_decay=0.1"]
NARROW: Final = ["model.embedding_dim=32", "model.options.dim=32"]
# One change each; then those that gained on validation, together.
SETTINGS: Final[dict[str, list[str]]] = {
    "as the job file": [],
    "temperature 0.05": [f"{TEMPERATURE}=0.05"],
    "temperature 0.15": [f"{TEMPERATURE}=0.15"],
    "temperature 0.2": [f"{TEMPERATURE}=0.2"],
    "any length, temperature 1": [f"{TEMPERATURE}=1", "model.options.normalized=false"],
    "dim 32": NARROW,
    "dim 128": ["model.embedding_dim=128", "model.options.dim=128"],
    "hidden layer of 128": ["model.top=[128]"],
    "rates 0.001": ["trainer.lr=0.001", "embedding.lr=0.001"],
    "rates 0.01": FAST,
    "rate 0.0003 of the linear layers": ["trainer.lr=0.0003"],
    "decay of rows 0.1": DECAY,
    "decay of rows 1": ["embedding.weight_decay=1"],
    "batch 256": ["trainer.batch=256"],
    "no correction": ["model.options.frequency_rate=0"],
    "user and history": WITH_HISTORY,
    "history": HISTORY_ALONE,
    "rates 0.01, decay 0.1": [*FAST, *DECAY],
    "dim 32, rates 0.01, decay 0.1": [*NARROW, *FAST, *DECAY],
    "user and history, decay 0.1": [*WITH_HISTORY, *DECAY],
    "user and history, dim 32, rates 0.01, decay 0.1": [*WITH_HISTORY, *NARROW, *FAST, *DECAY],
    "user and history, rates 0.01": [*WITH_HISTORY, *FAST],
    "user and history, hidden layer of 128": [*WITH_HISTORY, "model.top=[128]"],
    "user and history, temperature 0.2": [*WITH_HISTORY, f"{TEMPERATURE}=0.2"],
    "dim 32, decay 0.1": [*NARROW, *DECAY],
}


def write_parts(folder: Path) -> None:
    """Write the files of training, validation and test, with the films that a user rated before each."""
    with gzip.open(Path(os.environ["SHADOWSYNC_DATA"]) / "ml-100k.inter.gz", "rt") as file:
        head, *rows = file.read().splitlines()
    by_user: defaultdict[str, list[str]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: float(row.split("\t")[3])):
        by_user[row.split("\t")[0]].append(row)
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for own in by_user.values():
        films = [row.split("\t")[1] for row in own]
        lines = [f"{row}\t{'|'.join(films[max(0, n - LONGEST) : n])}" for n, row in enumerate(own)]
        parts["train"] += lines[:-2]
        parts["validation"].append(lines[-2])
        parts["test"].append(lines[-1])
    for name, lines in parts.items():
        text = "\n".join([f"{head}\thistory:token_seq", *lines])
        (folder / f"{name}.inter").write_text(text + "\n", encoding="utf-8")


def inputs(settings: list[str], parts: Path = Path()) -> list[str]:
    """Return the settings that name the data: the parts of `write_parts` for a job with histories."""
    folder = os.environ["SHADOWSYNC_DATA"]
    films = f"validation.items={folder}/ml-100k.item.gz"
    if HISTORY not in settings:
        return [films, f"data.path={folder}/ml-100k.inter.gz"]
    return [
        films,
        f"data.path={parts / 'train.inter'}",
        f"data.validation_path={parts / 'validation.inter'}",
        f"data.eval_path={parts / 'test.inter'}",
    ]


def job_file(settings: list[str], folder: Path) -> Path:
    """Return the job's file; for a job with histories one without the split, since its parts are files."""
    if HISTORY not in settings:
        return JOB
    before, _, rest = JOB.read_text("utf-8").partition("[data.split]")
    file = folder / "histories.toml"
    file.write_text(before + rest[rest.index("[model]") :], encoding="utf-8")
    return file


def run_towers(settings: list[str], seed: int, parts: Path) -> dict[str, Any]:
    """Run the job in a process of its own; the figures are those of the best checkpoint by validation."""
    with tempfile.TemporaryDirectory(prefix="towers-") as runs:
        sets = [f"run.directory={runs}", f"run.seed={seed}", "run.name=towers", *inputs(settings, parts)]
        options = [word for text in [*sets, *settings] for word in ("--set", text)]
        job = job_file(settings, Path(runs))
        command = [sys.executable, "-m", "shadowsync", "run", str(job), *options, "--quiet"]
        subprocess.run(command, check=True)
        report = read_report(Path(runs) / "towers" / "report.json")
        assert report.eval is not None
        assert report.eval.retrieval is not None
        assert report.validation is not None
        return {
            "validation": report.validation.best_metrics,
            "best_examples": report.validation.best_examples,
            "test": report.eval.retrieval.model_dump(exclude={"catalogue"}),
        }


def on_validation(run: dict[str, Any]) -> tuple[float, float]:
    """Return what settings are chosen by."""
    return run["validation"]["recall@10"], run["validation"]["ndcg@10"]


def main() -> None:
    """Make the missing runs, and print what was chosen and its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    made: dict[str, dict[str, Any]] = kept_runs(given.out)

    def make(name: str, seed: int) -> None:
        if str(seed) in made.setdefault(name, {}):
            return
        run = run_towers(SETTINGS[name], seed, Path(parts))
        made[name][str(seed)] = run
        keep_runs(given.out, made)
        print(f"{name}, {seed}: {on_validation(run)}", flush=True)

    with tempfile.TemporaryDirectory(prefix="parts-") as parts, ThreadPoolExecutor(given.jobs) as pool:
        write_parts(Path(parts))
        list(pool.map(make, SETTINGS, [SEEDS[0]] * len(SETTINGS)))
        chosen = [
            max(names, key=lambda name: on_validation(made[name][str(SEEDS[0])]))
            for names in (
                [name for name in SETTINGS if HISTORY not in SETTINGS[name]],
                [name for name in SETTINGS if HISTORY in SETTINGS[name]],
            )
        ]
        list(pool.map(make, chosen * len(SEEDS), [seed for seed in SEEDS for _ in chosen]))
    for name in chosen:
        for figure in ("recall", "ndcg"):
            values = [made[name][str(seed)]["test"][figure] for seed in SEEDS]
            mean, spread = statistics.mean(values), statistics.stdev(values)
            print(f"{name}: {figure}@10 {mean:.4f} +- {spread:.4f}: {values}")


if __name__ == "__main__":
    main()
