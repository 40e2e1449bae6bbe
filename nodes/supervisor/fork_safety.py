"""Whether this process can be forked: a child has none of its threads, and shares its sockets and its GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection


def why_not_fork(own_sockets: Collection[int] = ()) -> str:
    """What stands against a fork, in words; empty if nothing does. Linux only.

    Counts the threads that the kernel knows, and so also those of libraries.

    Args:
        own_sockets: descriptors of sockets that the child closes before it does anything else.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"it has {threads} threads"
    for name in os.listdir("/proc/self/fd"):
        try:
            opened = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            # The listing's own descriptor, closed by now.
            continue
        if opened.startswith("socket:") and int(name) not in own_sockets:
            return f"it has a socket (descriptor {name})"
        if opened.startswith("/dev/nvidia"):
            return f"it has a GPU open ({opened})"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has initialized CUDA"
    return ""
