"""No synchronization: the control that every algorithm is compared with."""

from __future__ import annotations

from .base import Algorithm, ModelOrigin, Peers, Replica


class NoSync(Algorithm):
    """Every replica goes its own way; the quality is the mean of the replicas' own scores."""

    name = "none"
    summary = "no synchronization; every trainer trains a model of its own"
    model = ModelOrigin.REPLICAS

    async def round(self, replica: Replica, peers: Peers) -> bool:  # noqa: ARG002
        """Does nothing, and so completes nothing."""
        return False
