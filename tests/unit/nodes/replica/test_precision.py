"""What "auto" is on which device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shadowsync.pipeline.models.precision import find_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "found"),
    [
        ({"avx512_f": True, "avx512_bf16": True}, "bfloat16"),
        ({"amx_bf16": True}, "bfloat16"),
        ({"neon": True, "bf16": True}, "bfloat16"),
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, "float32"),
        ({}, "float32"),
    ],
)
def test_auto_goes_by_the_processor(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, Any], found: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert find_precision("auto", CPU) == found
    assert find_precision("float32", CPU) == "float32"
    assert find_precision("bfloat16", CPU) == "bfloat16"


@pytest.mark.parametrize(("capability", "found"), [((9, 0), "bfloat16"), ((7, 5), "float32")])
def test_auto_goes_by_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], found: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert find_precision("auto", torch.device("cuda:0")) == found


def test_a_torch_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert find_precision("auto", CPU) == "float32"
