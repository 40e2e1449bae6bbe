"""The needs of the built-in algorithms, without importing torch."""

from __future__ import annotations

NEEDS_CENTER = {
    "bmuf": False,
    "diloco": False,
    "downpour": True,
    "ds_sync": False,
    "easgd": True,
    "easgd_symmetric": True,
    "gaia": False,
    "gossip": False,
    "ma": False,
    "none": False,
    "tree": False,
}
