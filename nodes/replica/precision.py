"""In which precision a trainer multiplies."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

Precision: TypeAlias = Literal["float32", "bfloat16"]

# As `torch.cpu.get_capabilities` calls them: products of bfloat16 as instructions, not by way of float32.
_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


def find_precision(setting: Literal["auto", "float32", "bfloat16"], device: torch.device) -> Precision:
    """What `trainer.precision` means on this device: "auto" is bfloat16 where the device multiplies it by
    instructions of its own, and float32 elsewhere, where bfloat16 would only be slower."""
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    # Older versions of torch do not tell.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if any(capabilities.get(name) for name in _CPU_BFLOAT16) else "float32"
