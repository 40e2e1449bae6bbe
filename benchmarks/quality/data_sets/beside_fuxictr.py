"""DeepFM, AutoInt, FinalMLP and PLE beside FuxiCTR's own: the same rows, ids, sizes and rates.

    git clone https://github.com/reczoo/FuxiCTR
    pip install keras_preprocessing h5py
    OMP_NUM_THREADS=1 python benchmarks/quality/data_sets/beside_fuxictr.py --peer FuxiCTR --data DIR \\
        --out benchmarks/quality/results/fuxictr.json

DIR has adult.data.gz, adult.test.gz and ml-100k.inter.gz. All columns are ids, numbered from 1, so both have
exactly the same rows of their tables; a test id that training lacks is the id 0 of its column. A seed sets
first values and the order of batches, which tenth of the training rows is for validation, and which fifth of
MovieLens is the test. Of PLE a set has two labels: income and whether one is married, and a rating of 4 and
one of 5; its figures are those of the first. Both validate after each epoch, stop after two without a gain in
AUC, and score the test rows with the best epoch's model.

What differs: a job's products are in bfloat16 where the processor has it; FuxiCTR's Adam moves all rows of a
table in each step, a job's those of the batch; its layers begin with weights of Xavier's normal distribution
and biases of 0, a job's as torch has them; its second interacting layer adds its input as it is where a job
has a matrix, as AutoInt's paper has.
Runs that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import shadowsync
import torch
from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.pipeline.types import Float32Array

DIM: Final = 8
WIDTHS: Final = [64, 32]
BATCH: Final = 256
RATE: Final = 0.001
SETS: Final = ("adult", "movielens")
EPOCHS: Final = 20
PATIENCE: Final = 2
LABELS: Final = ("label", "second")
ADULT: Final = [
    *("age", "workclass", "weight", "education", "education_years", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours", "country", "income"),
]
# Of a job and of FuxiCTR.
MODELS: Final[dict[str, tuple[dict[str, Any], tuple[str, dict[str, Any]]]]] = {
    # The first component of a job's vector is the weight of the linear part.
    "deepfm": (
        {"embedding_dim": DIM + 1, "top": WIDTHS},
        ("DeepFM/DeepFM_torch/src/DeepFM.py", {"hidden_units": WIDTHS}),
    ),
    "autoint": (
        {"embedding_dim": DIM, "top": WIDTHS, "options": {"layers": 2, "heads": 2, "head_dim": 16}},
        (
            "AutoInt/src/AutoInt.py",
            {"dnn_hidden_units": WIDTHS, "attention_layers": 2, "num_heads": 2, "attention_dim": 32},
        ),
    ),
    "finalmlp": (
        {"embedding_dim": DIM, "bottom": WIDTHS, "top": [64], "options": {"heads": 2}},
        (
            "FinalMLP/src/FinalMLP.py",
            {"mlp1_hidden_units": WIDTHS, "mlp2_hidden_units": [64], "num_heads": 2},
        ),
    ),
    "ple": (
        {
            "embedding_dim": DIM,
            "bottom": WIDTHS,
            "top": [16],
            "options": {"levels": 1, "experts": 2, "shared_experts": 2},
        },
        (
            "multitask/PLE/src/PLE.py",
            {
                "num_layers": 1,
                "num_shared_experts": 2,
                "num_specific_experts": 2,
                "expert_hidden_units": WIDTHS,
                "gate_hidden_units": [],
                "tower_hidden_units": [16],
            },
        ),
    ),
}
Split = tuple[pl.DataFrame, pl.DataFrame]


class Rows(NamedTuple):
    """The parts of a set."""

    train: pl.DataFrame
    validation: pl.DataFrame
    test: pl.DataFrame


def adult(data: Path, seed: int) -> Split:  # noqa: ARG001
    """Return the rows of Adult for training and test, texts, with both labels."""

    def read(name: str) -> pl.DataFrame:
        with gzip.open(data / name, "rt") as file:
            lines = [line.strip().rstrip(".").split(", ") for line in file]
        rows = [line for line in lines if len(line) == len(ADULT)]
        frame = pl.DataFrame(rows, schema=ADULT, orient="row").drop("weight")
        married = pl.col("marital_status").str.starts_with("Married")
        return frame.with_columns(label=pl.col("income") == ">50K", second=married).drop("income")

    return read("adult.data.gz"), read("adult.test.gz")


def movielens(data: Path, seed: int) -> Split:
    """Return four fifths of the ratings for training and one for the test, drawn by the seed."""
    with gzip.open(data / "ml-100k.inter.gz", "rt") as file:
        rows = [line.split("\t") for line in file][1:]
    frame = pl.DataFrame([row[:3] for row in rows], schema=["user", "item", "rating"], orient="row")
    rating = pl.col("rating").cast(pl.Int64)
    frame = frame.with_columns(label=rating >= 4, second=rating == 5).drop("rating")
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=seed)
    return shuffled[len(frame) // 5 :], shuffled[: len(frame) // 5]


def with_ids(train: pl.DataFrame, test: pl.DataFrame, seed: int) -> tuple[Rows, dict[str, int]]:
    """Return the three parts with ids in place of texts, and the number of ids of each column."""
    counts = {}
    for name in train.columns:
        if name in LABELS:
            continue
        known = train[name].unique().sort()
        codes = {value: number for number, value in enumerate(known, 1)}
        counts[name] = len(known) + 1
        train, test = (
            frame.with_columns(pl.col(name).replace_strict(codes, default=0, return_dtype=pl.Int64))
            for frame in (train, test)
        )
    numbers = [pl.col(name).cast(pl.Int64) for name in LABELS]
    train = train.with_columns(numbers).sample(fraction=1.0, shuffle=True, seed=seed)
    tenth = len(train) // 10
    return Rows(train[tenth:], train[:tenth], test.with_columns(numbers)), counts


def of_job(model: str, rows: Rows, seed: int) -> dict[str, float]:
    """Train a job with one trainer; return its figures on the test rows."""
    with tempfile.TemporaryDirectory(prefix="fuxictr-") as name:
        folder = Path(name)
        for part, frame in rows._asdict().items():
            frame.write_parquet(folder / f"{part}.parquet")
        columns: dict[str, Any] = {
            column: "categorical" for column in rows.train.columns if column not in LABELS
        }
        columns |= {name: "label" if name == "label" or model == "ple" else "ignored" for name in LABELS}
        job = {
            "run": {"seed": seed, "directory": str(folder / "runs")},
            "data": {
                "format": "parquet",
                "path": str(folder / "train.parquet"),
                "validation_path": str(folder / "validation.parquet"),
                "epochs": EPOCHS,
                "shuffle_window": 65_536,
                "columns": columns,
            },
            # FuxiCTR's linear parts begin at 0, and so do its biases.
            "model": {"name": model, "output_bias": "drawn", **MODELS[model][0]},
            "trainer": {"batch": BATCH, "optimizer": "adam", "lr": RATE, "clip_norm": 10.0},
            # The width of a uniform distribution with a deviation of 0.0001.
            "embedding": {"optimizer": "adam", "lr": RATE, "init_scale": 1e-4 * 3**0.5},
            "validation": {"every_epochs": 1, "metric": "auc", "patience": PATIENCE},
            "report": {"pictures": False},
        }
        result = shadowsync.run(job)
        assert result.folder is not None
        best = shadowsync.load(result.folder, "best")
        probabilities = best.predict(folder / "test.parquet")
        return figures(probabilities if probabilities.ndim == 1 else probabilities[:, 0], rows.test)


def figures(probabilities: Float32Array, rows: pl.DataFrame) -> dict[str, float]:
    """Return AUC and logloss of the first label."""
    scores = torch.from_numpy(probabilities).double()
    sums = QualitySums()
    sums.add(torch.logit(scores, eps=1e-7).float().numpy(), rows["label"].to_numpy().astype(np.float32))
    return {"auc": sums.auc or 0.0, "logloss": sums.logloss}


def of_peer(
    peer: Path,
    model: str,
    rows: Rows,
    counts: Mapping[str, int],
    seed: int,
) -> dict[str, float]:
    """Train FuxiCTR's model on the same rows, batch by batch by its own step; return its figures."""
    from fuxictr.features import FeatureMap

    several = model == "ple"
    labels = list(LABELS) if several else ["label"]
    features = FeatureMap("benchmark", ".")
    features.features.update(
        {name: {"type": "categorical", "source": "", "vocab_size": count} for name, count in counts.items()}
    )
    features.labels, features.num_fields, features.default_emb_dim = labels, len(counts), DIM
    path, options = MODELS[model][1]
    maker = getattr(_module(peer / "model_zoo" / path), Path(path).stem)
    torch.manual_seed(seed)
    task = (
        {"task": ["binary_classification"] * 2, "num_tasks": 2}
        if several
        else {"task": "binary_classification"}
    )
    built = maker(
        features,
        gpu=-1,
        learning_rate=RATE,
        embedding_dim=DIM,
        optimizer="adam",
        loss=["binary_crossentropy"] * 2 if several else "binary_crossentropy",
        metrics=["AUC"],
        verbose=0,
        model_root=".",
        **task,
        **options,
    )
    built._max_gradient_norm = 10.0
    train = _tensors(rows.train, [*counts, *labels])
    drawn = torch.Generator().manual_seed(seed)
    best: tuple[float, dict[str, torch.Tensor]] = 0.0, {}
    waited = 0
    for _ in range(EPOCHS):
        built.train()
        for batch in torch.split(torch.randperm(len(rows.train), generator=drawn), BATCH):
            built.train_step({name: values[batch] for name, values in train.items()})
        auc = figures(_probabilities(built, rows.validation, counts), rows.validation)["auc"]
        waited += 1
        if auc > best[0]:
            best, waited = (auc, copy.deepcopy(built.state_dict())), 0
        if waited >= PATIENCE:
            break
    built.load_state_dict(best[1])
    return figures(_probabilities(built, rows.test, counts), rows.test)


def _tensors(frame: pl.DataFrame, names: Iterable[str]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(frame[name].to_numpy().copy()) for name in names}


def _probabilities(built: Any, frame: pl.DataFrame, names: Iterable[str]) -> Float32Array:
    built.eval()
    with torch.no_grad():
        outputs = built(_tensors(frame, names))
    first = outputs["label_pred"] if "label_pred" in outputs else outputs["y_pred"]
    scores: Float32Array = first.squeeze(1).numpy()
    return scores


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(made: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a Markdown table: means and deviations over the seeds."""
    rows = []
    for name in SETS:
        for model in MODELS:
            cells = []
            for metric in ("auc", "logloss"):
                for who in ("job", "FuxiCTR"):
                    values = [
                        scores[metric]
                        for key, scores in made.items()
                        if key.startswith(f"{name}, {model}, {who}, ")
                    ]
                    spread = statistics.stdev(values) if len(values) > 1 else 0.0
                    cells.append(f"{statistics.mean(values):.4f} ± {spread:.4f}" if values else "")
            rows.append([name, model, *cells])
    return markdown_table(["set", "model", "AUC", "FuxiCTR's", "logloss", "FuxiCTR's"], rows)


def main() -> None:
    """Make the runs that the file lacks, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, required=True, help="a checkout of FuxiCTR")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sys.path.insert(0, str(options.peer.resolve()))
    torch.set_num_threads(1)
    made = kept_runs(options.out)
    for name, load in {"adult": adult, "movielens": movielens}.items():
        for seed in range(1, options.seeds + 1):
            rows, counts = with_ids(*load(options.data, seed), seed)
            for model in MODELS:
                own, other = (f"{name}, {model}, {who}, {seed}" for who in ("job", "FuxiCTR"))
                if own not in made:
                    made[own] = of_job(model, rows, seed)
                if other not in made:
                    made[other] = of_peer(options.peer, model, rows, counts, seed)
                keep_runs(options.out, made)
                print(json.dumps({key: made[key] for key in (own, other)}), flush=True)
    print(*table(made), sep="\n")


if __name__ == "__main__":
    main()
