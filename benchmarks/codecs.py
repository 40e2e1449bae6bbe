"""What each codec costs and saves on one thread.

    python benchmarks/codecs.py [--chunk-bytes 1048576] [--repeats 50] [--out FILE.json]

Figures are the bytes of a chunk, and the MB/s of float32 encoded and decoded.

A chunk of normally distributed values; the median over the repeats of CPU seconds, which other load on the
machine disturbs least. "with feedback" is what a link does to send: the difference from a reference, its
encoding, its decoding, and the new reference; two chunks take turns. "error" is the root mean square of what
one encoding loses, over that of the values.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from shadowsync.benchmarks.pairs import Figures, save, table
from shadowsync.pipeline.codecs.feedback import Reference
from shadowsync.pipeline.codecs.formats import CODECS, make_codec


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median over the repeats, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return statistics.median(times[1:])


def figures(name: str, elements: int, repeats: int) -> Figures:
    """All figures of one codec."""
    draw = np.random.default_rng(1)
    values, other = (draw.standard_normal(elements, dtype=np.float32) for _ in range(2))
    codec = make_codec(name)
    payload = codec.encode(values)
    lost = values - codec.decode(payload, elements)
    reference = Reference(codec, elements)
    reference.begin()
    reference.encode(0, other)
    reference.complete(1)
    number = iter(range(2, 1 << 30))

    def send() -> None:
        turn = next(number)
        reference.begin()
        reference.encode(0, values if turn % 2 else other)
        reference.complete(turn)

    def rate(work: Callable[[], object]) -> float:
        return values.nbytes / max(cpu_seconds(work, repeats), 1e-9) / 1e6

    return {
        "bytes": payload.nbytes,
        "times fewer": values.nbytes / payload.nbytes,
        "encode MB/s": rate(lambda: codec.encode(values)),
        "decode MB/s": rate(lambda: codec.decode(payload, elements)),
        "with feedback MB/s": rate(send),
        "error": float(np.sqrt(np.mean(lost**2) / np.mean(values**2))),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunk-bytes", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {name: [figures(name, options.chunk_bytes // 4, options.repeats)] for name in CODECS}
    print(table(results))
    if options.out is not None:
        settings = {"chunk_bytes": options.chunk_bytes, "repeats": options.repeats}
        save(options.out, (__doc__ or "").splitlines()[0], {"codecs": results, "settings": settings})


if __name__ == "__main__":
    main()
