"""Elastic averaging where both sides use the other's old value."""

from __future__ import annotations

from shadowsync.sync_algos.easgd import EASGD


class SymmetricEASGD(EASGD):
    """EASGD of Zhang, Choromanska, LeCun, arXiv 1412.6651.

    Equations 5 and 6, one trainer at a time. With α the elastic rate, both sides use old values, and one side
    takes what the other gives:

        w <- w - α (w - c),   c <- c + α (w - c).

    The center answers d = α (w - c) as in `EASGD`; the replica subtracts all of it.
    """

    name = "easgd_symmetric"
    summary = "elastic averaging with a center; both sides use the other's old value"

    def replica_share(self) -> float:
        """Return 1: the replica subtracts the whole delta."""
        return 1.0
