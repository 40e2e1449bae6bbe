"""A callback of Hugging Face's Trainer that attaches the model while it is trained.

The package `transformers` is imported here and nowhere else.
"""

from __future__ import annotations

from typing import Any

from ..pipeline.jobfile.extras import require_extra
from .attach import attach
from .errors import AttachError
from .pauses import Pause

require_extra("shadowsync.attached.transformers", "transformers")

from transformers import TrainerCallback  # noqa: E402 - what it needs is said before


class ShadowSyncCallback(TrainerCallback):  # type: ignore[misc]
    """Attach the model when training begins, and leave when it ends.

    Evaluation and checkpoints see weights that nothing else changes. Each process trains alone: the hub
    brings them together. The Trainer tells no callback of an exception: call `close` then, or end the
    process.

    Args:
        settings: arguments of `shadowsync.attach`, such as `join`.

    Attributes:
        sync: the attached loop, for `model()` and `metrics()`, also after training; None before.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.sync: Any = None
        self._pause = Pause()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        """Attach; raises what `attach` raises, and AttachError if one process trains several replicas."""
        del state, control
        replicas = args.world_size * max(1, args.n_gpu)
        if replicas > 1:
            raise AttachError(
                f"the Trainer trains {replicas} replicas, which it makes equal",
                where="TrainingArguments",
                remedy="start a process for each replica, with one device",
            )
        self.close()
        self.sync = attach(model, optimizer, **self._settings)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on after an evaluation or a checkpoint."""
        del args, state, control
        self._pause.end()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let nothing change the weights while they are evaluated or saved."""
        del args, state
        if control.should_evaluate or control.should_save:
            self._pause.begin(self.sync)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.on_step_end(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the closing round and leave."""
        del args, state, control
        self._pause.end()
        self.sync.finish()

    def close(self) -> None:
        """Leave without a closing round, after an exception; else it does nothing."""
        self._pause.end()
        if self.sync is not None:
            self.sync.abandon()
