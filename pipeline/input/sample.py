"""A sample of a job's input, read before the job starts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..config.job import Job
from ..data.bad_rows import BadRows
from ..data.batch import Batch
from ..data.span import Span
from ..errors import ShadowSyncError
from ..text.format import duration
from .job_input import JobInput

SAMPLED_SPANS = 4

log = logging.getLogger(__name__)


class UnreportedBadRows(BadRows):
    """Count bad rows that the actual reader of the input will report."""

    def __init__(self) -> None:
        super().__init__(limit=0)

    def add(self, path: str, line: Callable[[], int], why: str, text: bytes) -> None:
        """Count a row."""
        del path, line, why, text
        self.count += 1

    def add_all(self, others: BadRows) -> None:
        """Add rows that were counted elsewhere."""
        self.count += others.count


def sample_batches(job: Job, spans: Sequence[Span], examples: int) -> Iterator[Batch]:
    """Yield about `examples` examples in batches of the job's size.

    The first batches of some spans of the plan.

    Neither shuffled nor, where the plan sorts by time, in that order. Raises DataError as a reader does, but
    for bad rows, which are left out.
    """
    source = JobInput(job)
    if any(span.kind == "sorted" for span in spans):
        spans = source.plan(job.data.path)
    some = [spans[len(spans) * place // SAMPLED_SPANS] for place in range(SAMPLED_SPANS)] if spans else []
    chosen = list(dict.fromkeys(some))
    for span in chosen:
        wanted = -(-examples // len(chosen))
        # From its first row: skipping the rows before a range would need reading them. The rows after it may
        # be of another part.
        whole = replace(span, first=0)
        batches = source.batches(
            whole,
            epoch=0,
            seed=job.run.seed,
            batch=job.trainer.batch,
            shuffle_window=0,
            bad_rows=UnreportedBadRows(),
        )
        for batch in batches:
            yield batch
            wanted -= len(batch)
            if wanted <= 0:
                break


def take_sample(
    job: Job,
    spans: Sequence[Span],
    add: Callable[[Batch], bool],
    *,
    examples: int,
    seconds: float | None,
) -> None:
    """Give a sample of the input to `add`, batch by batch.

    Ends when `add` returns False, or after about `seconds`.

    It is read on a thread of its own, so a slow file does not block: nothing is added after this has
    returned. Without `seconds` there is no time limit, and the sample does not depend on a clock. What cannot
    be read ends the sample, and is logged; the actual reader of the input raises the error.
    """
    lock = threading.Lock()
    is_over = False

    def read() -> None:
        try:
            for batch in sample_batches(job, spans, examples):
                with lock:
                    if is_over or not add(batch):
                        return
        except ShadowSyncError as error:
            log.warning("the sample of the input ends early: %s", error)

    thread = threading.Thread(target=read, name="sample", daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(seconds)
    with lock:
        is_over = True
    log.info("sampled the input for %s", duration(time.monotonic() - began))
