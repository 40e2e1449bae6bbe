"""A sampler of torch that shares a data set with other loops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils.data import Sampler

from ..pipeline.errors import ShadowSyncError
from ..pipeline.wire.control.loops import EndSamples, SamplesReply, TakeSamples
from .checks import plain
from .errors import AttachError
from .hub.state import FINISHED_PREFIX

# Spans of an epoch, over all loops, if no span is given.
SPANS_OF_EPOCH: Final = 256


class SharedSampler(Sampler[int]):
    """Indices that no other loop is given in the same epoch.

    A pass over the sampler gives this loop's share of an epoch. The hub grants spans of the epoch's order,
    which depends on seed and epoch only. What a loop that died, or that left its block by an exception, was
    given and had not trained is granted again, to whoever asks next, in this epoch or a later one.

    What was trained is counted by the optimizer's steps times `examples_per_step`, and at the end of a pass
    as all that was given: so a death may repeat examples, and loses none.

    Args:
        call: sends a request to the hub, and returns its reply.
        steps: returns the loop's steps so far.
        size: number of examples of the data set.
        examples_per_step: examples of a step of the optimizer: the batch times the accumulated batches. A
            smaller number is safe, and repeats more after a death.
        seed: seed of the orders; None for the order of the data set.
        epochs: epochs of the data set that all loops together go through; 0 for no limit.
        span: indices that are granted at a time; 0 for a share of the data set.
        name: loops that share a data set give the same name.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        steps: Callable[[], int],
        size: int,
        *,
        examples_per_step: int = 1,
        seed: int | None = 0,
        epochs: int = 0,
        span: int = 0,
        name: str = "train",
    ) -> None:
        numbers = (size, examples_per_step, epochs, span, seed)
        size, examples_per_step, epochs, span, seed = (plain(number, "sampler") for number in numbers)
        if size < 1 or examples_per_step < 1 or epochs < 0 or span < 0:
            raise AttachError(
                f"{size} examples, examples_per_step={examples_per_step}, epochs={epochs}, span={span} given;"
                " the first two must be at least 1, the others at least 0"
            )
        self._call, self._steps = call, steps
        self._size, self._seed, self._epochs, self._name = size, seed, epochs, name
        self._examples_per_step = examples_per_step
        self._span = span or max(1, -(-size // SPANS_OF_EPOCH))
        self._order: tuple[int, torch.Tensor] | None = None
        # What earlier passes finished, what this one yielded, and the steps at its begin: replaced as one,
        # since the control thread reads it.
        self._count = (0, 0, 0)
        self._pass = 0
        self._exhausted = False

    @property
    def count_name(self) -> str:
        """Name of the count in heartbeats."""
        return FINISHED_PREFIX + self._name

    def finished(self) -> int:
        """Return the examples that were trained so far; any thread may call."""
        before, yielded, steps = self._count
        return before + min(yielded, (self._steps() - steps) * self._examples_per_step)

    def __len__(self) -> int:
        """Raise TypeError, as torch's endless data sets do: nobody knows this loop's share beforehand."""
        raise TypeError(
            f"a shared sampler has no length: the {self._size:,} examples of an epoch are shared as fast as"
            " each loop trains. Go through the loader without len(); for a schedule or a bar take"
            " len(dataset), of all loops together"
        )

    def __bool__(self) -> bool:
        """Return True: a sampler without a length is still one."""
        return True

    def __iter__(self) -> Iterator[int]:
        """Begin a pass; what the one before gave is trained."""
        self._end_pass()
        pass_number, epoch = self._pass, None
        try:
            while True:
                reply = self._call(self._request(epoch))
                epoch = reply.epoch
                if reply.start == reply.stop:
                    self._exhausted = True
                    return
                for index in self._indices(reply):
                    before, yielded, steps = self._count
                    self._count = before, yielded + 1, steps
                    yield index
        finally:
            if pass_number == self._pass and not self._exhausted:
                # The loop broke out of the pass: the others get the rest.
                self._end_pass()

    def finish(self) -> None:
        """End the last pass, as the loop leaves its block."""
        self._end_pass()
        self._call(EndSamples(self._name, self.finished()))

    def _request(self, epoch: int | None) -> TakeSamples:
        before, yielded, _ = self._count
        return TakeSamples(
            self._name,
            self._size,
            self._span,
            self._seed,
            self._epochs,
            epoch,
            self.finished(),
            before + yielded,
        )

    def _end_pass(self) -> None:
        """Count the last pass, and give back what was not trained.

        What a pass gave that ended is trained.
        """
        before, yielded, _ = self._count
        exhausted, finished = self._exhausted, self.finished()
        self._count = (before + yielded if exhausted else finished), 0, self._steps()
        self._pass, self._exhausted = self._pass + 1, False
        if yielded and not exhausted:
            # Perhaps as a generator is collected, where nobody could handle an error.
            with contextlib.suppress(ShadowSyncError):
                self._call(EndSamples(self._name, finished))

    def _indices(self, places: SamplesReply) -> list[int]:
        if self._seed is None:
            return list(range(places.start, places.stop))
        if self._order is None or self._order[0] != places.of_epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + places.of_epoch)
            self._order = places.of_epoch, torch.randperm(self._size, generator=generator)
        indices: list[int] = self._order[1][places.start : places.stop].tolist()
        return indices
