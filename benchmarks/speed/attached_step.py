"""What attaching costs a step: the same loop plain and attached, in alternation.

    python benchmarks/speed/attached_step.py --out docs/results/attached_step.json

`attached` has no round under way (a gap that is never reached), `rounds` the default duty cycle. CPU
seconds are of the whole process, so with the threads that attach has started; the hub is another process.
These threads look at clocks: if others take the machine, a step lasts longer and has more of them. So
`beside` is what they take of a core per second of the clock, in percent; `own_ms` is the loop's thread alone.
Leaving the block, with its closing round, is not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import shadowsync
import torch
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.nodes.runtime.process import CLI, python
from torch import nn

NEVER: Final = ("--set", "sync.gap=1000000000")
START_SECONDS: Final = 60.0
WARM_STEPS: Final = 20


def mlp() -> nn.Module:
    """Ten small layers: little to compute, 20 parameters."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(64, 1))


def wide() -> nn.Module:
    """The dense part of a recommendation model, 0.9 million parameters."""
    return nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, 1),
    )  # fmt: skip


def transformer() -> nn.Module:
    """Four layers of a transformer, 50 parameters, 0.8 million elements."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(128, 1))


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]]] = {
    "mlp": (mlp, (64, 64), 2_000),
    "wide": (wide, (256, 256), 400),
    "transformer": (transformer, (8, 32, 128), 150),
}


@contextlib.contextmanager
def hub(folder: Path, name: str, *options: str) -> Iterator[str]:
    """Run a hub; yields its address."""
    announce = folder / f"{name}.txt"
    command = python(CLI, "hub", "--dir", str(folder / name), "--announce", str(announce), *options)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (announce.exists() and announce.read_text("ascii")):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the hub did not start")
                time.sleep(0.05)
            yield announce.read_text("ascii")
        finally:
            process.terminate()


def train(name: str, steps: int, join: str | None) -> Figures:
    """Train a new model; return milliseconds of a step, CPU and clock."""
    make, shape, _ = MODELS[name]
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(shape), torch.randn(*shape[:-1], 1)
    attached: Any = shadowsync.attach(model, optimizer, join=join) if join else contextlib.nullcontext()

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    with attached as sync:
        for _ in range(WARM_STEPS):
            step()
        cpu, own, clock = time.process_time(), time.thread_time(), time.perf_counter()
        for _ in range(steps):
            step()
        cpu, own = time.process_time() - cpu, time.thread_time() - own
        clock = time.perf_counter() - clock
        figures = {"cpu_ms": cpu / steps * 1e3, "own_ms": own / steps * 1e3, "ms": clock / steps * 1e3}
        figures["beside"] = (cpu - own) / clock * 100
        return figures | ({"rounds": sync.metrics()["rounds"]} if join else {})


def main() -> None:
    """Measure every model, and print and save ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in given.models:
        # A hub has one model.
        with (
            tempfile.TemporaryDirectory() as scratch,
            hub(Path(scratch), "never", *NEVER) as never,
            hub(Path(scratch), "usual") as usual,
        ):
            steps = MODELS[name][2]
            runs: dict[str, Callable[[], Figures]] = {
                "plain": lambda name=name, steps=steps: train(name, steps, None),  # type: ignore[misc]
                "attached": lambda name=name, steps=steps: train(name, steps, never),  # type: ignore[misc]
                "rounds": lambda name=name, steps=steps: train(name, steps, usual),  # type: ignore[misc]
            }
            results = alternate(runs, given.pairs)
            print(table(results))
            ratios = {}
            for label in ("attached", "rounds"):
                for key in ("cpu_ms", "own_ms", "ms"):
                    over, under = ([row[key] for row in results[which]] for which in (label, "plain"))
                    ratios[f"{label}, {key}"] = ratio(over, under)
                    print(show_ratio(f"{name}: {label} over plain, {key}", ratios[f"{label}, {key}"]))
            found[name] = {"runs": results, "ratios": ratios}
    save(given.out, "A step of a loop, plain and attached", found)


if __name__ == "__main__":
    main()
