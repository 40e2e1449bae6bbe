"""A small character language model in DiLoCo's setting.

    torchrun --standalone --nproc-per-node 2 examples/other_areas/character_model.py

The text is the language reference that ships with Python (`pydoc_data.topics`); each loop has its own part.
Source of the setting: Douillard et al., arXiv 2311.08105.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import shadowsync
import torch
import torch.distributed as dist
from torch import nn

CONTEXT = 64
WIDTH = 64
HELD_OUT = 0.1
DILOCO = f"{Path(__file__).resolve().parents[1] / 'algorithms' / 'diloco.py'}:DiLoCo"


def text() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the text to train on, and held out, and how many characters.

    The texts are numbers of characters, int64 [N].
    """
    whole = "".join(topics[name] for name in sorted(topics))
    numbers = {character: at for at, character in enumerate(sorted(set(whole)))}
    coded = torch.tensor([numbers[character] for character in whole])
    cut = int(len(coded) * (1 - HELD_OUT))
    return coded[:cut], coded[cut:], len(numbers)


class CharacterModel(nn.Module):
    """A transformer of two layers that predicts the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits [B, CONTEXT, characters] from int64 [B, CONTEXT]."""
        inner = self.layers(self.tokens(characters) + self.positions, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(inner)
        return logits


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Return the mean loss, nats a character, of int64 [B, CONTEXT + 1]."""
    logits = model(windows[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, part: torch.Tensor, steps: int, batch: int
) -> None:
    """Train on windows at random places; the loop as it was."""
    windows = part.unfold(0, CONTEXT + 1, 1)
    for _ in range(steps):
        chosen = windows[torch.randint(len(windows), (batch,))]
        optimizer.zero_grad()
        loss_of(model, chosen).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def made(seed: int, characters: int, learning_rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model, the same for the same seed, and its optimizer."""
    torch.manual_seed(seed)
    model = CharacterModel(characters)
    return model, torch.optim.AdamW(model.parameters(), lr=learning_rate)


def one_process(coded: torch.Tensor, characters: int, seed: int, steps: int, batch: int) -> nn.Module:
    """Train on the whole text without others."""
    model, optimizer = made(seed, characters, 3e-3)
    train(model, optimizer, coded, steps, batch)
    return model


def attached(
    coded: torch.Tensor, characters: int, seed: int, steps: int, batch: int, **sync: Any
) -> nn.Module:
    """Train on this process's part of the text; return the model of all."""
    rank, loops = dist.get_rank(), dist.get_world_size()
    model, optimizer = made(seed, characters, 3e-3)
    torch.manual_seed(1000 * seed + rank)
    with shadowsync.attach(model, optimizer, wait_for=loops, **sync) as other_loops:
        # A loop that began before the others would count other rounds.
        dist.barrier()
        train(model, optimizer, coded.chunk(loops)[rank], steps, batch)
        # Who is ready first stays, so that nobody trains its last steps alone.
        dist.barrier()
    return other_loops.model()


def figures(steps: int, batch: int, every: int, seeds: int) -> Iterator[tuple[str, list[float]]]:
    """Yield each row's name with its losses by seed, means over processes."""
    trained, held_out, characters = text()
    tested = held_out.unfold(0, CONTEXT + 1, CONTEXT)
    loops = dist.get_world_size()
    fixed: dict[str, Any] = {"mode": "fixed", "every": every}
    shadow: dict[str, Any] = {"mode": "shadow", "gap": every, "duty": 1.0}
    rows: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
        ("one process, all examples", loops * steps, batch, {}),
        ("one process, its share of the examples", steps, batch, {}),
        (f"diloco, every {every} steps", steps, batch, {"algorithm": DILOCO, **fixed}),
        ("diloco in the background", steps, batch, {"algorithm": DILOCO, **shadow}),
        (
            f"ma, every {every} steps",
            steps,
            batch,
            {"algorithm": "ma", "options": {"elastic_rate": 1.0}, **fixed},
        ),
        ("ma in the background", steps, batch, {"algorithm": "ma", **shadow}),
        ("none", steps, batch, {"algorithm": "none"}),
    )
    for name, row_steps, row_batch, sync in rows:
        found = []
        for seed in range(seeds):
            train_one = attached if sync else one_process
            model = train_one(trained, characters, seed, row_steps, row_batch, **sync)
            with torch.no_grad():
                measured = loss_of(model, tested)
            dist.all_reduce(measured)
            found.append(float(measured) / loops)
        yield name, found


def main() -> None:
    """Print the table; rank 0 does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="steps of each loop")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--every", type=int, default=20, help="steps between outer steps")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, found in figures(given.steps, given.batch, given.every, given.seeds):
        if dist.get_rank() == 0:
            print(f"{name:<40}  " + " ".join(f"{value:.4f}" for value in found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
