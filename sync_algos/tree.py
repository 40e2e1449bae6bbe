"""A two-level tree: trainers of a site average often, all sites seldom."""

from __future__ import annotations

from dataclasses import dataclass

from .base import AVERAGED, Algorithm, ModelOrigin, Peers, Replica
from .contract.grouping import sites
from .shared.group_mean import pull_to_group_mean
from .shared.pull import PullOptions


@dataclass(frozen=True)
class TreeOptions(PullOptions):
    """Options of the two-level tree.

    `site_size` is the number of trainers of a site: trainers 0 to `site_size` - 1 are the first site, and so
    on. `site_every` is k: in every k-th round all sites average.
    """

    site_size: int = 2
    site_every: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.site_size < 1:
            raise ValueError(f"site_size: {self.site_size!r} given; give an integer of at least 1")
        if self.site_every < 1:
            raise ValueError(f"site_every: {self.site_every!r} given; give an integer of at least 1")


class Tree(Algorithm):
    """Hierarchical averaging of Liu et al., arXiv 1905.06641, Algorithm 1, made elastic.

    In the paper, edge servers average their clients every κ1 steps, and the cloud averages all clients every
    κ1 κ2 steps. Here the trainers of a site average in each round, and all trainers in every k-th round since
    the trainers last changed. With s_j the snapshots of the group G of trainer i (its site, or all) and α the
    elastic rate:

        m_G = mean of s_j over G,    w_i <- (1 - α) w_i + α m_G      (or the form of `PullOptions` "keep").

    All trainers count the same, so that a large site weighs more when all average. Everything is float32
    [numel]. A round waits until its group has met, then does one all-reduce of the whole buffer in it. A site
    waits for other sites only in a round of all. There is no server between the levels: in a round of all,
    each trainer's values travel among sites. A trainer that dies during a round, at any moment, ends the
    round of its group: each survivor's replica is as its workers left it, and the round does not count. The
    others stay in their sites, and rounds are counted anew.
    """

    name = "tree"
    summary = "trainers of a site average often, those of all sites seldom"
    needs_peers = True
    changes_groups = True
    model = ModelOrigin.MEAN
    optimizer_states = AVERAGED
    Options = TreeOptions
    options: TreeOptions

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """All-reduce in the site, or among all, then step toward that mean."""
        grouping = sites(self.options.site_size, self.options.site_every)
        return await pull_to_group_mean(replica, peers, grouping, self.options)
