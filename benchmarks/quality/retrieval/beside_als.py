"""Retrieval on MovieLens 100k, leave-one-out: ALS of `implicit` and BPR of RecBole beside two towers.

The last film of each user is the test, the one before it validation, and each is ranked among all 1,682 films
without those that the user has in training. All have the same parts and the same code for the figures:
`pipeline.retrieval`. Each model's settings are those with the best recall@10 on validation; the two towers'
are chosen by towers.py.

    OMP_NUM_THREADS=1 python benchmarks/quality/retrieval/beside_als.py als|bpr OUT.json

Needs SHADOWSYNC_DATA, a folder with ml-100k.inter.gz and ml-100k.item.gz. `als` needs the package implicit,
and `bpr` recbole.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from shadowsync.benchmarks.quality.retrieval.towers import JOB, SEEDS, inputs
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.metrics.retrieval import RetrievalSums
from shadowsync.pipeline.retrieval.items import ItemReader, examples_of, items_of_files
from shadowsync.pipeline.retrieval.ranks import ItemNumbers, Pairs, ranks_of

BPR_RATES = (0.0003, 0.001, 0.003, 0.01)
BPR_EPOCHS = 50
ALS = [(factors, reg, alpha) for factors in (32, 64, 128) for reg in (0.01, 1, 10) for alpha in (1, 5, 20)]


@dataclass
class Part:
    """Rows of a part: int64, the numbers of users and of items."""

    users: np.ndarray[Any, np.dtype[np.int64]]
    items: np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Data:
    """The parts of the job, and the numbers of its users and items."""

    parts: dict[str, Part]
    users: int
    items: int

    @classmethod
    def of(cls, job: Job) -> Data:
        plan = plan_input(job)
        items = items_of_files(job, plan.id_classes, [job.validation.items])
        numbers, identity = ItemNumbers(items.identities), ItemReader(job)

        def read(spans: list[Span]) -> tuple[Any, Any]:
            rows = list(examples_of(job, spans))
            users = np.concatenate([part.groups[0] for part in rows])
            return users, numbers.of(np.concatenate([identity(part) for part in rows]))

        raw = {"train": read(plan.train), "validation": read(plan.validation), "test": read(plan.test)}
        known = np.unique(np.concatenate([users for users, _ in raw.values()]))
        parts = {name: Part(np.searchsorted(known, users), of) for name, (users, of) in raw.items()}
        return cls(parts, len(known), len(items))

    def figures(self, part: str, users: Any, items: Any) -> dict[str, float | None]:
        """Return the figures of vectors of all users and items, float32, on a part."""
        held, train = self.parts[part], self.parts["train"]
        order = np.argsort(held.users)
        place = np.searchsorted(held.users, train.users, sorter=order)
        found = held.users[order[np.minimum(place, len(order) - 1)]] == train.users
        pairs = Pairs(order[place[found]], train.items[found])
        ranks = ranks_of(users[held.users], held.items, items, pairs)
        sums = RetrievalSums(10, self.items)
        sums.add(ranks, held.items)
        return sums.result().metrics()


def als(data: Data) -> Iterator[dict[str, Any]]:
    """Choose the settings of ALS on validation with the first seed; then fit with each.

    `with_validation` has the figures on the test of a fit to the films of the validation, too: towers with a
    history are given these in the rows of the test.
    """
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    def fitted(
        setting: tuple[int, float, float], seed: int, part: str, parts: tuple[str, ...] = ("train",)
    ) -> dict[str, float | None]:
        users = np.concatenate([data.parts[name].users for name in parts])
        items = np.concatenate([data.parts[name].items for name in parts])
        seen = csr_matrix((np.ones(len(users), np.float32), (users, items)), (data.users, data.items))
        factors, reg, alpha = setting
        model = AlternatingLeastSquares(
            factors=factors, regularization=reg, alpha=alpha, iterations=15, num_threads=1, random_state=seed
        )
        model.fit(seen, show_progress=False)
        return data.figures(part, model.user_factors, model.item_factors)

    scores = {setting: fitted(setting, SEEDS[0], "validation") for setting in ALS}
    best = max(ALS, key=lambda setting: (scores[setting]["recall@10"], scores[setting]["ndcg@10"]))
    for seed in SEEDS:
        yield {
            "seed": seed,
            "setting": best,
            "validation": scores[best],
            "test": fitted(best, seed, "test"),
            "with_validation": fitted(best, seed, "test", ("train", "validation")),
        }


def bpr(data: Data) -> Iterator[dict[str, Any]]:
    """Choose the rate of RecBole's BPR on validation with the first seed; then train with it and each seed.

    Each run's epoch is chosen on validation, too.
    """
    tried = {}
    for rate in BPR_RATES:
        tried[rate] = max(_bpr_epochs(data, SEEDS[0], rate), key=_on_validation)
        print(tried[rate], flush=True)
    best = max(BPR_RATES, key=lambda rate: _on_validation(tried[rate]))
    for seed in SEEDS:
        yield tried[best] if seed == SEEDS[0] else max(_bpr_epochs(data, seed, best), key=_on_validation)


def _on_validation(run: dict[str, Any]) -> tuple[float, float]:
    return run["validation"]["recall@10"], run["validation"]["ndcg@10"]


def _bpr_epochs(data: Data, seed: int, rate: float) -> Iterator[dict[str, Any]]:
    # RecBole 1.2.1 uses names that NumPy 2 does not have any more.
    vars(np).update(float_=np.float64, complex_=np.complex128, unicode_=np.str_, bool8=np.bool_)
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.general_recommender.bpr import BPR
    from recbole.trainer import Trainer
    from recbole.utils import init_seed

    train = data.parts["train"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ml").mkdir()
        rows = [f"{user}\t{item}" for user, item in zip(train.users, train.items, strict=True)]
        text = "\n".join(["user_id:token\titem_id:token", *rows])
        (Path(folder) / "ml" / "ml.inter").write_text(text + "\n", encoding="utf-8")
        settings = {
            "data_path": folder,
            "checkpoint_dir": folder,
            "seed": seed,
            "learning_rate": rate,
            "embedding_size": 64,
            "train_batch_size": 1024,
            "use_gpu": False,
            "load_col": {"inter": ["user_id", "item_id"]},
            "eval_args": {"split": {"RS": [1, 0, 0]}, "order": "RO", "group_by": "user", "mode": "full"},
        }
        config = Config(model="BPR", dataset="ml", config_dict=settings)
        init_seed(seed, True)
        dataset = create_dataset(config)
        batches, _, _ = data_preparation(config, dataset)
        model = BPR(config, dataset)
        trainer = Trainer(config, model)
        for epoch in range(1, BPR_EPOCHS + 1):
            trainer._train_epoch(batches, epoch)
            if epoch % 5 == 0:
                users, items = _vectors(data, dataset, model)
                yield {
                    "seed": seed,
                    "setting": [rate, epoch],
                    "validation": data.figures("validation", users, items),
                    "test": data.figures("test", users, items),
                }


def _vectors(data: Data, dataset: Any, model: Any) -> tuple[Any, Any]:
    """Return RecBole's vectors of all users and items by our numbers; 0 for one that it has not seen."""
    found = []
    for field, count, table in (
        ("user_id", data.users, model.user_embedding),
        ("item_id", data.items, model.item_embedding),
    ):
        weights, tokens = table.weight.detach().numpy(), dataset.field2token_id[field]
        vectors = np.zeros((count, weights.shape[1]), np.float32)
        for token, row in tokens.items():
            if token != "[PAD]":
                vectors[int(token)] = weights[row]
        found.append(vectors)
    return found[0], found[1]


def main() -> None:
    """Measure one model, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", choices=("als", "bpr"))
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    data = Data.of(load_job(JOB, inputs([])))
    measured = {"als": als, "bpr": bpr}[given.model]
    results = list(measured(data))
    given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name in ("recall", "ndcg"):
        values = [run["test"][f"{name}@10"] for run in results]
        print(f"{name}@10 {np.mean(values):.4f} +- {np.std(values, ddof=1):.4f}: {values}")


if __name__ == "__main__":
    main()
