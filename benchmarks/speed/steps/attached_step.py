"""What attaching costs a step.

Two equal loops in one process, one plain and one attached, take turns.

    python benchmarks/speed/steps/attached_step.py --out benchmarks/speed/results/attached_step.json
    python benchmarks/speed/steps/attached_step.py --table benchmarks/speed/results/attached_step.json

A pair is a block of up to 20 steps of each, in random order; each gives CPU seconds of the loop's thread, by
the kernel's clock. Then the attached loop trains alone for some seconds: `beside` is the CPU of all other
threads per second of the clock. On a machine that others use, a step lasts longer by the clock, and has more
of it; so `cost` is what a loop with a core for itself pays: `own` - 1 + `beside`. `hook` is what attach does
in each step, called alone. Two equal loops differ by a percent or two, by where their memory lies.

Rows: `plain` beside plain must cost nothing; `attached` has a gap that is never reached, `rounds` the default
duty cycle; `waiting` is `attached` with some 2% of a step in each step, which must be seen. Each row is of
several processes, whose memory lies differently. The hub is another process. Leaving the block, with its
closing round, is not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import shadowsync
import torch
from shadowsync.benchmarks.pairs import save
from shadowsync.nodes.runtime.process import CLI, python
from shadowsync.pipeline.text.markdown import markdown_table
from torch import nn

VARIANTS: Final = ("plain", "attached", "waiting", "rounds")
NEVER: Final = ("--set", "sync.gap=1000000000")
KNOWN_COST: Final = 0.02
START_SECONDS: Final = 60.0
WARM_STEPS: Final = 50
BLOCK_SECONDS: Final = 0.03
MOST_STEPS: Final = 20
EMPTY_ROUNDS: Final = 10_000
DRAWS: Final = 2_000
HOOK_TRIES, HOOK_CALLS = 20, 200
CHARACTERS: Final = 100
CONTEXT: Final = 64
WIDTH: Final = 64
Made = tuple[nn.Module, Callable[[], torch.Tensor]]


def _classifier(model: nn.Module, inputs: torch.Tensor) -> Made:
    labels = torch.randint(10, (len(inputs),))
    return model, lambda: nn.functional.cross_entropy(model(inputs), labels)


def mlp() -> Made:
    """Return the model of the comparison with peers: 85 thousand parameters in 6 tensors."""
    layers = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return _classifier(nn.Sequential(*layers), torch.randn(64, 64))


def deep() -> Made:
    """Return ten small layers: little to compute, 22 tensors."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return _classifier(nn.Sequential(*layers, nn.Linear(64, 10)), torch.randn(64, 64))


def wide() -> Made:
    """Return 5 million parameters, a small batch: the step is bound by memory."""
    layers = (nn.Linear(512, 1600), nn.ReLU(), nn.Linear(1600, 1600), nn.ReLU(), nn.Linear(1600, 1000))
    return _classifier(nn.Sequential(*layers), torch.randn(16, 512))


def convolution() -> Made:
    """Return a small vision model: 6,090 parameters."""
    layers = (
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4, 10)),
    )
    return _classifier(nn.Sequential(*layers), torch.randn(16, 1, 8, 8))


class CharacterModel(nn.Module):
    """A transformer of two layers that predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits [B, CONTEXT, CHARACTERS] from int64 [B, CONTEXT]."""
        inner = self.layers(self.tokens(characters) + self.positions, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(inner)
        return logits


def characters() -> Made:
    """Return a small language model: 80 thousand parameters in 30 tensors."""
    model = CharacterModel()
    windows = torch.randint(CHARACTERS, (8, CONTEXT + 1))
    return model, lambda: nn.functional.cross_entropy(
        model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
    )


MODELS: Final[Mapping[str, Callable[[], Made]]] = {
    "mlp": mlp,
    "deep": deep,
    "wide": wide,
    "convolution": convolution,
    "characters": characters,
}


@contextlib.contextmanager
def hub(folder: Path, *options: str) -> Iterator[str]:
    """Run a hub; yields its address."""
    announce = folder / "announced.txt"
    command = python(CLI, "hub", "--dir", str(folder / "hub"), "--announce", str(announce), *options)
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


class Loop:
    """A loop over one batch, with a model and an optimizer.

    Attributes:
        rounds: of an empty loop, in each step besides.
    """

    def __init__(self, name: str) -> None:
        torch.manual_seed(1)
        self.model, self._loss = MODELS[name]()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.rounds = 0

    def train(self, steps: int) -> None:
        """Train."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self._loss().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            for _ in range(self.rounds):
                pass


def block(loop: Loop, steps: int) -> float:
    """Train a block; return the thread's seconds."""
    before = time.thread_time()
    loop.train(steps)
    return time.thread_time() - before


def beside(loop: Loop, seconds: float) -> tuple[float, float]:
    """Train; return the CPU seconds of all other threads, and seconds of the clock."""
    process, own, began = time.process_time(), time.thread_time(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        loop.train(1)
    others = time.process_time() - process - (time.thread_time() - own)
    return others, time.perf_counter() - began


def round_seconds() -> float:
    """Return the CPU seconds of a round of an empty loop."""
    began = time.thread_time()
    for _ in range(EMPTY_ROUNDS):
        pass
    return (time.thread_time() - began) / EMPTY_ROUNDS


def hook_seconds(attached: Any, optimizer: torch.optim.Optimizer) -> float:
    """Return the least CPU seconds of what attach does in a step."""
    tries = []
    for _ in range(HOOK_TRIES):
        began = time.thread_time()
        for _ in range(HOOK_CALLS):
            attached._hooks.before(optimizer)
            attached._hooks.after(optimizer)
        tries.append((time.thread_time() - began) / HOOK_CALLS)
    return min(tries)


def measure(name: str, variant: str, pairs: int, seconds: float, seed: int) -> dict[str, Any]:
    """Return the CPU seconds of a process's blocks, and of its other threads."""
    torch.set_num_threads(1)
    options = () if variant == "rounds" else NEVER
    with contextlib.ExitStack() as stack:
        both = [Loop(name), Loop(name)]
        # Which lies first in memory matters by some percent.
        plain, other = both if seed % 2 == 0 else reversed(both)
        attached: Any = None
        if variant != "plain":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            join = stack.enter_context(hub(Path(folder), *options))
            attached = stack.enter_context(shadowsync.attach(other.model, other.optimizer, join=join))
        for loop in (plain, other):
            loop.train(WARM_STEPS)
        step = min(block(plain, 1) for _ in range(WARM_STEPS))
        steps = max(1, min(MOST_STEPS, round(BLOCK_SECONDS / step)))
        each = min(round_seconds() for _ in range(HOOK_TRIES))
        if variant == "waiting":
            other.rounds = round(KNOWN_COST * step / each)
        order = random.Random(seed)
        rows = []
        for _ in range(pairs):
            first = block(other, steps) if order.random() < 0.5 else None
            under = block(plain, steps)
            rows.append([under, first if first is not None else block(other, steps)])
        put_in = other.rounds * each * steps * pairs / sum(under for under, _ in rows)
        others, clock = beside(other, seconds)
        rounds = attached.metrics()["rounds"] if attached else 0
        hook = hook_seconds(attached, other.optimizer) if attached else 0.0
    figures = {"steps": steps, "rounds": rounds, "hook": hook, "put_in": put_in}
    return {**figures, "beside": [others, clock], "pairs": rows}


def summary(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians, and 95% intervals by drawing among the pairs of all processes."""
    pairs = np.concatenate([np.array(one["pairs"]) for one in processes])
    ratios = pairs[:, 1] / pairs[:, 0]
    drawn = np.median(np.random.default_rng(0).choice(ratios, (DRAWS, len(ratios))), axis=1)
    own = [float(np.median(ratios)), *(float(one) for one in np.quantile(drawn, [0.025, 0.975]))]
    shares = [one["beside"][0] / one["beside"][1] for one in processes]
    besides = statistics.median(shares)
    return {
        "step_ms": float(np.median(pairs[:, 0])) / processes[0]["steps"] * 1e3,
        "own": own,
        "own_of_processes": [statistics.median(b / a for a, b in one["pairs"]) for one in processes],
        "beside": shares,
        "cost": [one - 1 + besides for one in own],
        "put_in": statistics.median(one["put_in"] for one in processes),
        "hook_us": statistics.median(one["hook"] for one in processes) * 1e6,
        "rounds": [one["rounds"] for one in processes],
        "pairs": len(pairs),
    }


def show(results: dict[str, Any]) -> str:
    """Return the table of the summaries."""
    rows = []
    for name, variants in results.items():
        for variant, one in variants.items():
            put_in = f", {one['put_in']:.1%} put in" if one["put_in"] else ""
            own, cost = ([f"{value:{form}}" for value in one[key]] for key, form in _FORMS)
            shares = f"{min(one['beside']):.2%} to {max(one['beside']):.2%}"
            of_step = (f"{one['step_ms']:.2f}", f"{one['hook_us']:.1f}")
            cells = (*of_step, f"{own[0]} ({own[1]} to {own[2]})", shares)
            rows.append((name, variant + put_in, *cells, f"{cost[0]} ({cost[1]} to {cost[2]})", one["pairs"]))
    head = ("model", "row", "step, ms", "hook, us", "own thread", "beside, of a core", "cost", "pairs")
    return "\n".join(markdown_table(head, [tuple(map(str, row)) for row in rows]))


_FORMS: Final = (("own", ".4f"), ("cost", ".2%"))


def main() -> None:
    """Measure in processes of their own, in turn; print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="of a process")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the attached loop alone")
    parser.add_argument("--processes", type=int, default=3, help="of each row")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "VARIANT", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.one:
        name, variant, seed = given.one
        print(json.dumps(measure(name, variant, given.pairs, given.seconds, int(seed))))
    elif given.table:
        print(show(json.loads(given.table.read_text("utf-8"))["results"]))
    elif given.out is None:
        parser.error("give --out or --table")
    else:
        run_all(given)


def run_all(given: argparse.Namespace) -> None:
    """Run the processes of all models and rows in turn; save after each turn."""
    found: dict[str, dict[str, list[Any]]] = {}
    for number in range(given.processes):
        for name in given.models:
            for variant in given.variants:
                command = [sys.executable, __file__, "--one", name, variant, str(number)]
                command += ["--pairs", str(given.pairs), "--seconds", str(given.seconds)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                row = found.setdefault(name, {}).setdefault(variant, [])
                row.append(json.loads(done.stdout.splitlines()[-1]))
        results = {name: {one: summary(rows) for one, rows in of.items()} for name, of in found.items()}
        save(given.out, "A step of a loop, plain and attached, in blocks of one process", results)
    print(show(results))


if __name__ == "__main__":
    main()
