"""`CudaStreams` where CUDA refuses something, with a CUDA that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from shadowsync.nodes.replica import streams as cuda_streams
from shadowsync.nodes.replica.streams import CudaStreams


class _Runtime:
    """Refuses to register memory, and keeps the error for the next kernel."""

    def __init__(self) -> None:
        self.error = 0

    def cudaHostRegister(self, *_: int) -> int:
        self.error = 801
        return self.error

    def kernel(self, *_: Any, **__: Any) -> None:
        error, self.error = self.error, 0
        if error:
            raise RuntimeError(f"CUDA error {error}")


class _Graph:
    def replay(self) -> None:
        """Do nothing."""


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> _Runtime:
    made = _Runtime()
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", _Graph)
    monkeypatch.setattr(torch, "ones", made.kernel)
    return made


def test_memory_that_cannot_be_locked_breaks_no_later_kernel(runtime: _Runtime) -> None:
    streams = CudaStreams(0)
    memory = torch.zeros(8)
    assert not streams.lock(memory)
    assert not streams.is_locked(memory)
    runtime.kernel()


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("at_end", ["capture invalidated", ""])
def test_a_capture_that_fails_says_the_first_reason(monkeypatch: pytest.MonkeyPatch, at_end: str) -> None:
    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        finally:
            if at_end:
                raise RuntimeError(at_end)

    monkeypatch.setattr(torch.cuda, "graph", graph)

    def asks() -> None:
        raise RuntimeError("not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        CudaStreams(0).graph(None, asks)
    if at_end:
        with pytest.raises(RuntimeError, match="invalidated"):
            CudaStreams(0).graph(None, lambda: None)
    else:
        assert CudaStreams(0).graph(None, lambda: None) is not None


@pytest.mark.usefixtures("runtime")
def test_an_old_torch_captures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_streams, "OLDEST_TO_CAPTURE", (99, 0))
    with pytest.raises(RuntimeError, match=r"is older than 99\.0"):
        CudaStreams(0).graph(None, lambda: None)
