"""A vision model on scikit-learn's digits: two attached loops beside one.

    torchrun --standalone --nproc-per-node 2 examples/other_areas/digits.py

The loops share the training images by `sync.sampler`, or each has a half of them, or those of its own digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import shadowsync
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

BATCH = 16
EVERY = 5
TESTED = 500
CLASSES = 10


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return images and labels: to train on, and held out.

    Images are float32 [N, 1, 8, 8] in [0, 1], labels int64 [N].
    """
    found = load_digits()
    images = torch.from_numpy(found.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(found.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out, trained = order[:TESTED], order[TESTED:]
    return TensorDataset(images[trained], labels[trained]), TensorDataset(images[held_out], labels[held_out])


def small_network() -> nn.Module:
    """Return two convolutions and a linear layer: 6,090 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4, CLASSES)),
    )


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of images whose label has the highest logit."""
    images, labels = data.tensors
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Sequence[torch.Tensor]]
) -> None:
    """Go through the data once; the loop as it was before there was shadowsync."""
    for images, labels in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def one_loop(data: TensorDataset, epochs: int, seed: int) -> nn.Module:
    """Train on all images in one process."""
    torch.manual_seed(seed)
    model = small_network()
    optimizer = torch.optim.Adam(model.parameters())
    batches = DataLoader(data, BATCH, shuffle=True)
    for _ in range(epochs):
        train(model, optimizer, batches)
    return model


def part(data: TensorDataset, *, by_class: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return batches of this process's own images, as many for each.

    They are a part of all images, or those of its own digits.
    """
    rank, loops = dist.get_rank(), dist.get_world_size()
    numbers = data.tensors[1] if by_class else torch.arange(len(data))
    own = Subset(data, (numbers % loops == rank).nonzero().flatten().tolist())
    return DataLoader(own, BATCH, sampler=RandomSampler(own, num_samples=len(data) // loops))


def attached_loop(data: TensorDataset, epochs: int, seed: int, has: str, **sync: Any) -> nn.Module:
    """Train this process's images, attached; return the model of all."""
    torch.manual_seed(seed)
    model = small_network()
    optimizer = torch.optim.Adam(model.parameters())
    with shadowsync.attach(model, optimizer, wait_for=dist.get_world_size(), **sync) as others:
        # Whose gate opens before the other has begun would count one round more.
        dist.barrier()
        if has == "shared":
            sampler = others.sampler(data, examples_per_step=BATCH, epochs=epochs, seed=seed)
            batches = DataLoader(data, BATCH, sampler=sampler)
        else:
            batches = part(data, by_class=has == "classes")
        for _ in range(epochs):
            train(model, optimizer, batches)
        # Who is ready first stays, so that nobody trains its last images alone; with digits of its own it
        # trains on, so that the mean does not follow whoever is last.
        ready = dist.barrier(async_op=True)
        while has == "classes" and "every" not in sync and not ready.is_completed():
            train(model, optimizer, islice(batches, 1))
        ready.wait()
    return others.model()


def figures(epochs: int, seeds: int) -> Iterator[tuple[str, list[float]]]:
    """Yield each row's name with its accuracies by seed, means over processes."""
    shadow = {"gap": EVERY, "duty": 1.0}
    fixed = {"mode": "fixed", "every": EVERY, "options": {"elastic_rate": 1.0}}
    rows: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("one loop, all images", "all", {}),
        ("shared images, ma", "shared", {"algorithm": "ma", **shadow}),
        ("own half of the images, ma", "half", {"algorithm": "ma", **shadow}),
        ("own half of the images, easgd", "half", {"algorithm": "easgd", **shadow}),
        ("own half of the images, none", "half", {"algorithm": "none"}),
        ("own digits, ma, fixed rate", "classes", {"algorithm": "ma", **fixed}),
        ("own digits, ma, background", "classes", {"algorithm": "ma", **shadow}),
        ("own digits, none", "classes", {"algorithm": "none"}),
    )
    for name, has, sync in rows:
        found = []
        for seed in range(seeds):
            data, held_out = digits(seed)
            model = attached_loop(data, epochs, seed, has, **sync) if sync else one_loop(data, epochs, seed)
            measured = torch.tensor(accuracy(model, held_out))
            dist.all_reduce(measured)
            found.append(float(measured) / dist.get_world_size())
        yield name, found


def main() -> None:
    """Print the table; rank 0 does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, found in figures(given.epochs, given.seeds):
        if dist.get_rank() == 0:
            print(f"{name:<32}  " + " ".join(f"{value:.4f}" for value in found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
