"""What the built-in algorithms need, known without importing one: they import torch, and this doesn't."""

from __future__ import annotations

NEEDS_CENTER = {
    "bmuf": False,
    "ds_sync": False,
    "easgd": True,
    "easgd_symmetric": True,
    "gossip": False,
    "ma": False,
    "none": False,
}
