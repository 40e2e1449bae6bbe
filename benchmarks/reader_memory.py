"""Peak memory of a reader node on a large file, and how fast it delivers.

    python benchmarks/reader_memory.py --gigabytes 2 --out docs/results/reader_memory.json

Runs a whole job whose model is tiny, so that the reader is not held up for long, on a Criteo TSV file of
the given size, and takes the reader's peak from the report.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from shadowsync.benchmarks.job_runs import run_job
from shadowsync.benchmarks.pairs import save
from shadowsync.pipeline.data.generator.generator import generate_log


def large_file(folder: Path, size_bytes: int) -> Path:
    """A TSV file of at least `size_bytes`: a generated log of 200,000 examples, over and over."""
    path = folder / f"large-{size_bytes}.tsv"
    if path.exists() and path.stat().st_size >= size_bytes:
        return path
    log = folder / "large-part"
    generate_log(log, examples=200_000, eval_examples=0, seed=1, data_format="criteo_tsv", reuse=True)
    part = (log / "train-000.tsv").read_bytes()
    with path.open("wb") as file:
        while file.tell() < size_bytes:
            file.write(part)
    return path


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, default=Path("reader_memory.json"))
    given = parser.parse_args()
    given.data.mkdir(parents=True, exist_ok=True)
    path = large_file(given.data, int(given.gigabytes * 1e9))
    report = run_job(
        {
            "data": {"format": "criteo_tsv", "path": str(path)},
            "model": {"table_rows": 1000, "embedding_dim": 2, "bottom": [4], "top": [4]},
            "trainer": {"count": 1, "batch": 8192, "credit": 4},
            "sync": {"algorithm": "none"},
        }
    )
    reader = next(node for node in report.nodes if node.role == "reader")
    result = {
        "file_bytes": path.stat().st_size,
        "reader_peak_memory_bytes": reader.peak_memory_bytes,
        "reader_cpu_seconds": reader.cpu_seconds,
        "examples": report.examples.read,
        "examples_per_second": report.throughput.examples_per_second,
    }
    print(result)
    save(given.out, "reader memory", result)


if __name__ == "__main__":
    main()
