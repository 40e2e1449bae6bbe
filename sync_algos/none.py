"""No synchronization: the control that every algorithm is compared with."""

from __future__ import annotations

from .base import Algorithm, ModelOrigin, Peers, Replica


class NoSync(Algorithm):
    """No synchronization: independent replicas, scored by their mean."""

    name = "none"
    summary = "no synchronization; every trainer trains a model of its own"
    model = ModelOrigin.REPLICAS

    async def round(self, replica: Replica, peers: Peers) -> bool:  # noqa: ARG002
        """Do nothing, and so complete nothing."""
        return False
