"""A callback of Lightning that attaches the model while it is fitted.

The package `lightning` is imported here and nowhere else.
"""

from __future__ import annotations

from typing import Any

from ..pipeline.jobfile.extras import require_extra
from .attach import attach
from .errors import AttachError
from .pauses import Pause

require_extra("shadowsync.attached.lightning", "lightning")

from lightning.pytorch import Callback  # noqa: E402 - what it needs is said before


class ShadowSyncCallback(Callback):  # type: ignore[misc]
    """Attach the module when training begins, and leave when it ends.

    Validation sees weights that nothing else changes. An exception that ends the fit makes no closing round.
    Each process trains alone (`devices=1`): the hub brings them together.

    Args:
        settings: arguments of `shadowsync.attach`, such as `join`.

    Attributes:
        sync: the attached loop, for `model()` and `metrics()`, also after the fit; None before.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.sync: Any = None
        self._pause = Pause()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach; raises what `attach` raises, and AttachError for a strategy of several processes."""
        if trainer.world_size > 1:
            raise AttachError(
                f"Lightning trains with {trainer.world_size} processes, whose replicas it makes equal",
                where="Trainer",
                remedy="give devices=1, and start a process for each replica",
            )
        self.sync = attach(pl_module, list(trainer.optimizers), **self._settings)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Let nothing change the weights while they are validated."""
        self._pause.begin(self.sync)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Go on."""
        self._pause.end()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Make the closing round and leave."""
        self._pause.end()
        self.sync.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Leave without a closing round."""
        if self.sync is not None:
            self._pause.end()
            self.sync.abandon()
