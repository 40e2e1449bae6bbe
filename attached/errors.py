"""The error of a loop that cannot be attached, or has come apart."""

from __future__ import annotations

from ..pipeline.errors import ExitCode, ShadowSyncError


class AttachError(ShadowSyncError):
    """Something cannot be attached, or the model's parameters were replaced."""

    exit_code = ExitCode.USAGE
