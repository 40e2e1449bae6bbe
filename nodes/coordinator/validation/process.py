"""The process that scores one checkpoint beside a running job.

The request is a line of JSON: `checkpoint` (the folder), `spans` and `nice`. Standard input then stays open.
When it closes, the coordinator is gone, and this process ends at once. The reply is a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from ....pipeline.errors import ExitCode, ShadowSyncError


def main() -> int:
    """Score, print, and return the exit code.

    An error is one line on standard error.
    """
    question = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    os.nice(int(question["nice"]))
    try:
        print(json.dumps(score(question)), flush=True)
    except ShadowSyncError as error:
        print(error, file=sys.stderr, flush=True)
        return int(error.exit_code)
    return int(ExitCode.OK)


def score(question: dict[str, Any]) -> dict[str, Any]:
    """Return the checkpoint's metrics on the spans.

    Raises CheckpointError, DataError or ResourceError.
    """
    import torch

    from ....pipeline.data.span import Span
    from ....pipeline.saved_model.evaluate import score_spans
    from ....pipeline.saved_model.model import SavedModel
    from ....pipeline.wire.field_checks import record_of

    torch.set_num_threads(1)
    model = SavedModel.open(Path(question["checkpoint"]))
    scores = score_spans(model, [record_of(Span, values) for values in question["spans"]])
    sums = scores.sums
    return {
        "model": model.manifest.model,
        "examples_trained": model.manifest.examples_trained,
        "bad_rows": scores.bad_rows,
        "sums": sums.to_array().tolist(),
    }


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(int(ExitCode.STOPPED_BY_DEATH))


if __name__ == "__main__":
    sys.exit(main())
