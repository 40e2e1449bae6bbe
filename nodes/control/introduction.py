"""How a new member is introduced to the others, and gets their weights."""

from __future__ import annotations

from collections.abc import Iterable

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
    server: ControlServer, source: Member, target: Member, parts: Iterable[tuple[str, int]]
) -> Member | None:
    """Copy parts of a replica, given by name and elements; return who failed, None if neither."""
    for name, elements in parts:
        for start in range(0, elements, CHUNK_ELEMENTS):
            read = ReadReplica(start, min(start + CHUNK_ELEMENTS, elements), name)
            reply = await server.call(source, read, REQUEST_SECONDS)
            if reply is None:
                return source
            write = WriteReplica(start, reply.values, name)
            if await server.call(target, write, REQUEST_SECONDS) is None:
                return target
    return None
