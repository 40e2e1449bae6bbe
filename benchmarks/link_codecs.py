"""What it gains to choose the codec of each link: real jobs over emulated networks of several bandwidths.

    shadowsync generate demo-data --examples 200000 --eval-examples 50000 --seed 1 --reuse
    python benchmarks/link_codecs.py --log demo-data --out docs/results/link_codecs.json

Each job has `sync.control = "auto"`; its codec is float32, int8, or chosen. All go through a relay, also
where the bandwidth is not limited. Runs that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import on_log, run_job
from shadowsync.pipeline.report.model import Report
from shadowsync.pipeline.text.markdown import markdown_table

BANDWIDTHS = ("unlimited", "100mbit", "10mbit")
CODECS = ("float32", "int8", "auto")


def sections(log: Path, bandwidth: str, codec: str, seed: int, trainers: int) -> dict[str, dict[str, Any]]:
    """Return the job of one run: about 130,000 dense parameters, 0.5 MB as float32."""
    common = on_log(log, seed)
    return {
        **common,
        # A limit that the control found at float32 holds for some windows.
        "data": {**common["data"], "epochs": 2},
        "model": {"embedding_dim": 8, "table_rows": 20_000, "bottom": [128, 32], "top": [256, 128]},
        "trainer": {"count": trainers, "batch": 128, "optimizer": "adagrad", "lr": 0.01},
        "embedding": {"optimizer": "rowwise_adagrad", "lr": 0.02, "warmup_iterations": 30},
        # CPU time is no limit here: encoding costs some, and the link is what is looked at.
        "sync": {"algorithm": "easgd", "control": "auto", "duty": 1.0, "timeout_seconds": 60.0},
        "codecs": {"center_up": codec, "center_down": codec},
        "network": {"delay": "0ms", **({} if bandwidth == "unlimited" else {"bandwidth": bandwidth})},
    }


def figures(report: Report) -> dict[str, Any]:
    """Return the figures that are kept of a run."""
    control = report.sync.control
    return {
        "ne": report.eval.ne if report.eval else None,
        "gap_mean": report.sync.gap_mean,
        "rounds": report.sync.rounds,
        "round_seconds": report.sync.seconds_mean,
        "sync_bytes": report.sync.bytes,
        "examples_per_second": report.throughput.examples_per_second,
        "ratio": control.ratio if control else None,
        "kept": control.kept if control else None,
        "gap_target": control.gap if control else None,
        "links": [link.model_dump() for link in report.sync.link_codecs],
        "link_bytes": {
            way: (link.bytes, link.float32_bytes) for way, link in sorted(report.sync.links.items())
        },
        "ledger_adds_up": report.ledger.adds_up,
    }


def chosen(run: dict[str, Any]) -> str:
    """Return the exchanges of all links by codec, in words; "" if none was chosen."""
    total: dict[str, int] = {}
    for link in run["links"]:
        for codec, count in link["exchanges"].items():
            total[codec] = total.get(codec, 0) + count
    return ", ".join(f"{count} {codec}" for codec, count in total.items())


def table(made: dict[str, Any]) -> str:
    """Return all runs, in Markdown."""
    rows = [
        (
            bandwidth,
            codec,
            seed,
            chosen(run),
            f"{run['sync_bytes'] / run['rounds'] / 1e6:.2f}",
            str(run["rounds"]),
            f"{run['gap_mean']:.1f}",
            f"{run['round_seconds'] * 1e3:.0f}",
            "" if run["ratio"] is None else f"{run['ratio']:.2f}",
            "" if run["ne"] is None else f"{run['ne']:.4f}",
        )
        for bandwidth, of_codec in made.items()
        for codec, of_seed in of_codec.items()
        for seed, run in of_seed.items()
    ]
    head = ("bandwidth", "codec", "seed", "exchanges chosen", "MB a round", "rounds", "gap", "round, ms")
    return "\n".join(markdown_table((*head, "distance over movement", "NE"), rows))


def main() -> None:
    """Make what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for seed in range(1, given.seeds + 1):
        for bandwidth in BANDWIDTHS:
            for codec in CODECS:
                done = made.setdefault(bandwidth, {}).setdefault(codec, {})
                if str(seed) in done:
                    continue
                whole = sections(given.log.resolve(), bandwidth, codec, seed, given.trainers)
                done[str(seed)] = figures(run_job(whole))
                given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
                print(bandwidth, codec, seed, done[str(seed)], flush=True)
    print(table(made))


if __name__ == "__main__":
    main()
