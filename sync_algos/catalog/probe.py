"""A process that reports an algorithm's needs.

The process serves nodes that never import torch. `python -m shadowsync.sync_algos.catalog.probe NAME` prints
one JSON object: {"needs_center": ...} or {"error": ...}.
"""

from __future__ import annotations

import json
import sys

from .registry import AlgorithmError, find_algorithm


def probe(name: str) -> dict[str, bool | str]:
    """Return an algorithm's needs, or why it cannot be used."""
    try:
        return {"needs_center": find_algorithm(name).needs_center}
    except AlgorithmError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    # The last line is ours; an algorithm's module may print while it is imported.
    print("\n" + json.dumps(probe(sys.argv[1])), flush=True)
