"""K-FAC for a model's linear layers, refreshed by a background thread.

    python examples/other_areas/kfac.py

It counts the steps in which an autoencoder of scikit-learn's digits comes to a loss, beside Adam and SGD.
Source: Martens and Grosse, arXiv 1503.05671; the damped inverse by eigenvectors is that of George et al.,
arXiv 1806.03884, section 3, with the factors' own eigenvalues.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

BATCH = 512
WIDTHS = (64, 48, 24, 8, 24, 48, 64)


class Basis(NamedTuple):
    """Eigenvalues and eigenvectors of a layer's two factors, as of a step."""

    inputs: tuple[torch.Tensor, torch.Tensor]
    gradients: tuple[torch.Tensor, torch.Tensor]
    step: int


class KFAC(torch.optim.Optimizer):
    """K-FAC over the linear layers of a module; other parameters need another optimizer.

    With a the input of a layer and a 1 behind it, g the gradient of an example's loss by its output, ∇ that
    of the batch's loss by its weights and bias [out, in + 1], and λ the damping:

        A <- ρ A + (1 - ρ) E[a aᵀ],    G <- ρ G + (1 - ρ) E[g gᵀ],    d = (A ⊗ G + λ I)⁻¹ ∇.

    `observe` sees a and g. `step` never waits for eigenvectors: it takes the newest that the background
    thread has, and computes them itself in the first step only. `close` ends the thread.

    Args:
        lr: η of v <- μ v + ν d, w <- w - η v.
        momentum: μ.
        damping: λ.
        decay: ρ.
        clip: κ of ν = min(1, sqrt(κ / (η² Σ d·∇))), which bounds how far a step changes the predictions.
        every: refresh in the loop's thread at every so many steps instead; 0 for the background thread.

    Attributes:
        ages: for each step, how many steps ago its oldest eigenvectors were wanted.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: float = 0.3,
        momentum: float = 0.9,
        damping: float = 1.0,
        decay: float = 0.95,
        clip: float = 0.1,
        every: int = 0,
    ) -> None:
        self._layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        super().__init__([p for layer in self._layers for p in layer.parameters()], {"lr": lr})
        self._momentum, self._damping, self._decay, self._clip = momentum, damping, decay, clip
        self._every = every
        self._factors: dict[nn.Linear, list[torch.Tensor | None]] = {
            one: [None, None] for one in self._layers
        }
        self._seen: dict[nn.Linear, tuple[torch.Tensor, torch.Tensor]] = {}
        self._bases: dict[nn.Linear, Basis] = {}
        self._velocity: dict[nn.Linear, torch.Tensor] = {}
        self._steps = 0
        self.ages: list[int] = []
        for layer in self._layers:
            # A function, not a method: a copy of the module must not copy the optimizer.
            layer.register_forward_hook(lambda *seen: self._look(*seen))
        self._error: Exception | None = None
        self._closed, self._wanted = False, threading.Event()
        self._thread = threading.Thread(target=self._refresh_always, name="K-FAC", daemon=True)
        if not every:
            self._thread.start()

    def close(self) -> None:
        """End the background thread."""
        self._closed = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Change the layers by their gradients; the loop's thread calls it."""
        if self._error is not None:
            raise RuntimeError("the factors could not be refreshed") from self._error
        if not self._bases or (self._every and self._steps % self._every == 0):
            self._refresh()
        self._wanted.set()
        lr = self.param_groups[0]["lr"]
        gradients = {layer: gradient_of(layer) for layer in self._layers}
        directions = {layer: self.direction(layer, gradient) for layer, gradient in gradients.items()}
        product = sum(float((directions[layer] * gradients[layer]).sum()) for layer in self._layers)
        scale = min(1.0, (self._clip / max(lr * lr * product, 1e-30)) ** 0.5)
        self.ages.append(self._steps - min(basis.step for basis in self._bases.values()))
        self._steps += 1
        for layer, direction in directions.items():
            moved = self._velocity.setdefault(layer, torch.zeros_like(direction))
            moved.mul_(self._momentum).add_(direction, alpha=scale)
            layer.weight.sub_(moved[:, : layer.in_features], alpha=lr)
            if layer.bias is not None:
                layer.bias.sub_(moved[:, -1], alpha=lr)

    def direction(self, layer: nn.Linear, gradient: torch.Tensor) -> torch.Tensor:
        """Return (A ⊗ G + λ I)⁻¹ times the gradient, [out, in + 1]."""
        (of_inputs, inputs), (of_gradients, gradients), _ = self._bases[layer]
        turned = gradients.T @ gradient @ inputs
        return gradients @ (turned / (of_gradients[:, None] * of_inputs + self._damping)) @ inputs.T

    def factors(self, layer: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A [in + 1, in + 1] and G [out, out]."""
        inputs, gradients = self._factors[layer]
        assert inputs is not None
        assert gradients is not None
        return inputs, gradients

    def observe(self, loss: torch.Tensor) -> None:
        """Average the factors with what this loss shows of them.

        Give a loss against targets that are drawn from what the model predicts: then G is that of the Fisher
        matrix. It must be a mean over the rows of the layers' inputs. Call it before the backward pass of the
        loop's own loss.
        """
        seen, self._seen = self._seen, {}
        outputs = [output for _, output in seen.values()]
        gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
        for (layer, (rows, _)), gradient in zip(seen.items(), gradients, strict=True):
            each = gradient.flatten(0, -2) * len(rows)
            self._average(layer, 0, rows.T @ rows / len(rows))
            self._average(layer, 1, each.T @ each / len(rows))

    def _look(self, layer: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if layer in self._factors and output.requires_grad:
            assert isinstance(layer, nn.Linear)
            self._seen[layer] = with_one(layer, given[0].detach().flatten(0, -2)), output

    def _average(self, layer: nn.Linear, which: int, new: torch.Tensor) -> None:
        # A new tensor each time: the thread may still read the old one.
        old = self._factors[layer][which]
        self._factors[layer][which] = new if old is None else old.lerp(new, 1 - self._decay)

    def _refresh(self) -> None:
        step = self._steps
        for layer in self._layers:
            inputs, gradients = (torch.linalg.eigh(factor) for factor in self.factors(layer))
            self._bases[layer] = Basis(tuple(inputs), tuple(gradients), step)

    def _refresh_always(self) -> None:
        while self._wanted.wait() and not self._closed:
            self._wanted.clear()
            try:
                self._refresh()
            except Exception as error:  # noqa: BLE001 - raised by the next step
                self._error = error
                return


def with_one(layer: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """Return rows [N, in], with a column of ones for a bias."""
    return rows if layer.bias is None else torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)


def gradient_of(layer: nn.Linear) -> torch.Tensor:
    """Return the gradient of weights and bias, [out, in + 1]."""
    assert layer.weight.grad is not None
    if layer.bias is None:
        return layer.weight.grad
    assert layer.bias.grad is not None
    return torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1)


def autoencoder(seed: int) -> nn.Module:
    """Return six layers with eight numbers in their middle."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for pair in pairwise(WIDTHS):
        layers += [nn.Linear(*pair), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def error(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the squared error, summed over an image, its mean over images."""
    return (made - wanted).square().sum(dim=1).mean()


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, steps: int) -> Iterator[float]:
    """Train; yield the error over all images after each step."""
    from sklearn.datasets import load_digits

    images = torch.from_numpy(load_digits().data).float() / 16
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = images[torch.randint(len(images), (BATCH,), generator=generator)]
        optimizer.zero_grad()
        made = model(chosen)
        if isinstance(optimizer, KFAC):
            # A squared error is the likelihood of a normal distribution with a variance of a half.
            drawn = made.detach() + 0.5**0.5 * torch.randn(made.shape, generator=generator)
            optimizer.observe(error(made, drawn))
        error(made, chosen).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            yield float(error(model(images), images))


def adam(rate: float, model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam with this rate."""
    return torch.optim.Adam(model.parameters(), lr=rate)


def sgd(rate: float, model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with momentum with this rate."""
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "K-FAC, background thread": KFAC,
    "K-FAC, refreshed in every step": partial(KFAC, every=1),
    "K-FAC, in every 50th step": partial(KFAC, every=50),
    "K-FAC, in the first step only": partial(KFAC, every=10**9),
    **{f"Adam, rate {rate:g}": partial(adam, rate) for rate in (0.001, 0.003, 0.01, 0.03)},
    **{f"SGD, momentum 0.9, rate {rate:g}": partial(sgd, rate) for rate in (0.01, 0.03, 0.1)},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--loss", type=float, nargs="+", default=[2.0, 1.5])
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, make in OPTIMIZERS.items():
        print(f"{name:<32}", end="", flush=True)
        for seed in range(given.seeds):
            model = autoencoder(seed)
            optimizer = make(model)
            found = list(losses(model, optimizer, seed, given.steps))
            steps = [
                next((at for at, one in enumerate(found, 1) if one <= loss), None) for loss in given.loss
            ]
            age = ""
            if isinstance(optimizer, KFAC):
                optimizer.close()
                age = f" age {statistics.mean(optimizer.ages):.1f}"
            print(f"  {steps} end {found[-1]:.3f}{age}", end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
