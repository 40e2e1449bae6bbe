"""What the codecs of a job make of values on emulated links, and how many bytes these take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...pipeline.codecs.feedback import Deltas, ErrorFeedback, Reference
from ...pipeline.codecs.formats import LinkCodecs
from ...pipeline.config.job import Job
from ...sync_algos.base import Slice


class Sent(NamedTuple):
    """Values as the other end decodes them, float32 like the values, and the bytes of their payload."""

    values: torch.Tensor
    payload_bytes: int


@dataclass
class _CenterLink:
    """Both ends of a trainer's link to a slice of the center."""

    up: Deltas | Reference
    down: Reference | ErrorFeedback
    exchanges: int = 0


@dataclass
class _PeerLinks:
    """A trainer's references with its group: of its values, and of the result, which all have alike."""

    members: tuple[int, ...]
    up: Reference
    down: Reference
    rounds: int = 0


class LinkCoding:
    """Encodes as the nodes do, each slice or replica as one chunk.

    Args:
        deltas: whether the algorithm's deltas count once, see `Algorithm.counts_once`.

    Attributes:
        is_exact: whether deltas are sent as float32, as in closing rounds.
    """

    def __init__(self, job: Job, *, deltas: bool) -> None:
        self._center, self._peers = job.codecs.center(), job.codecs.peers()
        self._deltas = deltas
        self.is_exact = False
        self._links: dict[tuple[int, Slice], _CenterLink] = {}
        self._groups: dict[int, _PeerLinks] = {}

    def to_center(self, index: int, part: Slice, values: torch.Tensor) -> Sent:
        """Encode a trainer's slice for its sync node."""
        link = self._link(index, part)
        link.exchanges += 1
        if isinstance(link.up, Reference):
            return _referred(link.up, link.exchanges, values)
        link.up.is_exact = self.is_exact
        _, encoded = link.up.encode(0, values.numpy())
        return Sent(torch.from_numpy(encoded.decoded), encoded.payload.nbytes)

    def lost(self, index: int, part: Slice) -> torch.Tensor:
        """Return what was lost of the slice's last delta; see `Center.lost`."""
        up = self._link(index, part).up
        return torch.from_numpy(up.lost) if isinstance(up, Deltas) else torch.zeros(1)

    def from_center(self, index: int, part: Slice, reply: torch.Tensor) -> Sent:
        """Encode the reply."""
        link = self._link(index, part)
        if isinstance(link.down, Reference):
            return _referred(link.down, link.exchanges, reply)
        encoded = link.down.encode(0, reply.numpy())
        return Sent(torch.from_numpy(encoded.decoded), encoded.payload.nbytes)

    def to_peers(self, index: int, members: tuple[int, ...], values: torch.Tensor) -> Sent:
        """Encode a trainer's values for an all-reduce of these trainers."""
        group = self._groups.get(index)
        if group is None or group.members != members:
            codecs = self._peers if len(members) > 1 else LinkCodecs()
            references = Reference(codecs.up, len(values)), Reference(codecs.down, len(values))
            group = self._groups[index] = _PeerLinks(members, *references)
        group.rounds += 1
        return _referred(group.up, group.rounds, values)

    def from_peers(self, index: int, result: torch.Tensor) -> Sent:
        """Encode the result of the trainer's all-reduce."""
        group = self._groups[index]
        return _referred(group.down, group.rounds, result)

    def _link(self, index: int, part: Slice) -> _CenterLink:
        if (index, part) not in self._links:
            codecs, elements = self._center, len(part)
            self._links[index, part] = (
                _CenterLink(Deltas(codecs.up, elements), Reference(codecs.down, elements))
                if self._deltas
                else _CenterLink(Reference(codecs.up, elements), ErrorFeedback(codecs.down, elements))
            )
        return self._links[index, part]


def _referred(reference: Reference, number: int, values: torch.Tensor) -> Sent:
    """Encode an exchange of one chunk."""
    reference.begin()
    _, encoded = reference.encode(0, values.numpy())
    reference.complete(number)
    decoded = torch.from_numpy(reference.values.copy()) if reference.is_enabled else values
    return Sent(decoded, encoded.payload.nbytes)
