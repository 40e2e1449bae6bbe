"""Why there is no checkpoint, in the words of the node that could not write its part."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from shadowsync.nodes.coordinator.shutdown import checkpoint_failed
from shadowsync.pipeline.errors import ExitCode, ResourceError
from shadowsync.pipeline.wire.conversation import Conversation, Refused
from shadowsync.pipeline.wire.schema import Message


def test_a_full_disk_is_told_as_one() -> None:
    full = ResourceError("cannot be written (No space left on device)", where="/runs/a", remedy="free space")
    error = checkpoint_failed(["embedding-0", "embedding-1"], "its part", {"embedding-1": full})
    assert error.exit_code == ExitCode.RESOURCES
    assert str(error) == (
        "no checkpoint: embedding-1 could not write its part: /runs/a: cannot be written (No space left on "
        "device); free space; nor did embedding-0"
    )


def test_without_a_reason_it_is_the_clusters() -> None:
    error = checkpoint_failed(["trainer-0"], "the model", {"embedding-1": ResourceError("another's")})
    assert error.exit_code == ExitCode.CLUSTER
    assert str(error) == "no checkpoint: trainer-0 did not write the model"


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({}, ExitCode.RESOURCES),
        ({"exit_code": 99}, ExitCode.INTERNAL),
        ({"exit_code": "8"}, ExitCode.INTERNAL),
    ],
)
def test_the_exit_code_comes_with_the_refusal(told: dict[str, Any], code: ExitCode) -> None:
    async def ask() -> Refused:
        ends: list[Conversation] = []

        async def refuse(verb: str, body: dict[str, Any]) -> dict[str, Any]:
            raise ResourceError(f"{verb} {body}")

        def to_asker(message: Message) -> None:
            for key, value in told.items():
                message.body[key] = value  # type: ignore[attr-defined]
            ends[0].receive(message)

        ends.append(Conversation("node", lambda message: ends[1].receive(message), refuse))
        ends.append(Conversation("coordinator", to_asker, refuse))
        with pytest.raises(Refused) as caught:
            await ends[0].ask("checkpoint", timeout_seconds=5.0)
        return caught.value

    assert asyncio.run(ask()).exit_code == code
