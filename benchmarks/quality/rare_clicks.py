"""NE in training where clicks are rare: 2 in 1,000.

    python benchmarks/quality/rare_clicks.py --out benchmarks/quality/results/rare_clicks.json

The demo's job on 500,000 examples of generated logs, in several seeds: with one trainer; with two; with two
whose dense rate warms up as long as the rows' rate does; and, as the control, which must come out worse, with
two whose output bias is drawn at random. NE in training is that of all examples, each before its step;
`later` is that of all but the first 50,000, which are the job's progressive part. The curve has a point for
every 4,096 examples; `first` is the mean of its points up to 50,000 examples.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from shadowsync.benchmarks.job_runs import run_job_file
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.report.model import Report
from shadowsync.pipeline.report.write import describe_hardware, versions

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"
FIRST_EXAMPLES = 50_000
CASES = {
    "1 trainer": ["trainer.count=1"],
    "2 trainers": [],
    "2 trainers, dense warm-up": ["trainer.schedule.warmup_examples=30720"],
    "2 trainers, drawn bias": ["model.output_bias=drawn"],
}


def main() -> None:
    """Run every case in every seed, and print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=500_000)
    parser.add_argument("--click-rate", type=float, default=0.002)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = [one for seed in options.seeds for one in of_seed(seed, options.examples, options.click_rate)]
    text = json.dumps(
        {"hardware": describe_hardware().model_dump(), "versions": versions(), "runs": runs}, indent=1
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


def of_seed(seed: int, examples: int, click_rate: float) -> list[dict[str, Any]]:
    """Generate the log of a seed, and run every case on it."""
    with tempfile.TemporaryDirectory(prefix="benchmark-log-") as name:
        log = Path(name)
        generate_log(
            log,
            examples=examples,
            eval_examples=examples // 5,
            seed=seed,
            data_format="parquet",
            files=1,
            click_rate=click_rate,
        )
        given = (
            f"data.path={log}/train-*.parquet",
            f"data.eval_path={log}/eval-*.parquet",
            f"run.seed={seed}",
            # As the progressive part needs it; the rows of a generated log are in no order.
            "data.shuffle_window=0",
            f"data.split.progressive={1 - FIRST_EXAMPLES / examples}",
        )
        return [
            {"seed": seed, "case": case, **figures(run_job_file(DEMO, (*given, *own)))}
            for case, own in CASES.items()
        ]


def figures(report: Report) -> dict[str, float | None]:
    """Return NE in training, of first and later examples, and quality held out."""
    assert report.eval is not None
    assert report.train.progressive is not None
    curve = report.curves.ne
    return {
        "ne_in_training": report.train.ne_progressive,
        "first": mean(ne for trained, ne in curve if trained <= FIRST_EXAMPLES),
        "later": report.train.progressive.ne,
        "ne": report.eval.ne,
        "auc": report.eval.auc,
    }


if __name__ == "__main__":
    main()
