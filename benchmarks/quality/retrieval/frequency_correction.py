"""Recall of two towers on MovieLens 100k, with and without the correction for sampling frequency.

    OMP_NUM_THREADS=1 python benchmarks/quality/retrieval/frequency_correction.py --data DIR/ml-100k.inter \\
        --out benchmarks/quality/results/frequency_correction.json

The jobs are examples/retrieval.toml, trained on all but each user's last film. Recall is that of these films
among all that were trained on, without those that the user rated before. A popular one has more ratings than
the median of them. Runs that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import shadowsync
from numpy.typing import NDArray
from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.benchmarks.quality.data_sets.tasks import EXAMPLES
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.text.markdown import markdown_table

USER, FILM, TIME = "user_id:token", "item_id:token", "timestamp:float"
VARIANTS: Final = {"corrected": (), "not corrected": ("model.options.frequency_rate=0",)}
MOST: Final = 50
"""Recall is at this many films."""


class LastFilms:
    """The last film of each user, and the films before it.

    Attributes:
        train: the rows that are trained on.
    """

    def __init__(self, file: Path) -> None:
        rows = pl.read_csv(file, separator="\t", schema_overrides={USER: pl.String, FILM: pl.String})
        rows = rows.with_row_index("place").sort(USER, TIME, "place")
        last = rows.group_by(USER, maintain_order=True).last()
        self.train = rows.join(last.select("place"), on="place", how="anti").sort("place").drop("place")
        self._films = self.train[FILM].unique(maintain_order=True).to_list()
        self._users = last[USER].to_list()
        number, user = (
            {film: at for at, film in enumerate(self._films)},
            {u: at for at, u in enumerate(self._users)},
        )
        # A film that nobody rated before cannot be found.
        self._wanted = [number.get(film, -1) for film in last[FILM].to_list()]
        self._seen = np.zeros((len(self._users), len(self._films)), bool)
        self._ratings = np.zeros(len(self._films))
        for who, film in self.train.select(USER, FILM).iter_rows():
            self._seen[user[who], number[film]] = True
            self._ratings[number[film]] += 1

    def recalls(self, scores: NDArray[Any]) -> dict[str, float]:
        """Return the recall of all last films, of popular ones and of others, by scores [users, films]."""
        scores = np.where(self._seen, -np.inf, scores)
        wanted = np.array(self._wanted)
        better = (scores > scores[np.arange(len(wanted)), wanted][:, None]).sum(axis=1)
        found = (better < MOST) & (wanted >= 0)
        ratings = np.where(wanted >= 0, self._ratings[wanted], 0)
        popular = ratings > np.median(ratings)
        return {
            "all": float(found.mean()),
            "popular": float(found[popular].mean()),
            "others": float(found[~popular].mean()),
        }

    def by_popularity(self) -> dict[str, float]:
        """Return the recalls of the films with the most ratings, as a floor."""
        return self.recalls(np.tile(self._ratings, (len(self._users), 1)))

    def of_model(self, model: SavedModel) -> dict[str, float]:
        """Return the recalls of a saved model."""
        scores = [model.predict({USER: [user] * len(self._films), FILM: self._films}) for user in self._users]
        return self.recalls(np.stack(scores))


def run(last: LastFilms, seed: int, settings: tuple[str, ...]) -> dict[str, float]:
    """Return the recalls of a job that was trained with this seed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        file = Path(folder) / "train.inter"
        last.train.write_csv(file, separator="\t")
        own = (f"data.path={file}", f"run.seed={seed}", f"run.directory={json.dumps(folder)}")
        whole = ("data.split.by=", "data.split.column=", 'trainer.precision="float32"', *own, *settings)
        shadowsync.run(load_job(str(EXAMPLES / "retrieval.toml"), whole))
        return last.of_model(SavedModel.open(Path(folder) / "latest"))


def main() -> None:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    last = LastFilms(given.data)
    results: dict[str, dict[str, dict[str, float]]] = kept_runs(given.out)
    results["most ratings"] = {"0": last.by_popularity()}
    for seed in range(1, given.seeds + 1):
        for name, settings in VARIANTS.items():
            made = results.setdefault(name, {})
            if str(seed) not in made:
                made[str(seed)] = run(last, seed, settings)
                keep_runs(given.out, results)
                print(f"{name}, {seed}: {made[str(seed)]}", flush=True)
    rows = []
    for name, made in results.items():
        cells = [name]
        for of in ("all", "popular", "others"):
            values = [recalls[of] for recalls in made.values()]
            cells.append(f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        rows.append(tuple(cells))
    print("\n".join(markdown_table((f"recall@{MOST}", "all", "popular", "others"), rows)))


if __name__ == "__main__":
    main()
