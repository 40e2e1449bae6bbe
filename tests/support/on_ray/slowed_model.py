"""A model that trains slowly as long as a file is there.

So what a test does meanwhile, and waits for, happens while the job trains, on a machine of any speed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from shadowsync.pipeline.models.built_in.wide_deep import WideDeep

SECONDS = 0.1


class SlowedModel(WideDeep):
    """Waits before each batch that it trains, while there is `file`."""

    def __init__(self, dense_features: int, embedding_dims: list[int], *, file: str, **options: Any) -> None:
        super().__init__(dense_features, embedding_dims, top=[32], **options)
        self._file = file

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        if self.training and Path(self._file).exists():
            threading.Event().wait(SECONDS)
        return super().forward(dense, embeddings)
