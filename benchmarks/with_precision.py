"""A training script of others, run with bfloat16 products.

It is not edited; the precision is set by PyTorch's two public ways.

    python benchmarks/with_precision.py medium SCRIPT [ARGUMENTS]     # with the Python that runs this

`medium` is `torch.set_float32_matmul_precision("medium")`; `autocast` enters `torch.autocast("cpu",
torch.bfloat16)` once, without its cache, since a cast weight must not outlive the step that changes it.
Either is done when Python starts, by a `sitecustomize` in a folder in front of PYTHONPATH, and so in the
processes too that the script starts. Python goes on when a `sitecustomize` fails; so each process leaves a
mark, and a script that leaves fewer than two (its own and a worker's) is an error, not a measurement in
float32.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

WAYS = {
    "medium": 'torch.set_float32_matmul_precision("medium")',
    "autocast": 'torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False).__enter__()',
}


class NotSet(RuntimeError):
    """The script's processes did not take the precision."""


@contextlib.contextmanager
def environment(way: str, given: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment `given` with the precision `way`, for the block.

    "float32" leaves it as it is.

    Raises NotSet at its end where fewer than two processes took it, ValueError for an unknown way.
    """
    if way == "float32":
        yield dict(given)
        return
    if way not in WAYS:
        raise ValueError(f"precision {way!r}: float32, {' or '.join(WAYS)}")
    with tempfile.TemporaryDirectory(prefix="precision-") as name:
        folder, marks = Path(name), Path(name) / "marks"
        marks.mkdir()
        lines = [
            "import os, pathlib, torch",
            WAYS[way],
            f"pathlib.Path({str(marks)!r}, str(os.getpid())).touch()",
        ]
        (folder / "sitecustomize.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
        path = os.pathsep.join(filter(None, [name, given.get("PYTHONPATH")]))
        yield {**given, "PYTHONPATH": path}
        if (took := len(list(marks.iterdir()))) < 2:
            raise NotSet(f"precision {way}: {took} processes took it, of the script and its workers")


def main() -> int:
    """Run the script of the command line; return its exit status."""
    if len(sys.argv) < 3 or sys.argv[1] not in WAYS:
        print((__doc__ or "").partition("\n\n`")[0], file=sys.stderr)
        return 2
    with environment(sys.argv[1], os.environ) as variables:
        return subprocess.run([sys.executable, *sys.argv[2:]], env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
