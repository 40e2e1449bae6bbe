"""The process that scores checkpoints beside a running job, one after the other.

A request is a line of JSON on standard input: `checkpoint` (its folder or URL), `spans`, and `nice`, by how
much the priority of this score is lower than that of threads that train. The reply is a line of JSON on
standard output: the score, or `error`. When standard input closes, the coordinator is gone, and this process
ends at once.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

from ....pipeline.errors import ExitCode, ShadowSyncError
from ....pipeline.performance.priority import at_priority


def main() -> None:
    """Reply to requests until standard input closes."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Keep what a user's model prints out of the replies.
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), name="stdin", daemon=True).start()
    while True:
        print(json.dumps(_reply(json.loads(requests.get()))), file=replies, flush=True)


def score(request: dict[str, Any]) -> dict[str, Any]:
    """Return the checkpoint's metrics on the spans.

    Raises CheckpointError, DataError or ResourceError.
    """
    import torch

    from ....pipeline.data.span import Span
    from ....pipeline.saved_model.evaluate import score_spans
    from ....pipeline.saved_model.model import SavedModel
    from ....pipeline.wire.field_checks import record_of

    torch.set_num_threads(1)
    model = SavedModel.open(request["checkpoint"], trust=True)
    scores = score_spans(model, [record_of(Span, values) for values in request["spans"]])
    sums = scores.sums
    return {
        "model": model.manifest.model,
        "examples_trained": model.manifest.examples_trained,
        "bad_rows": scores.bad_rows,
        "first_bad_row": scores.first_bad_row,
        "sums": sums.to_array().tolist(),
    }


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return at_priority(int(request["nice"]), lambda: score(request))
    except ShadowSyncError as error:
        return {"error": str(error)}


def _read_requests(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(int(ExitCode.STOPPED_BY_DEATH))


if __name__ == "__main__":
    main()
