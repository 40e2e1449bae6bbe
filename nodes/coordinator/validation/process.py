"""The process that scores checkpoints beside a running job, one after the other.

A request is a line of JSON on standard input: `checkpoint` (its folder or URL), `spans`, `trained` and
`validated`, the spans of the training and of the validation part if `validation` needs them, and `nice`, by
how much the priority of this score is lower than that of threads that train. The reply is a line of JSON on
standard output: the score, or `error`. The line URGENT says that something waits for the current score, which
goes on at the usual priority. When standard input closes, the coordinator is gone, and this process ends at
once.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from ....pipeline.errors import ExitCode, ShadowSyncError
from ....pipeline.performance.priority import at_priority
from ...runtime.process import importing_torch
from .scoring import URGENT

if TYPE_CHECKING:
    from ....pipeline.data.span import Span
    from ....pipeline.metrics.retrieval import RetrievalQuality
    from ....pipeline.retrieval.evaluate import RetrievalScorer
    from ....pipeline.saved_model.model import SavedModel

    Kept: TypeAlias = list[RetrievalScorer]


def main() -> None:
    """Reply to requests until standard input closes."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Keep what a user's model prints out of the replies.
    os.dup2(2, 1)
    requests: queue.SimpleQueue[tuple[str, threading.Event]] = queue.SimpleQueue()
    threading.Thread(target=read_requests, args=(requests,), name="stdin", daemon=True).start()
    kept: Kept = []
    while True:
        line, urgent = requests.get()
        print(json.dumps(reply(json.loads(line), urgent, kept)), file=replies, flush=True)


def score(request: dict[str, Any], kept: Kept | None = None) -> Generator[None, None, dict[str, Any]]:
    """Return the checkpoint's metrics on the spans; yield where another thread may go on.

    `kept` has what was read for an earlier checkpoint, if anything. Raises CheckpointError, DataError or
    ResourceError.
    """
    with importing_torch():
        import torch

    from ....pipeline.data.span import Span
    from ....pipeline.saved_model.evaluate import score_in_pieces
    from ....pipeline.saved_model.model import SavedModel
    from ....pipeline.wire.field_checks import record_of

    torch.set_num_threads(1)
    model = SavedModel.open(request["checkpoint"], trust=True)
    yield
    spans = [record_of(Span, values) for values in request["spans"]]
    scores = yield from score_in_pieces(model, spans)
    sums = scores.sums
    retrieval = yield from _retrieval(model, spans, request, [] if kept is None else kept)
    return {
        "model": model.manifest.model,
        "examples_trained": model.manifest.examples_trained,
        "bad_rows": scores.bad_rows,
        "first_bad_row": scores.first_bad_row,
        "sums": sums.to_array().tolist(),
        "own": scores.own,
        "ranking": None if scores.ranking is None else asdict(scores.ranking),
        "retrieval": None if retrieval is None else asdict(retrieval),
    }


def _retrieval(
    model: SavedModel, spans: Sequence[Span], request: dict[str, Any], kept: Kept
) -> Generator[None, None, RetrievalQuality | None]:
    """Return the ranks of held-out items among the job's catalogue; None for a job without."""
    from ....pipeline.data.span import Span
    from ....pipeline.retrieval.evaluate import RetrievalScorer
    from ....pipeline.wire.field_checks import record_of

    settings = model.job.retrieval
    if settings is None:
        return None
    # All checkpoints of a process are of one job, with one training and one validation part.
    if not kept:
        trained, validated = (
            [record_of(Span, values) for values in request[part]] for part in ("trained", "validated")
        )
        kept.append(RetrievalScorer(model.job, settings, trained, validated))
    return (yield from kept[0].score_in_pieces(model, spans))


def reply(request: dict[str, Any], urgent: threading.Event, kept: Kept | None = None) -> dict[str, Any]:
    """Score what a request names, at the priority that it asks for; return the reply."""
    try:
        return at_priority(int(request["nice"]), score(request, kept), urgent)
    except ShadowSyncError as error:
        return {"error": str(error)}


def read_requests(requests: queue.SimpleQueue[tuple[str, threading.Event]]) -> None:
    """Take requests from standard input, with the event that makes each one urgent; end with the input."""
    urgent = threading.Event()
    for line in sys.stdin:
        if line.strip() == URGENT:
            urgent.set()
        else:
            urgent = threading.Event()
            requests.put((line, urgent))
    os._exit(int(ExitCode.STOPPED_BY_DEATH))


if __name__ == "__main__":
    main()
