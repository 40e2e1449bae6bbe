"""Local parallelism: detached towers of layers, each with a loss of its own.

    torchrun --standalone --nproc-per-node 2 examples/other_areas/local_parallelism.py

No gradient goes from a tower to the one below, so none waits for another's backward pass. Two such loops are
attached: the towers of both update their replica without locks while the shadow thread synchronizes it.
Source of the local losses: Belilovsky et al., arXiv 1901.08164; Laskin et al., arXiv 2012.03837.
"""

from __future__ import annotations

import argparse
import queue
import threading
from collections.abc import Iterable, Iterator
from itertools import pairwise

import shadowsync
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 16
INPUTS = 64
LAYERS = 4
WIDTH = 48
CLASSES = 10
TESTED = 500
# Batches that a tower may be ahead of the one above.
AHEAD = 4

Batch = tuple[torch.Tensor, torch.Tensor]


class Tower(nn.Module):
    """Some layers, and a head for their local loss; the last is the model's."""

    def __init__(self, inputs: int, layers: int) -> None:
        super().__init__()
        widths = [inputs, *[WIDTH] * layers]
        pairs = pairwise(widths)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in pairs))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, below: torch.Tensor) -> torch.Tensor:
        """What the layers make of [B, inputs]: [B, WIDTH]."""
        made: torch.Tensor = self.layers(below)
        return made


def loss_of(model: nn.ModuleList, data: TensorDataset) -> tuple[float, float]:
    """Return cross entropy and accuracy of the last head."""
    inputs, labels = data.tensors
    with torch.no_grad():
        for tower in model:
            inputs = tower(inputs)
        last = model[-1]
        assert isinstance(last, Tower)
        logits = last.head(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        return float(loss), float((logits.argmax(dim=1) == labels).float().mean())


def train_tower(
    tower: Tower,
    optimizer: torch.optim.Optimizer | None,
    below: Iterable[Batch],
    above: queue.Queue[Batch | None],
) -> None:
    """Train a tower on what the one below gives; hand on without a gradient.

    Without an optimizer it stays as it was made: the control.
    """
    for inputs, labels in below:
        made = tower(inputs)
        if optimizer is not None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(tower.head(made), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        above.put((made.detach(), labels))
    above.put(None)


def train(
    model: nn.ModuleList,
    optimizers: list[torch.optim.Optimizer | None],
    batches: Iterable[list[torch.Tensor]],
) -> None:
    """Go through the data once, each tower in its own thread."""
    handed = [queue.Queue[Batch | None](AHEAD) for _ in model[1:]]
    below = [((inputs, labels) for inputs, labels in batches), *(iter(one.get, None) for one in handed)]
    above = [*handed, queue.Queue[Batch | None]()]
    threads = [
        threading.Thread(target=train_tower, args=four)
        for four in zip(model, optimizers, below, above, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def made(
    count: int, seed: int, *, only_last: bool = False
) -> tuple[nn.ModuleList, list[torch.optim.Optimizer | None]]:
    """Return towers and optimizers; with `only_last` the others have none."""
    torch.manual_seed(seed)
    model = nn.ModuleList(Tower(WIDTH if at else INPUTS, LAYERS // count) for at in range(count))
    for tower in model[:-1] if only_last else ():
        tower.requires_grad_(False)
    trained = [any(p.requires_grad for p in tower.parameters()) for tower in model]
    return model, [
        torch.optim.Adam(tower.parameters(), lr=2e-3) if is_trained else None
        for tower, is_trained in zip(model, trained, strict=True)
    ]


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return images and labels: to train on, and held out.

    Images are float32 [N, INPUTS] in [0, 1], labels int64 [N].
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = torch.from_numpy(found.data).float() / 16, torch.from_numpy(found.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out, trained = order[:TESTED], order[TESTED:]
    return TensorDataset(images[trained], labels[trained]), TensorDataset(images[held_out], labels[held_out])


def attached(data: TensorDataset, epochs: int, seed: int, count: int, *, only_last: bool) -> nn.ModuleList:
    """Train this process's share of the data; return the mean of all."""
    model, optimizers = made(count, seed, only_last=only_last)
    own = [one for one in optimizers if one is not None]
    with shadowsync.attach(
        model, own, algorithm="ma", gap=5, duty=1.0, wait_for=dist.get_world_size()
    ) as sync:
        sampler = sync.sampler(data, examples_per_step=BATCH, epochs=epochs, seed=seed)
        for _ in range(epochs):
            train(model, optimizers, DataLoader(data, BATCH, sampler=sampler))
        # Who is ready first stays, so that nobody trains its last images alone.
        dist.barrier()
    result = sync.model()
    assert isinstance(result, nn.ModuleList)
    return result


def figures(epochs: int, seeds: int) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield each row's name with its (loss, accuracy) by seed."""
    rows = [("one tower: back-propagation", 1, False)]
    rows += [(f"{count} towers, local losses", count, False) for count in (2, 4)]
    rows += [(f"{count} towers, only the last trained", count, True) for count in (2, 4)]
    for name, count, only_last in rows:
        found = []
        for seed in range(seeds):
            data, held_out = digits(seed)
            measured = torch.tensor(
                loss_of(attached(data, epochs, seed, count, only_last=only_last), held_out)
            )
            dist.all_reduce(measured)
            loss, accuracy = (measured / dist.get_world_size()).tolist()
            found.append((loss, accuracy))
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
            print(f"{name:<34}  " + "  ".join(f"{loss:.4f} {hit:.4f}" for loss, hit in found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
