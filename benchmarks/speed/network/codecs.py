"""CPU time of each codec, in microseconds per MB of float32 values.

    python benchmarks/speed/network/codecs.py --out benchmarks/speed/results/codecs.json

One thread, chunks of a megabyte, as links send them; the least of many, since other work only adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from shadowsync.benchmarks.pairs import save
from shadowsync.pipeline.codecs.formats import CODECS, CodecOptions, make_codec

CHUNK_BYTES = 1_000_000
FRACTIONS = (0.05, 0.01)


def least_seconds(work: Callable[[], object], times: int) -> float:
    """Return the least CPU seconds of so many."""
    found = []
    for _ in range(times):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found)


def measured(name: str, options: CodecOptions, times: int) -> dict[str, float]:
    """Return the figures of a codec."""
    values = np.random.default_rng(1).normal(size=CHUNK_BYTES // 4).astype(np.float32)
    codec = make_codec(name, options)
    payload = codec.encode(values)
    return {
        "encode_us_per_mb": 1e6 * least_seconds(lambda: codec.encode(values), times),
        "decode_us_per_mb": 1e6 * least_seconds(lambda: codec.decode(payload, len(values)), times),
        "times_fewer_bytes": values.nbytes / payload.nbytes,
    }


def main() -> None:
    """Measure all codecs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = {name: measured(name, CodecOptions(), given.times) for name in CODECS if name != "topk"}
    for fraction in FRACTIONS:
        found[f"topk {fraction:.0%}"] = measured("topk", CodecOptions(topk_fraction=fraction), given.times)
    print("| codec | encode, µs per MB | decode | fewer bytes |\n|---|---|---|---|")
    for name, own in found.items():
        print(f"| {name} | {own['encode_us_per_mb']:.0f} | {own['decode_us_per_mb']:.0f} ", end="")
        print(f"| {own['times_fewer_bytes']:.1f} |")
    save(given.out, "CPU time of codecs", found)


if __name__ == "__main__":
    main()
