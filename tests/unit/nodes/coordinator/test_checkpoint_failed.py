"""Why there is no checkpoint, in the words of the node that could not write its part."""

from __future__ import annotations

from shadowsync.nodes.coordinator.shutdown import checkpoint_failed
from shadowsync.pipeline.errors import ExitCode, ResourceError


def test_a_full_disk_is_told_as_one() -> None:
    full = ResourceError("cannot be written (No space left on device)", where="/runs/a", remedy="free space")
    error = checkpoint_failed(["embedding-0", "embedding-1"], "its part", {"embedding-1": full})
    assert error.exit_code == ExitCode.RESOURCES
    assert str(error) == (
        "no checkpoint: embedding-1 could not write its part: /runs/a: cannot be written (No space left on "
        "device); free space; nor did embedding-0"
    )


def test_without_a_reason_it_is_a_death() -> None:
    error = checkpoint_failed(["trainer-0"], "the model", {"embedding-1": ResourceError("another's")})
    assert error.exit_code == ExitCode.STOPPED_BY_DEATH
    assert str(error) == "no checkpoint: trainer-0 did not write the model"
