"""Marks for tests that need a GPU."""

from __future__ import annotations

import pytest
import torch

GPU = "cuda:0"


def why_not() -> str:
    """Why there is no GPU to test on; empty if there is one."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    return "" if torch.cuda.is_available() else "this machine has no GPU that torch can use"


needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]
