"""How a new member is introduced to the others, and gets their weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...pipeline.wire.control.orders import MemberInfo, ReadReplica, TrainerJoined, WriteReplica
from .divergence import CHUNK_ELEMENTS
from .membership import Member
from .server import REQUEST_SECONDS, ControlServer


class AdmissionFailed(Exception):
    """A member cannot take part; the text says why."""


async def announce(server: ControlServer, member: Member, others: Iterable[Member]) -> None:
    """Tell others of a trainer; they accept nothing from one that they do not know.

    Raises AdmissionFailed if one of them lives and did not answer.
    """
    others = list(others)
    replies = await server.call_all(others, TrainerJoined(member.info), REQUEST_SECONDS)
    if silent := [other.info.name for other in others if other.alive and other.info.name not in replies]:
        raise AdmissionFailed(f"could not be announced to {', '.join(silent)}")


async def tell_losses(server: ControlServer, member: Member, infos: Iterable[MemberInfo]) -> None:
    """Tell a member which of these have died meanwhile.

    An earlier notice may have come before it knew of them.
    """
    for info in infos:
        known = server.state.members.find(info.token)
        if known is not None and not known.alive:
            await server.call(member, known.notice, REQUEST_SECONDS)


async def copy_replica(
    server: ControlServer, source: Member, targets: Sequence[Member], parts: Iterable[tuple[str, int]]
) -> list[Member]:
    """Copy parts of a replica, given by name and elements, to members that have not begun.

    Returns who failed: the source alone, or the targets that do not have it whole.
    """
    left = list(targets)
    for name, elements in parts:
        for start in range(0, elements, CHUNK_ELEMENTS):
            read = ReadReplica(start, min(start + CHUNK_ELEMENTS, elements), name)
            reply = await server.call(source, read, REQUEST_SECONDS)
            if reply is None:
                return [source]
            written = await server.call_all(left, WriteReplica(start, reply.values, name), REQUEST_SECONDS)
            left = [target for target in left if target.info.name in written]
    return [target for target in targets if target not in left]
