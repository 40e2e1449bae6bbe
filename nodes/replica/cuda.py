"""A trainer on a GPU: every worker has a stream to compute and one to copy, and the host runs ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import cast

import torch

from ...pipeline.types import Float32Array, Int64Array
from .buffer import FlatReplica
from .cuda_streams import Event, Streams
from .device import Computed, Landed, Landing, Lane, Staged
from .device_replica import DeviceReplica


class CudaDevice:
    """One GPU; `Device` says what its methods do. A worker starts the next step before the results of the
    last one have come, so the GPU has work while the host sends gradients and packs the next batch."""

    steps_ahead = 1

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._replica: DeviceReplica | None = None

    @property
    def torch_device(self) -> torch.device:
        """As torch names it."""
        return self._streams.torch_device

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device; blocks."""
        return tensor.to(self._streams.torch_device)

    def replica(self, flat: torch.Tensor, examples: Int64Array) -> FlatReplica:
        """See `Device.replica`."""
        self._replica = DeviceReplica(flat, examples, self._streams)
        return self._replica

    def lane(self) -> Lane:
        """See `Device.lane`."""
        assert self._replica is not None
        return _CudaLane(self._streams, self._replica)


@dataclass(slots=True, kw_only=True)
class _Packed(Staged):
    """A staged batch in one block of device memory; its only leaf is the part that holds all embeddings."""

    arrived: Event


class _CudaLane:
    def __init__(self, streams: Streams, replica: DeviceReplica) -> None:
        self._streams = streams
        self._replica = replica
        self._compute = streams.stream()
        self._copies = streams.stream()
        self._stepped = replica.join()

    def stage(
        self,
        labels: Float32Array,
        weights: Float32Array | None,
        dense: Float32Array,
        embeddings: Sequence[torch.Tensor],
    ) -> Staged:
        """One pinned block for everything, and one copy of it."""
        arrays = [torch.from_numpy(array) for array in (labels, weights, dense) if array is not None]
        parts = [*arrays, *(embedding.detach() for embedding in embeddings)]
        sizes = [part.numel() for part in parts]
        host = self._streams.pinned(sum(sizes))
        for place, part in zip(torch.split(host, sizes), parts, strict=True):
            place.copy_(part.reshape(-1))
        arrived = self._streams.event()
        with self._streams.on(self._copies):
            block = torch.empty(len(host), dtype=torch.float32, device=self._streams.torch_device)
        self._streams.copy(self._copies, block, host)
        arrived.record(self._copies)
        self._streams.used_on(self._compute, block)
        head = sizes[: len(arrays)]
        *fixed, rest = torch.split(block, [*head, sum(sizes) - sum(head)])
        # Autograd runs the backward of each of these on the stream on which it was made: on the default one,
        # the workers' steps would wait for each other there.
        with self._streams.on(self._compute):
            leaf = rest.detach().requires_grad_()
            # Split has one concatenation as its backward; slices would have a block of zeros each.
            tables = zip(torch.split(leaf, sizes[len(arrays) :]), embeddings, strict=True)
            views = [part.view(embedding.shape) for part, embedding in tables]
        return _Packed(
            labels=fixed[0],
            weights=None if weights is None else fixed[1],
            dense=fixed[-1].view(dense.shape),
            embeddings=views,
            leaves=[leaf],
            arrived=arrived,
        )

    def computing(self, staged: Staged) -> AbstractContextManager[object]:
        """See `Lane.computing`."""
        return self._on_compute(cast(_Packed, staged))

    @contextmanager
    def _on_compute(self, staged: _Packed) -> Iterator[None]:
        self._streams.behind(self._compute, staged.arrived)
        self._replica.order(self._compute)
        with self._streams.on(self._compute):
            yield
            self._stepped.record(self._compute)

    def land(self, staged: Staged, computed: Computed) -> Landing:
        """One block of results, and one copy of it into pinned memory, behind the step."""
        packed = cast(_Packed, staged)
        parts = [computed.loss.view(1), computed.norm.view(1), computed.logits]
        shapes = []
        gradient = packed.leaves[0].grad
        if gradient is not None:
            parts.append(gradient)
            shapes = [embedding.shape for embedding in packed.embeddings]
        results = torch.cat(parts)
        host, done = self._streams.pinned(len(results)), self._streams.event()
        self._streams.copy(self._compute, host, results)
        done.record(self._compute)
        return _OnItsWay(host, done, len(computed.logits), shapes)


class _OnItsWay:
    def __init__(self, host: torch.Tensor, done: Event, batch: int, shapes: list[torch.Size]) -> None:
        self._host, self._done, self._batch, self._shapes = host, done, batch, shapes

    def wait(self) -> Landed:
        """See `Landing.wait`."""
        self._done.synchronize()
        sizes = [shape.numel() for shape in self._shapes]
        loss, norm, logits, *parts = torch.split(self._host, [1, 1, self._batch, *sizes])
        gradients = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return Landed(float(loss), float(norm), logits.numpy(), gradients or None)
