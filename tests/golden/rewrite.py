"""Rewrites the golden trajectories. On purpose only: after a change of an algorithm that is meant.

    .venv/bin/python -m shadowsync.tests.golden.rewrite --write

Without --write it says which files would change, and changes none.
"""

from __future__ import annotations

import argparse
import json

from shadowsync.tests.golden.trajectories import CLASSES, MODES, file_of, trajectories


def main() -> None:
    """Compares, and with --write writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    for name in sorted(CLASSES):
        for mode in MODES:
            file = file_of(name, mode)
            text = json.dumps(trajectories(name, mode), indent=1) + "\n"
            if file.exists() and file.read_text(encoding="utf-8") == text:
                continue
            print(("writes " if write else "would write ") + file.name)
            if write:
                file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
