"""The memory that attaching takes, with a model of 100 MB.

    python benchmarks/speed/attached_memory.py --out benchmarks/speed/results/attached_memory.json

Two loops, each a process, with SGD without momentum, so that a loop has its parameters and their gradients.
Figures are of the first one, in units of the parameters' bytes beyond what it had before attach: resident
memory after attaching, the highest while attaching, the highest during rounds (by the kernel's mark, which is
set back before each phase), and after the block; and the bytes of all tensors that Python knows. The hub is
another process. Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import shadowsync
import torch
from shadowsync.benchmarks.pairs import save
from shadowsync.benchmarks.speed.attached_step import hub
from shadowsync.pipeline.text.markdown import markdown_table
from torch import nn

WIDTH, LAYERS, BATCH = 2_500, 4, 4
HUBS: Final[dict[str, tuple[str, ...]]] = {
    "a gap that is never reached": ("--set", "sync.gap=1000000000"),
    "easgd": ("--set", "sync.duty=0.5"),
    "ma": ("--algo", "ma", "--set", "sync.duty=0.5"),
    'ma, form "keep"': ("--algo", "ma", "--set", "sync.duty=0.5", "--set", 'sync.options.form="keep"'),
}
WARM_STEPS: Final = 3


def resident(key: str = "VmRSS") -> int:
    """Return resident bytes of this process; VmHWM is the highest since `forget`."""
    text = Path("/proc/self/status").read_text("ascii")
    return int(next(line for line in text.splitlines() if line.startswith(key)).split()[1]) * 1024


def forget() -> None:
    """Set the kernel's highest mark back."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def tensor_bytes() -> int:
    """Return the bytes of all tensors' memory that Python knows, each once."""
    gc.collect()
    # Not isinstance, which asks modules of torch that warn.
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    found += [one.grad for one in found if one.is_leaf and one.grad is not None]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found}.values())


def measure(join: str, seconds: float) -> dict[str, Any]:
    """Train, attach and train; return bytes by phase."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, WIDTH)

    def train(for_seconds: float = 0.0) -> None:
        began, steps = time.monotonic(), 0
        while steps < WARM_STEPS or time.monotonic() - began < for_seconds:
            optimizer.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1

    train()
    unit = sum(one.nbytes for one in model.parameters())
    before, tensors = resident(), tensor_bytes()
    forget()
    sync = shadowsync.attach(model, optimizer, join=join, wait_for=2)
    attaching = resident("VmHWM") - before
    forget()
    train(seconds)
    figures = {
        "tensors": tensor_bytes() - tensors,
        "highest while attaching": attaching,
        "resident": resident() - before,
        "highest in rounds": resident("VmHWM") - before,
    }
    rounds = sync.metrics()["rounds"]
    sync.finish()
    del sync
    gc.collect()
    figures["after the block"] = resident() - before
    return {name: round(count / unit, 2) for name, count in figures.items()} | {"rounds": rounds}


def main() -> None:
    """Measure under each hub, and print and save a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of training, attached")
    parser.add_argument("--join", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.join:
        print(json.dumps(measure(given.join, given.seconds)))
        return
    if given.out is None:
        parser.error("give --out")
    results = {}
    for name, options in HUBS.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            join = stack.enter_context(hub(Path(folder), *options))
            command = [sys.executable, __file__, "--join", join, "--seconds", str(given.seconds)]
            other = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            other.wait()
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, results[name], flush=True)
    save(given.out, "The memory of an attached loop, in units of its parameters", results)
    keys = list(next(iter(results.values())))
    rows = [[name, *map(str, of.values())] for name, of in results.items()]
    print("\n".join(markdown_table(["", *keys], rows)))


if __name__ == "__main__":
    main()
