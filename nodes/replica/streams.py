"""The streams, events and page-locked memory of a GPU, as far as trainers use them.

Everything used of CUDA is behind `Streams`, so that tests can replace it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Protocol

import torch

OLDEST_TO_CAPTURE: Final = (2, 13)
"""Version of torch from which on steps are captured. With earlier ones a capture that fails leaks memory from
then on, and other threads that draw random numbers during a capture fail."""

# Torch captures in one thread at a time.
_CAPTURING = threading.Lock()


class StreamEvent(Protocol):
    """A point in a stream; recording it again moves it, for later waits."""

    def record(self, stream: Any) -> None:
        """Place the event behind all that is enqueued on the stream so far."""
        ...

    def synchronize(self) -> None:
        """Block the calling thread until the device has passed the event."""
        ...


class Streams(Protocol):
    """The streams, events and pinned memory of one device.

    Any thread may call. One thread at a time enqueues on a stream, except for single operations, which may
    interleave.
    """

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        ...

    def stream(self) -> Any:
        """Return a new stream, ordered after everything enqueued on the device so far."""
        ...

    def default(self) -> Any:
        """Return the stream on which torch works by default."""
        ...

    def event(self) -> StreamEvent:
        """Return a new event.

        A wait for one that was never recorded does nothing.
        """
        ...

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Return a context in which torch enqueues this thread's work on the stream."""
        ...

    def behind(self, stream: Any, event: StreamEvent) -> None:
        """Make later work on the stream wait on the device for the event."""
        ...

    def pinned(self, elements: int) -> torch.Tensor:
        """Return pinned host memory, float32 [elements], for asynchronous copies."""
        ...

    def lock(self, memory: torch.Tensor) -> bool:
        """Page-lock memory of the host; return whether it is, as after `pinned`."""
        ...

    def unlock(self, memory: torch.Tensor) -> None:
        """Undo `lock`, before the memory is unmapped."""
        ...

    def is_locked(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is within locked memory."""
        ...

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy between pinned or locked memory and the device; returns at once."""
        ...

    def used_on(self, stream: Any, tensor: torch.Tensor) -> None:
        """Keep the memory of another stream's tensor until this stream has used it.

        The memory is not reused before all that this stream has enqueued when the tensor is dropped.
        """
        ...

    def graph(self, stream: Any, function: Callable[[], None]) -> Callable[[], None]:
        """Capture what the function enqueues on the stream; return what enqueues all of it again.

        The function's own tensors keep their memory as long as the result is referred to. Nothing runs
        meanwhile. Raises RuntimeError for work that cannot be captured.
        """
        ...


class CudaStreams:
    """The streams of `torch.cuda`, for the device with this index.

    Pinned memory comes from torch's caching allocator, which reuses a dropped tensor's memory only when the
    copies from and to it are done. A wait for an event blocks instead of spinning: the node's other threads
    need the cores.
    """

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        self._locked: dict[int, int] = {}

    def stream(self) -> torch.cuda.Stream:
        stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self.torch_device))
        return stream

    def default(self) -> torch.cuda.Stream:
        return torch.cuda.default_stream(self.torch_device)

    def event(self) -> StreamEvent:
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def behind(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def pinned(self, elements: int) -> torch.Tensor:
        # Otherwise torch would open the first GPU too, for a job on the second.
        with torch.cuda.device(self.torch_device):
            return torch.empty(elements, dtype=torch.float32, pin_memory=True)

    def lock(self, memory: torch.Tensor) -> bool:
        start, size = memory.data_ptr(), memory.nbytes
        with torch.cuda.device(self.torch_device):
            if int(_cudart().cudaHostRegister(start, size, 0)):
                # CUDA keeps the error for the thread's next kernel, which torch would take for a failed one.
                with suppress(RuntimeError):
                    torch.ones(1, device=self.torch_device)
                return False
        self._locked[start] = start + size
        return True

    def unlock(self, memory: torch.Tensor) -> None:
        if self._locked.pop(memory.data_ptr(), None) is not None:
            with torch.cuda.device(self.torch_device):
                _cudart().cudaHostUnregister(memory.data_ptr())

    def is_locked(self, tensor: torch.Tensor) -> bool:
        start = tensor.data_ptr()
        return any(first <= start < end for first, end in tuple(self._locked.items()))

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def used_on(self, stream: Any, tensor: torch.Tensor) -> None:
        tensor.record_stream(stream)

    def graph(self, stream: Any, function: Callable[[], None]) -> Callable[[], None]:
        if _torch_version() < OLDEST_TO_CAPTURE:
            raise RuntimeError(
                f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST_TO_CAPTURE))}, from which"
                " on training goes on undisturbed after a capture that failed"
            )
        failed: list[Exception] = []
        # Other threads of the trainer allocate memory and wait for events meanwhile; they may.
        with _CAPTURING, torch.cuda.device(self.torch_device):
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    try:
                        function()
                    except Exception as error:
                        failed.append(error)
                        raise
            except RuntimeError as error:
                # The end of a failed capture may fail too, and says less.
                raise (failed or [error])[0] from None
            finally:
                # The error refers to this call, with all that the function holds.
                failed.clear()
        return graph.replay


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
