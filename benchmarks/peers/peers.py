"""Other systems (peers) and this one, measured in alternation.

The model, the batch and the way data is drawn are the same for all.

    python benchmarks/peers/peers.py --harness DIR [--python torchrec=PATH ...] \\
        --out benchmarks/peers/results/peers.json
    python benchmarks/peers/peers.py --table benchmarks/peers/results/peers.json  # the tables of the record

DIR has one script per peer (see `peer_list.py`). A peer is left out unless its Python is named, by `--python`
or a variable such as PY_TORCHREC. Peers take their data from memory, warm up, and are measured over a window.
A run of ours (`shadowsync`: float32; `shadowsync_prepared`: the same on input of `shadowsync prepare`;
`shadowsync_shipped`: `--shipped-precision`) is a whole job: 2 trainers of one worker each, reader, embedding
node, sync node and coordinator. Its `examples_per_second` are from the first to the last trained batch,
warm-up and end included, so the job is long. `steady` leaves out the first `--warm` seconds and the last half
second, as for peers. CPU seconds are of all processes: for peers over their window, for ours from the first
batches in the ledger to the last.

Started again with the same --out, the script continues where it stopped, and repeats what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from shadowsync.benchmarks.pairs import Figures, save
from shadowsync.benchmarks.peers.own_runs import JobFailed, prepare, run_own
from shadowsync.benchmarks.peers.peer_list import PEERS, PeerFailed, pythons, run_peer
from shadowsync.benchmarks.peers.peer_log import write_peer_log
from shadowsync.benchmarks.peers.peer_table import tables

Row = dict[str, Any]
Runs = dict[str, Callable[[int], Figures]]
# What must be the same for all runs of a file.
SETTINGS = ("warm", "window", "examples", "shipped_examples", "shipped_precision")


def all_runs(given: argparse.Namespace) -> Runs:
    """Every run by its name: a function from a batch size to figures."""
    found: Runs = {}
    available = pythons(given.python, os.environ) if given.harness is not None else {}
    for name, peer in PEERS.items():
        if peer.python in available:
            how = (peer, given.harness, available[peer.python])
            found[name] = partial(run_peer, *how, given.warm, given.window)
    for name, precision, examples in (
        ("shadowsync", "float32", given.examples),
        ("shadowsync_shipped", given.shipped_precision, given.shipped_examples),
    ):
        log = given.data / f"peer-{examples}.parquet"
        found[name] = partial(own, log, examples, precision, given.warm)
    log = given.data / f"peer-{given.examples}.parquet"
    found["shadowsync_prepared"] = partial(own_prepared, log, given.examples, given.warm)
    return found


def own(log: Path, examples: int, precision: str, warm_seconds: float, batch: int) -> Figures:
    """A run of ours on a log, which is written if it is missing."""
    return run_own(write_peer_log(log, examples), batch, precision, warm_seconds)


def own_prepared(log: Path, examples: int, warm_seconds: float, batch: int) -> Figures:
    """A float32 run of ours on the log, prepared into a folder beside it."""
    folder = prepare(write_peer_log(log, examples), log.with_suffix(".prepared"))
    return run_own(folder, batch, "float32", warm_seconds)


def chosen(runs: Runs, only: str) -> Runs:
    """The runs that `only` names, with commas between; all runs if it is empty.

    `name*` names all runs that begin with `name`. Raises SystemExit for an unknown name.
    """
    picked: Runs = {}
    for text in filter(None, only.split(",")):
        names = [name for name in runs if name == text or (text[-1] == "*" and name.startswith(text[:-1]))]
        if not names:
            raise SystemExit(f"--only {text}: there are {', '.join(runs)}")
        picked |= {name: runs[name] for name in names}
    return picked or runs


def one_run(run: Callable[[int], Figures], name: str, batch: int, number: int) -> Row:
    """The row of one run.

    `others_cores` is how many cores were busy with other work before the run.
    """
    busy = psutil.cpu_percent(interval=0.5) / 100 * (psutil.cpu_count() or 1)
    row: Row = {"name": name, "batch": batch, "round": number, "others_cores": round(busy, 2)}
    try:
        return row | run(batch)
    except (PeerFailed, JobFailed) as error:
        return row | {"failed": str(error)}


def measure(given: argparse.Namespace) -> list[Row]:
    """Measure every run that the file does not have yet.

    Every other round is in reverse order. Results are saved after each run.
    """
    runs = chosen(all_runs(given), given.only)
    settings = {key: getattr(given, key) for key in SETTINGS}
    rows = [row for row in read_rows(given.out, settings) if "failed" not in row]
    done = {(row["name"], row["batch"], row["round"]) for row in rows}
    for number in range(given.rounds):
        turn = [(name, batch) for batch in given.batches for name in runs]
        for name, batch in turn if number % 2 == 0 else reversed(turn):
            if (name, batch, number) in done:
                continue
            row = one_run(runs[name], name, batch, number)
            rows.append(row)
            print(f"round {number + 1}/{given.rounds}  {batch:5}  {name:32} {shown(row)}", flush=True)
            save(given.out, "peers and this, in alternation", {"settings": settings, "rows": rows})
    return rows


def shown(row: Row) -> str:
    """A row's figures in one line, or why it has none."""
    if "failed" in row:
        return f"failed: {' '.join(row['failed'].split())[-200:]}"
    keys = ("examples_per_second", "cpu_seconds_per_million")
    words = [f"{row['examples_per_second']:9,.0f} examples/s", f"{row[keys[1]]:6.1f} CPU s per million"]
    return "  ".join([*words, f"{row['others_cores']:.1f} cores busy before"])


def read_rows(path: Path, settings: Row | None = None) -> list[Row]:
    """The rows of a file; none if there is no file.

    Raises SystemExit if it was measured with other settings.
    """
    if not path.exists():
        return []
    results = json.loads(path.read_text("utf-8"))["results"]
    if settings is not None and results["settings"] != settings:
        raise SystemExit(
            f"{path} was measured with {results['settings']}, not {settings}: take another --out"
        )
    return list(results["rows"])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--harness", type=Path, help="the folder of the peers' scripts; without it only ours run"
    )
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--only", default="", help="names by commas; name* takes all that begin so")
    parser.add_argument("--warm", type=float, default=1.5, help="seconds before a window")
    parser.add_argument("--window", type=float, default=5.0, help="seconds of a peer's window")
    parser.add_argument("--examples", type=int, default=600_000, help="of our job in float32")
    parser.add_argument("--shipped-examples", type=int, default=1_500_000, help="of our job as shipped")
    parser.add_argument("--shipped-precision", default="auto")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    parser.add_argument(
        "--table", type=Path, metavar="FILE.json", help="print the tables of this file, no runs"
    )
    return parser.parse_args()


def main() -> None:
    """Measure and print, or only print."""
    given = parse()
    rows = read_rows(given.table) if given.table is not None else measure(given)
    print(tables(rows))


if __name__ == "__main__":
    main()
