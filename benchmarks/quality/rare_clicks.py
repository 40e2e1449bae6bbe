"""NE in training where clicks are rare: 2 in 1,000.

    python benchmarks/quality/rare_clicks.py --out docs/results/rare_clicks.json

The demo's job on 500,000 examples of generated logs, in several seeds: with one trainer; with two; with two
whose dense rate warms up as long as the rows' rate does; and, as the control, which must come out worse, with
two whose output bias is drawn at random. NE in training is that of all examples, each before its step. The
curve has a point for every 4,096 examples; `first` is the mean of its points up to 50,000 examples, `later`
that of the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

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
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        shadowsync(
            *("generate", str(folder / "demo-data"), "--seed", str(seed), "--click-rate", str(click_rate)),
            *("--examples", str(examples), "--eval-examples", str(examples // 5)),
        )
        (folder / "examples").mkdir()
        job_file = folder / "examples" / "demo.toml"
        job_file.write_text(DEMO.read_text("utf-8"), encoding="utf-8")
        return [{"seed": seed, "case": case, **run(job_file, seed, own)} for case, own in CASES.items()]


def run(job_file: Path, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Run a job, and return its NE in training and held out."""
    runs = job_file.parent / "runs"
    given = [f"run.directory={runs}", f"run.seed={seed}", *overrides]
    shadowsync("run", str(job_file), "--quiet", *(word for one in given for word in ("--set", one)))
    report = json.loads((runs / "latest" / "report.json").read_text("utf-8"))
    curve = report["curves"]["ne"]
    return {
        "ne_in_training": report["train"]["ne_progressive"],
        "first": mean(ne for trained, ne in curve if trained <= FIRST_EXAMPLES),
        "later": mean(ne for trained, ne in curve if trained > FIRST_EXAMPLES),
        "ne": report["eval"]["ne"],
        "auc": report["eval"]["auc"],
    }


def shadowsync(*arguments: str) -> None:
    """Run a command of shadowsync; raise RuntimeError if it fails."""
    command = [sys.executable, "-m", "shadowsync.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
